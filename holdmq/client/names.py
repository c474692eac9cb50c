"""Names that callers give, refused before anything is asked."""

from __future__ import annotations

from holdmq.errors import UsageError
from holdmq.names.clusters import cluster_fault
from holdmq.names.topics import group_fault, topic_fault


def check_topic(name: str) -> None:
    """Raise UsageError for a topic name that clients may not use."""
    fault = topic_fault(name)
    if fault is not None:
        raise UsageError(fault)


def check_group(name: str) -> None:
    """Raise UsageError for a name that no group may have."""
    fault = group_fault(name)
    if fault is not None:
        raise UsageError(fault)


def check_cluster(name: str) -> None:
    """Raise UsageError for a name that no cluster may have; "" is all of them."""
    fault = cluster_fault(name)
    if fault is not None:
        raise UsageError(fault)
