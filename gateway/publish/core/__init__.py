"""Pure parts of gateway.publish: no asyncio, socket, file or clock; time is an argument."""
