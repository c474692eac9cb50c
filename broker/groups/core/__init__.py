"""Pure parts of broker.groups.requests: no asyncio, socket, file or clock; time is an argument."""
