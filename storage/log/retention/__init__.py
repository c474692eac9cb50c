"""Old segments and deleted queues: what goes, when, and what is kept for whom."""
