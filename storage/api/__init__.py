"""What the broker needs of a log engine, as Protocols and values."""
