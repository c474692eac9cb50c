"""Pure parts of broker.produce.requests: no asyncio, socket, file or clock; time is an argument."""
