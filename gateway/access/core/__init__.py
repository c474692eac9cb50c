"""Pure parts of gateway.access: no asyncio, socket, file or clock; time is an argument."""
