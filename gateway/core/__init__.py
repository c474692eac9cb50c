"""Pure parts of the gateway: no asyncio, socket, file or clock; time is an argument."""
