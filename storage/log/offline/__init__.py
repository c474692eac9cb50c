"""A store that no broker has open: verified, summed up, cut at its first damage."""
