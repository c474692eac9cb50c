"""Pure parts of gateway.observe: no asyncio, socket, file or clock; time is an argument."""
