"""Decisions without IO: what a table of counts holds, and what of it is shown."""
