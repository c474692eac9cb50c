"""The MQTT session as a state machine without I/O: bytes in, events and bytes out, time as an argument."""
