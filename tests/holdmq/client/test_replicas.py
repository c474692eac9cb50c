"""What is put together from what the replicas of a shard say."""

from __future__ import annotations

import pytest

from holdmq.client.replicas import ShardView, shard_view
from holdmq.errors import TransportError
from holdmq.wire.replica_headers import CopyRow, EpochRow, ReplicaStatusResponse

ADDRESSES = {name: f"10.0.0.{place}:10912" for place, name in enumerate("abc", 1)}


def status(
    name: str,
    *,
    role: str = "copying",
    epoch: int = 7,
    in_sync: str = "abc",
    end: int = 1000,
    is_whole: bool = True,
    lease_ms: int = 0,
    copies: tuple[CopyRow, ...] = (),
) -> ReplicaStatusResponse:
    return ReplicaStatusResponse(
        name, role, epoch, "a", list(in_sync), b"store", [EpochRow(1, 0), EpochRow(epoch, 500)], 0, end, 900,
        is_whole, role == "leading", lease_ms, list(copies),
    )  # fmt: skip


def view_of(*answers: ReplicaStatusResponse | TransportError) -> ShardView:
    return shard_view("broker-0", ADDRESSES, dict(zip(ADDRESSES, answers, strict=True)))


COPIES = (CopyRow("b", 900, 40, True, True), CopyRow("c", -1, 60_000, False, False))


def test_a_leader_a_member_and_one_that_is_gone() -> None:
    leader = status("a", role="leading", in_sync="ab", lease_ms=6200, copies=COPIES)
    # Who reads the state later knows an older one.
    view = view_of(leader, status("b", end=900), TransportError("no connection to 10.0.0.3:10912"))
    a, b, c = view.replicas
    assert [one.standing for one in view.replicas] == ["leader", "in sync", "missing"]
    assert (a.serves, a.lease_ms, a.behind_ms, a.behind_bytes) == (True, 6200, None, None)
    assert (b.serves, b.lease_ms, b.behind_ms, b.behind_bytes) == (False, None, 40, 100)
    assert (c.in_sync, c.behind_ms, c.behind_bytes) == (False, 60_000, None), "it has acknowledged nothing"
    assert c.reason == "no connection to 10.0.0.3:10912"
    assert (view.epoch, a.log_epoch, c.log_epoch) == (7, 7, 0)
    assert view.leader == a
    assert not view.is_well
    assert [view.may_lead_next(one) for one in view.replicas] == [False, True, False]


def test_a_copy_that_is_not_whole_or_no_member_is_a_learner() -> None:
    leader = status("a", role="leading", in_sync="ab", lease_ms=1)
    view = view_of(leader, status("b", is_whole=False), status("c"))
    assert [one.standing for one in view.replicas] == ["leader", "learner", "learner"]
    assert view.is_well
    assert not any(view.may_lead_next(one) for one in view.replicas)


def test_a_leader_whose_lease_has_run_out_hands_the_lead_to_nobody() -> None:
    view = view_of(status("a", role="leading"), status("b"), status("c"))
    assert view.leader is not None
    assert not view.leader.serves
    assert view.leader.lease_ms == 0
    assert not view.is_well
    assert not view.may_lead_next(view.replicas[1])


@pytest.mark.parametrize("epoch", [0, 7])
def test_without_a_leader_nobody_knows_how_far_behind_a_copy_is(epoch: int) -> None:
    view = view_of(*(status(name, role="waiting", epoch=epoch) for name in "abc"))
    assert view.leader is None
    assert [one.in_sync for one in view.replicas] == [True if epoch else None] * 3
    assert [(one.behind_ms, one.behind_bytes) for one in view.replicas] == [(None, None)] * 3


def test_of_two_that_say_that_they_lead_the_one_of_the_higher_epoch_knows_the_copies() -> None:
    old = status("a", role="leading", epoch=6, copies=(CopyRow("c", 5, 1, True, True),))
    new = status(
        "b", role="leading", epoch=7, in_sync="bc", lease_ms=1, copies=(CopyRow("c", 990, 2, True, True),)
    )
    view = view_of(old, new, status("c"))
    assert view.replicas[2].behind_bytes == 10
    assert [one.standing for one in view.replicas] == ["learner", "leader", "in sync"]
    assert view.leader == view.replicas[1]
