"""What every room of the broker stands on: request families, events, journal, lookups, statistics."""
