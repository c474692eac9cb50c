"""Bans of MQTT clients that hold at every gateway: kept in a table, told to all workers."""
