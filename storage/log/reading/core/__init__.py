"""How reads from disk are planned and kept, as pure decisions."""
