"""Which copies a leader may name to readers, and when a copy may answer them."""

from __future__ import annotations

from broker.replication.core.actions import Say
from broker.replication.core.in_sync_set import InSyncSet
from broker.replication.core.leading import Leading
from broker.replication.core.lease import LeadLease
from broker.replication.core.log_view import LogView
from broker.replication.core.messages import CopyFetch, CopyHello, CopyWelcome, FetchGrant
from broker.replication.core.replica import Replica
from broker.replication.core.settings import ReplicaSettings
from holdmq.coordination.api import ShardSnapshot, ShardState
from storage.api.replication import Epoch

STORE = b"store id"
EPOCHS = (Epoch(1, 0), Epoch(3, 100))
SETTINGS = ReplicaSettings(2)
STATE = ShardState(3, "a", ("a", "b"), 1)


def view(end: int, epochs: tuple[Epoch, ...] = EPOCHS, is_whole: bool = True) -> LogView:
    return LogView(STORE, 0, end, end, end, end, epochs, is_whole)


def leader(in_sync: tuple[str, ...] = ("a", "b", "c")) -> Leading:
    lease = LeadLease(SETTINGS)
    lease.held(0.0)
    membership = InSyncSet(ShardState(3, "a", in_sync, 1), 7)
    leading = Leading(SETTINGS, "a", membership, lease, "x", view(200), 0.0)
    for peer in "cb":
        leading.hello(0.0, peer, CopyHello(3, STORE, 1, EPOCHS, 200, 200, True, 1, f"{peer}:10911"))
        leading.fetch(0.1, peer, 1, CopyFetch(3, 1, 200, 200))
    return leading


def names(leading: Leading, now: float) -> list[str]:
    return [copy.read_address for copy in leading.readable(now)]


def test_a_leader_names_members_in_the_order_of_their_ids() -> None:
    assert names(leader(), 0.2) == ["b:10911", "c:10911"]


def test_a_copy_that_is_no_member_or_may_be_none_is_not_named() -> None:
    leading = leader(("a", "b"))
    assert names(leading, 0.2) == ["b:10911"]
    leading.membership.proposes(STATE)
    assert names(leading, 0.2) == [], "S may be either state now"


def test_a_copy_that_lags_or_begins_anew_is_not_named() -> None:
    leading = leader()
    leading.fetch(3.0, "b", 2, CopyFetch(3, 1, 200, 200))
    assert names(leading, 3.2) == ["b:10911"], "c is silent for more than replica_lag"
    leading.hello(3.2, "b", CopyHello(3, STORE, 2, EPOCHS, 200, 200, False, 1, "b:10911"))
    assert names(leading, 3.2) == [], "b says that it may lack something"


def test_a_copy_without_an_address_and_a_leader_that_does_not_serve_name_nobody() -> None:
    leading = leader()
    leading.hello(0.2, "b", CopyHello(3, STORE, 2, EPOCHS, 200, 200, True, 1))
    assert names(leading, 0.3) == ["c:10911"]
    leading.is_serving = False
    assert names(leading, 0.3) == []


def copy(state: ShardState = STATE, log: LogView | None = None) -> Replica:
    """A copy that has fetched once, at 0.1 s."""
    log = view(200) if log is None else log
    replica = Replica(SETTINGS, "b", ("a", "b", "c"), log, lambda: 5, "b:10911")
    actions = replica.was_read(0.0, ShardSnapshot(state, 1, "a"))
    (hello,) = [action.message for action in actions if isinstance(action, Say)]
    assert isinstance(hello, CopyHello)
    assert hello.read_address == "b:10911"
    replica.answered(0.1, "a", CopyWelcome(3, STORE, 5, EPOCHS, 0, 200))
    replica.answered(0.1, "a", FetchGrant(5, 200, 200, 200, 0, True, False))
    return replica


def test_a_member_that_follows_the_leader_in_its_epoch_may_be_read() -> None:
    assert copy().may_read(0.2)


def test_a_learner_and_a_copy_that_is_not_whole_may_not() -> None:
    assert not copy(ShardState(3, "a", ("a", "c"), 1)).may_read(0.2)
    assert not copy(log=view(200, is_whole=False)).may_read(0.2)


def test_a_copy_that_has_not_reached_its_leaders_epoch_may_not() -> None:
    replica = Replica(SETTINGS, "b", ("a", "b"), view(100, EPOCHS[:1]), lambda: 5, "b:10911")
    replica.was_read(0.0, ShardSnapshot(STATE, 1, "a"))
    assert not replica.may_read(0.1), "it has not been welcomed"
    replica.answered(0.1, "a", CopyWelcome(3, STORE, 5, EPOCHS, 0, 200))
    assert not replica.may_read(0.2), "the epoch that begins is not noted"
    replica.epoch_begun(0.3, view(100))
    assert replica.may_read(0.4)


def test_a_copy_whose_leader_is_silent_or_whose_lease_is_free_may_not() -> None:
    replica = copy()
    assert not replica.may_read(3.2), "no answer of the leader for longer than replica_lag"
    replica = copy()
    replica.was_read(0.2, ShardSnapshot(STATE, 1, ""))
    assert not replica.may_read(0.3), "nobody holds the lease of the lead"


def test_a_copy_that_cannot_read_the_state_or_reads_another_leader_may_not() -> None:
    replica = copy()
    for _ in range(100):
        replica.answered(9.5, "a", FetchGrant(5, 200, 200, 200, 0, True, False))
    assert not replica.may_read(9.6), "the state was read longer ago than the lease lasts"
    replica = copy()
    replica.was_read(0.2, ShardSnapshot(ShardState(4, "c", ("b", "c"), 1), 2, "c"))
    assert not replica.may_read(0.3)


def test_a_copy_that_is_asked_to_lead_may_not() -> None:
    replica = copy()
    replica.answered(0.2, "a", FetchGrant(5, 200, 200, 200, 0, True, True))
    assert not replica.may_read(0.3)
