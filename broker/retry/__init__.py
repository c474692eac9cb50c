"""What is read again: copies into other topics, moves to retry topics, dead letters."""
