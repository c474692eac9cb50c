"""What S may be while a proposal has no answer."""

from __future__ import annotations

from broker.replication.core.in_sync_set import InSyncSet
from holdmq.coordination.api import ShardState


def state(*in_sync: str) -> ShardState:
    return ShardState(3, "a", in_sync, 1)


def test_a_member_that_is_added_counts_before_and_one_that_is_removed_counts_until_it_is_done() -> None:
    membership = InSyncSet(state("a", "b"), 7)
    membership.proposes(state("a", "b", "c"))
    assert membership.members() == {"a", "b", "c"}
    membership.taken(state("a", "b", "c"), 8)
    membership.proposes(state("a", "c"))
    assert membership.members() == {"a", "b", "c"}
    assert membership.fewest() == 2
    membership.taken(state("a", "c"), 9)
    assert membership.members() == {"a", "c"}


def test_an_unanswered_proposal_counts_until_the_version_has_moved() -> None:
    membership = InSyncSet(state("a", "b"), 7)
    membership.proposes(state("a", "b", "c"))
    membership.unanswered()
    membership.was_read(state("a", "b"), 7)
    assert membership.members() == {"a", "b", "c"}, "it may yet arrive"
    assert not membership.is_settled
    membership.proposes(state("a", "b"))
    membership.taken(state("a", "b"), 8)
    assert membership.members() == {"a", "b"}, "what was sent against version 7 is too late"


def test_a_lost_proposal_leaves_earlier_ones_in_doubt() -> None:
    membership = InSyncSet(state("a", "b"), 7)
    membership.proposes(state("a", "b", "c"))
    membership.unanswered()
    membership.proposes(state("a"))
    membership.lost()
    assert membership.members() == {"a", "b", "c"}
    membership.was_read(state("a", "b", "c"), 8)
    assert membership.is_settled
    assert membership.state == state("a", "b", "c")
