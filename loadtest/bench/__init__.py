"""Benchmarks that `make bench` runs: each module has `main()` and prints its own parameters."""
