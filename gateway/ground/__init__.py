"""What every room of the gateway stands on: limits, counters, timers, names."""
