"""What happens now: counts of the statistics job, and what the cluster says of itself."""
