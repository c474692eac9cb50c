"""Delayed messages: their files by due minute, their release, and rolling past retention."""
