"""Fixtures of the key-value engine's tests: servers of their own."""

from valkey_servers import cluster_of_module, new_valkey, valkey_cluster

__all__ = ["cluster_of_module", "new_valkey", "valkey_cluster"]
