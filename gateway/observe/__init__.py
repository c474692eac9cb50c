"""What an operator sees of clients: traces and the log of connections."""
