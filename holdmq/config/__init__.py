"""The configuration: its sections, keys and sources."""
