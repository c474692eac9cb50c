"""What each service process has: start and stop, admin port, health, logs and metrics."""
