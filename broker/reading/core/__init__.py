"""Pure parts of broker.reading: no asyncio, socket, file or clock; time is an argument."""
