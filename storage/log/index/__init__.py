"""Searches of messages by key, unique id and time, and the files of the key index."""
