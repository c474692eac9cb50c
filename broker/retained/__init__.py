"""Retained messages of MQTT at their owner: puts, expiry and reads."""
