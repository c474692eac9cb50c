"""Queries over the statistics job's tables: an engine, its process, and the console's side of it."""
