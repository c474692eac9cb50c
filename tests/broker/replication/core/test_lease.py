"""The lease as its holder sees it."""

from __future__ import annotations

from broker.replication.core.lease import LeadLease
from broker.replication.core.settings import ReplicaSettings


def test_it_is_counted_from_before_the_call_less_the_margin() -> None:
    lease = LeadLease(ReplicaSettings(2, ttl_s=9, margin_s=2))
    assert not lease.is_valid(0.0)
    lease.held(100.0)
    assert lease.is_valid(106.9)
    assert not lease.is_valid(107.0)


def test_an_answer_that_comes_late_never_shortens_it_and_an_end_is_at_once() -> None:
    lease = LeadLease(ReplicaSettings(2))
    lease.held(100.0)
    lease.held(90.0)
    assert lease.is_valid(106.0)
    lease.end()
    assert not lease.is_valid(100.0)
