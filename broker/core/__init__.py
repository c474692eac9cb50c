"""Pure parts of the broker: no asyncio, socket, file or clock; time is an argument."""
