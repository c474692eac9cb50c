"""Replication decided without IO: time is an argument, and what is to be done comes back as actions."""
