"""Where a shard's records lie in the key-value server, and the functions that change them there."""
