"""Hashes of keys, and slots and chains of the key index, as pure decisions."""
