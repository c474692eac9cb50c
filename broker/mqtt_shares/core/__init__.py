"""Pure parts of broker.mqtt_shares: no asyncio, socket, file or clock; time is an argument."""
