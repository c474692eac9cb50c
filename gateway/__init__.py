"""The MQTT front end: sockets to log records, log records to sockets."""
