"""Fixtures of the tests on real processes."""

from processes import holdmq_stack
from valkey_servers import cluster_of_module, new_valkey, valkey_cluster

__all__ = ["cluster_of_module", "holdmq_stack", "new_valkey", "valkey_cluster"]
