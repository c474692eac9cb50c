"""Pure parts of gateway.edge: no asyncio, socket, file or clock; time is an argument."""
