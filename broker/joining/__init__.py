"""How a broker finds its place in a cluster that runs: what it keeps, and what it takes over from others."""
