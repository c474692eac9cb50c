"""Spark over HoldMQ: the `holdmq` data source, the job that counts messages, and its tables."""
