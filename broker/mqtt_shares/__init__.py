"""Shared subscriptions of MQTT ($share): one feed for a group, its members on any gateway."""
