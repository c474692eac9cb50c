"""What every benchmark has: its command line, its rounds, its store or servers, its figures."""
