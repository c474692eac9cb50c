"""The broker: topics, produce, pull, hold and readers over one store."""
