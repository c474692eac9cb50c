"""Pure parts of broker.retry: no asyncio, socket, file or clock; time is an argument."""
