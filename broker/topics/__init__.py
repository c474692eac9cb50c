"""Topics: the table, its file, their queues, how they are deleted, and temporary ones."""
