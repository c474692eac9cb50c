"""When delayed messages are due and what their records are, as pure decisions."""
