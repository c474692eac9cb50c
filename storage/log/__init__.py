"""The log engine: a commit log on the local disk, with consume queues derived from it."""
