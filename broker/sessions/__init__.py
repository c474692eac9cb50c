"""MQTT sessions at their owner: epochs, rows, wills and queries."""
