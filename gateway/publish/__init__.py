"""What clients publish: plans of topics, and the way into the log."""
