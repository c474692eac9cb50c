"""Sessions that outlive their connections: opening, restoring, wills and retained puts at their owner."""
