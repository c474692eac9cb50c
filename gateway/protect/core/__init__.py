"""Pure parts of gateway.protect: no asyncio, socket, file or clock; time is an argument."""
