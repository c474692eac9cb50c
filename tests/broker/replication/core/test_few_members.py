"""A leader that too few members follow: it refuses records by name, and offers the lead to others."""

from __future__ import annotations

import pytest

from broker.replication.core.actions import (
    Action,
    Cease,
    ConfirmTo,
    GiveUpLease,
    HoldLease,
    Propose,
    ReadState,
    RefuseAppends,
    Serve,
    TakeAppends,
)
from broker.replication.core.in_sync_set import InSyncSet
from broker.replication.core.leading import Leading
from broker.replication.core.lease import LeadLease
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import CopyFetch, CopyHello
from broker.replication.core.settings import ReplicaSettings
from holdmq.coordination.api import ShardSnapshot, ShardState
from storage.api.replication import Epoch

STORE = b"store id"
EPOCHS = (Epoch(1, 0), Epoch(3, 100))
STATE = ShardState(3, "a", ("a", "b"), 1)
SETTINGS = ReplicaSettings(2)
GONE_S = SETTINGS.lag_s + 0.2
ALONE_S = 2 * SETTINGS.lag_s + 0.2
OFFER_S = SETTINGS.switch_s + SETTINGS.offer_s


def view(end: int, confirmed: int, refused: int = 0) -> LogView:
    return LogView(STORE, 0, end, end, end, confirmed, EPOCHS, True, False, refused)


class Shard:
    """A leader of epoch 3 that serves from 0.0 on with the member b, which has all of it then."""

    def __init__(self) -> None:
        self.version = 7
        self.lease = LeadLease(SETTINGS)
        self.lease.held(0.0)
        self.leading = Leading(SETTINGS, "a", InSyncSet(STATE, 7), self.lease, "x", view(100, 100), 0.0)
        self.leading.hello(0.0, "b", CopyHello(3, STORE, 1, EPOCHS, 100, 100, True, 1))
        assert Serve(3) in self.fetch(0.0, 100)

    def fetch(self, now: float, position: int) -> list[Action]:
        _, actions = self.leading.fetch(now, "b", 1, CopyFetch(3, 1, position, position))
        return actions

    def tick(self, now: float) -> list[Action]:
        """What is due; S takes what is proposed."""
        actions = self.leading.tick(now)
        for action in actions:
            if isinstance(action, Propose):
                self.version += 1
                actions = [*actions, *self.leading.was_proposed(now, action.state, self.version, True)]
        return actions

    def offered(self) -> float:
        """Be alone with a record that only the leader has, until the lease is offered; when that was."""
        self.leading.log_moved(0.1, view(200, 100))
        self.tick(ALONE_S - 1)
        self.leading.was_held(ALONE_S - 1, ALONE_S - 1, "x")
        assert self.lease.is_valid(ALONE_S)
        assert GiveUpLease() in self.tick(ALONE_S)
        return ALONE_S


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def test_records_are_refused_while_too_few_members_follow_and_taken_once_they_do_again() -> None:
    shard = Shard()
    assert RefuseAppends not in kinds(shard.tick(SETTINGS.lag_s - 0.1))
    assert RefuseAppends(1) in shard.tick(GONE_S)
    assert shard.leading.is_short
    assert RefuseAppends not in kinds(shard.tick(GONE_S + 0.1)), "once"
    assert TakeAppends() in shard.fetch(GONE_S + 0.2, 100)
    assert not shard.leading.is_short


def test_what_was_taken_before_is_confirmed_by_the_fetch_that_ends_the_refusals() -> None:
    shard = Shard()
    shard.leading.log_moved(0.1, view(200, 100))
    assert RefuseAppends(1) in shard.tick(GONE_S)
    actions = shard.fetch(GONE_S + 1, 200)
    assert ConfirmTo(200) in actions
    assert TakeAppends() in actions


def test_a_leader_that_nobody_follows_offers_the_lead_and_goes_on_when_nobody_takes_it() -> None:
    shard = Shard()
    at = shard.offered()
    assert not shard.lease.is_valid(at)
    assert shard.leading.ended_why == ""
    assert HoldLease not in kinds(shard.tick(at + OFFER_S - 0.1))
    after = at + OFFER_S + 0.1
    assert HoldLease() in shard.tick(after)
    assert kinds(shard.leading.was_held(after, after, "y")) == [ReadState]
    assert not shard.lease.is_valid(after), "somebody may have led meanwhile"
    shard.leading.was_read(after + 0.2, after + 0.1, ShardSnapshot(STATE, shard.version, "a"))
    assert shard.lease.is_valid(after + 0.2)
    assert GiveUpLease not in kinds(shard.tick(after + 0.3)), "it is not offered all the time"


def test_whoever_takes_the_offered_lead_ends_this_one() -> None:
    shard = Shard()
    at = shard.offered()
    state = ShardState(4, "b", ("b", "a"), 1)
    assert Cease in kinds(
        shard.leading.was_read(at + 0.5, at + 0.4, ShardSnapshot(state, shard.version + 1, "b"))
    )
    assert "b leads in epoch 4" in shard.leading.ended_why


def test_a_renewal_from_before_the_offer_is_not_trusted() -> None:
    shard = Shard()
    at = shard.offered()
    for answered in (at + 0.1, at + OFFER_S + 1):
        assert shard.leading.was_held(answered, at - 0.1, "x") == []
        assert not shard.lease.is_valid(answered)


def test_a_lease_that_was_not_given_up_is_not_trusted_again() -> None:
    shard = Shard()
    after = shard.offered() + OFFER_S + 0.1
    assert GiveUpLease in kinds(shard.leading.was_held(after, after, "x"))
    assert "could not be offered" in shard.leading.ended_why


def test_the_lead_is_not_offered_beside_a_renewal_that_is_under_way() -> None:
    shard = Shard()
    shard.leading.log_moved(0.1, view(200, 100))
    assert HoldLease() in shard.tick(ALONE_S)
    assert GiveUpLease not in kinds(shard.tick(ALONE_S + 0.1))
    shard.leading.was_held(ALONE_S + 0.2, ALONE_S, "x")
    assert GiveUpLease in kinds(shard.tick(ALONE_S + 0.3))


@pytest.mark.parametrize("refused", [0, 1])
def test_a_leader_without_pending_records_offers_the_lead_only_if_somebody_wanted_to_write(
    refused: int,
) -> None:
    shard = Shard()
    shard.tick(GONE_S)
    shard.leading.log_moved(GONE_S + 0.1, view(100, 100, refused))
    assert HoldLease() in shard.tick(ALONE_S)
    shard.leading.was_held(ALONE_S, ALONE_S, "x")
    assert (GiveUpLease in kinds(shard.tick(ALONE_S + 0.1))) == bool(refused)
