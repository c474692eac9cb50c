"""When a replica says that nobody leads its shard."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from broker.replication.core.actions import BeginEpoch
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import CopyWelcome
from broker.replication.core.replica import Replica, ReplicaRole
from broker.replication.core.settings import ReplicaSettings
from holdmq.coordination.api import ShardSnapshot, ShardState
from storage.api.replication import Epoch

SETTINGS = ReplicaSettings(2)
STATE = ShardState(3, "b", ("a", "b"), 1)


@pytest.fixture
def replica() -> Replica:
    log = LogView(b"store", 0, 100, 100, 100, 100, (Epoch(3, 0),), True)
    return Replica(SETTINGS, "a", ("a", "b", "c"), log, count().__next__)


def test_it_has_just_begun_and_knows_nothing_yet(replica: Replica) -> None:
    assert not replica.is_leaderless(1000.0)
    replica.tick(1000.0)
    assert not replica.is_leaderless(1000.1)
    assert replica.is_leaderless(1000.1 + SETTINGS.ttl_s), "the coordinator does not answer"


def test_somebody_has_the_lease_or_nobody_had_it_for_longer_than_a_failover(replica: Replica) -> None:
    replica.tick(1000.0)
    replica.was_read(1000.1, ShardSnapshot(STATE, 5, "b"))
    assert not replica.is_leaderless(1008.0)
    replica.was_read(1008.0, ShardSnapshot(STATE, 5, ""))
    assert not replica.is_leaderless(1008.0 + SETTINGS.ttl_s / 2)
    assert replica.is_leaderless(1008.1 + SETTINGS.ttl_s / 2)


def test_it_leads_itself_and_may_not_serve_without_the_others(replica: Replica) -> None:
    replica.tick(1000.0)
    replica.was_read(1000.0, ShardSnapshot(STATE, 5, ""))
    replica.tick(1001.0)
    replica.was_read(1001.0, ShardSnapshot(STATE, 5, ""))
    replica.was_held(1001.1, 1001.0, "x")
    replica.was_read(1001.2, ShardSnapshot(STATE, 5, "a"))
    mine = ShardState(4, "a", ("a",), 1)
    replica.was_proposed(1001.3, mine, 6, True)
    replica.epoch_begun(1001.4, replica.log._replace(epochs=(Epoch(3, 0), Epoch(4, 100))))
    assert replica.leading is not None
    replica.was_read(1006.0, ShardSnapshot(mine, 6, "a"))
    assert not replica.is_leaderless(1001.4 + SETTINGS.ttl_s / 2)
    assert replica.is_leaderless(1001.5 + SETTINGS.ttl_s / 2), "it holds the lease, and nobody serves"


def test_who_still_follows_leaves_a_free_lease_to_whom_the_leader_asks(replica: Replica) -> None:
    replica.tick(1000.0)
    replica.was_read(1000.1, ShardSnapshot(STATE, 5, "b"))
    assert replica.role is ReplicaRole.COPYING
    replica.answered(1001.0, "b", CopyWelcome(3, b"store", 0, (Epoch(3, 0),), 0, 100))
    # The leader gives the lease up for a third one, which needs a moment to take it.
    free = ShardSnapshot(STATE, 5, "")
    for at in (1001.0, 1001.0 + SETTINGS.switch_s / 2):
        replica.tick(at)
        replica.was_read(at, free)
        assert replica.role is ReplicaRole.COPYING
    replica.was_read(1001.0 + SETTINGS.switch_s, free)
    assert replica.role is ReplicaRole.CAMPAIGNING, "nobody took it"


def test_who_follows_nobody_takes_a_free_lease_at_once(replica: Replica) -> None:
    replica.tick(1000.0)
    replica.was_read(1000.1, ShardSnapshot(STATE, 5, "b"))
    replica.answered(1000.2, "b", None)
    assert replica.role is ReplicaRole.WAITING
    replica.was_read(1000.3, ShardSnapshot(STATE, 5, ""))
    assert replica.role is ReplicaRole.CAMPAIGNING


def test_a_proposal_that_an_earlier_campaign_made_wins_no_later_one(replica: Replica) -> None:
    replica.tick(1000.0)
    for at in (1000.0, 1001.0):
        replica.was_read(at, ShardSnapshot(STATE, 5, ""))
    replica.was_held(1001.1, 1001.0, "x")
    replica.was_read(1001.2, ShardSnapshot(STATE, 5, "a"))
    of_before = replace(STATE, leader="a", confirmed=100)
    assert replica.was_proposed(1001.3, of_before, 6, True) == []
    assert replica.role is ReplicaRole.CAMPAIGNING, "epoch 3 is not its campaign's, and begins no second time"
    assert BeginEpoch(4) in replica.was_proposed(
        1001.4, replace(STATE, epoch=4, leader="a", in_sync=("a",)), 6, True
    )
