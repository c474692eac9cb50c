"""Records that change tables, as pure decisions."""
