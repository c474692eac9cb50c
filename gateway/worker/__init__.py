"""One worker process: its parts, how it serves, drains and reports."""
