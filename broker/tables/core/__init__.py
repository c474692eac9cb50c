"""Pure parts of broker.tables.requests: no asyncio, socket, file or clock; time is an argument."""
