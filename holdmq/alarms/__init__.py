"""Alarms, and how people are told of them: what services that raise some share."""
