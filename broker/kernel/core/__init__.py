"""Pure parts of broker.kernel: no asyncio, socket, file or clock; time is an argument."""
