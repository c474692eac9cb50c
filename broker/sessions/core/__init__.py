"""Pure parts of broker.sessions.requests: no asyncio, socket, file or clock; time is an argument."""
