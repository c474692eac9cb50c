"""Pure parts of broker.joining: no asyncio, socket, file or clock; time is an argument."""
