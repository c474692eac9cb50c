"""An epoch that a full disk does not take: the replica goes on without it."""

from __future__ import annotations

from itertools import count

import pytest

from broker.replication.core.actions import BeginEpoch, GiveUpLease, Say
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import CopyHello, CopyWelcome
from broker.replication.core.replica import Replica, ReplicaRole
from broker.replication.core.settings import ReplicaSettings
from holdmq.coordination.api import ShardSnapshot, ShardState
from storage.api.replication import Epoch

SETTINGS = ReplicaSettings(2)
STATE = ShardState(3, "b", ("a", "b"), 1)
FULL = "write of epoch.json failed: No space left on device"


@pytest.fixture
def replica() -> Replica:
    log = LogView(b"store", 0, 100, 100, 100, 100, (Epoch(2, 0),), True)
    replica = Replica(SETTINGS, "a", ("a", "b", "c"), log, count().__next__)
    replica.tick(1000.0)
    return replica


def follow(replica: Replica, now: float) -> list[object]:
    replica.tick(now)
    actions = replica.was_read(now, ShardSnapshot(STATE, 5, "b"))
    assert replica.role is ReplicaRole.COPYING
    hellos = [one.message for one in actions if isinstance(one, Say)]
    assert isinstance(hellos[0], CopyHello)
    epochs = (Epoch(2, 0), Epoch(3, 100))
    return list(replica.answered(now, "b", CopyWelcome(3, b"store", hellos[0].session, epochs, 0, 100)))


def test_a_copy_begins_a_new_session_and_the_epoch_is_wanted_again(replica: Replica) -> None:
    assert BeginEpoch(3) in follow(replica, 1000.1)
    replica.epoch_refused(1000.2, FULL)
    assert replica.role is ReplicaRole.WAITING
    assert BeginEpoch(3) in follow(replica, 1000.3 + SETTINGS.look_s + SETTINGS.read_s)


def test_who_was_to_lead_gives_the_lease_up(replica: Replica) -> None:
    replica.was_read(1000.0, ShardSnapshot(STATE, 5, ""))
    replica.tick(1001.0)
    replica.was_read(1001.0, ShardSnapshot(STATE, 5, ""))
    replica.was_held(1001.1, 1001.0, "x")
    replica.was_read(1001.2, ShardSnapshot(STATE, 5, "a"))
    mine = ShardState(4, "a", ("a",), 1)
    assert BeginEpoch(4) in replica.was_proposed(1001.3, mine, 6, True)
    assert any(isinstance(action, GiveUpLease) for action in replica.epoch_refused(1001.4, FULL))
    assert replica.role is ReplicaRole.WAITING
    assert replica.leading is None
    assert replica.owned_for_s(1001.4) == 0
