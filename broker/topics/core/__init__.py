"""Pure parts of broker.topics.requests: no asyncio, socket, file or clock; time is an argument."""
