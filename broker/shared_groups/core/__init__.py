"""Pure parts of broker.shared_groups: no asyncio, socket, file or clock; time is an argument."""
