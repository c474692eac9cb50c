"""Which MQTT clients are admitted, and what they may do: files of our own, and amqtt's plug-ins."""
