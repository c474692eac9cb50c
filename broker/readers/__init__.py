"""Readers of topics, whichever way they read."""
