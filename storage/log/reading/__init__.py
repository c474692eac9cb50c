"""Reads of records from disk: in queue order, in log order, backwards and by time."""
