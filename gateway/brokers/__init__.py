"""Connections to brokers: the link, batches of records, the reader of the live feed."""
