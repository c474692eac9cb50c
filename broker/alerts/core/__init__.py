"""Pure parts of broker.alerts: no asyncio, socket, file or clock; time is an argument."""
