"""Which alarms are raised: no asyncio, socket, file or clock; time is an argument."""
