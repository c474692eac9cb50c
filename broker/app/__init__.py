"""The running broker: its server, registration, progress and metrics."""
