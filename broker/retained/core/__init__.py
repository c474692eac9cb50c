"""Pure parts of broker.retained.requests: no asyncio, socket, file or clock; time is an argument."""
