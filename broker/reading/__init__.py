"""Reading the log: pulls that wait for news, readers, columns and queries."""
