"""Pure parts of gateway.brokers: no asyncio, socket, file or clock; time is an argument."""
