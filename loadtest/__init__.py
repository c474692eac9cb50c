"""Load for any MQTT server: fleets of devices over real connections, and reports of what they saw."""
