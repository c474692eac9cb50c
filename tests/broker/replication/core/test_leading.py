"""Who may join, seen from a leader whose log has not shown yet all that it was told to confirm."""

from __future__ import annotations

from broker.replication.core.actions import Action, ConfirmTo, GiveUpLease, HoldLease, Propose, ReadState
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


def view(end: int, confirmed: int) -> LogView:
    return LogView(STORE, 0, end, end, end, confirmed, EPOCHS, True)


def hello(session: int) -> CopyHello:
    return CopyHello(3, STORE, session, EPOCHS, 100, 0, True, 1)


def joins(actions: list[Action]) -> bool:
    return any(isinstance(action, Propose) and "c" in action.state.in_sync for action in actions)


def test_a_copy_joins_with_what_was_decided_to_be_confirmed_not_with_what_shows() -> None:
    settings = ReplicaSettings(2)
    membership = InSyncSet(ShardState(3, "a", ("a", "b"), 1), 7)
    leading = Leading(settings, "a", membership, LeadLease(settings), "x", view(100, 0), 0.0)
    for peer in "bc":
        leading.hello(0.0, peer, hello(1))
    leading.log_moved(0.1, view(300, 0))
    leading.fetch(0.2, "c", 1, CopyFetch(3, 1, 200, 200))
    _, actions = leading.fetch(0.2, "b", 2, CopyFetch(3, 1, 300, 300))
    assert ConfirmTo(300) in actions
    # A member comes back, and has said nothing in its new session; the log is still at it.
    leading.hello(0.3, "b", hello(2))
    assert not joins(leading.log_moved(0.4, view(300, 120)))
    assert not joins(leading.tick(0.5)), "it lacks what is, or will be, acknowledged"
    leading.fetch(0.6, "c", 3, CopyFetch(3, 1, 300, 300))
    assert joins(leading.tick(0.7))


def test_who_follows_is_a_member_that_was_level_a_moment_ago() -> None:
    settings = ReplicaSettings(2)
    membership = InSyncSet(ShardState(3, "a", ("a", "b"), 1), 7)
    leading = Leading(settings, "a", membership, LeadLease(settings), "x", view(100, 0), 0.0)
    assert leading.followers(0.1) == ("a", "b"), "a member has time to say hello"
    assert leading.followers(settings.lag_s + 0.1) == ("a",)
    leading.hello(4.0, "b", hello(1))
    leading.hello(4.0, "c", hello(1))
    assert leading.followers(4.0) == ("a",), "hello says nothing of what it has"
    for number, peer in enumerate("bc"):
        leading.fetch(4.1, peer, number, CopyFetch(3, 1, 100, 100))
    assert leading.followers(4.2) == ("a", "b"), "c is no member"
    assert leading.followers(4.2 + settings.lag_s) == ("a",)


def test_a_copy_that_begins_again_and_again_is_out_of_sync_as_soon_as_one_that_is_silent() -> None:
    """Its disk is full: it fails to write what it fetched, and says hello once more."""
    settings = ReplicaSettings(2)
    membership = InSyncSet(ShardState(3, "a", ("a", "b", "c"), 1), 7)
    leading = Leading(settings, "a", membership, LeadLease(settings), "x", view(100, 0), 0.0)
    for peer in "bc":
        leading.hello(0.0, peer, hello(1))
        leading.fetch(0.0, peer, 1, CopyFetch(3, 1, 100, 100))
    leading.log_moved(0.1, view(300, 100))
    now, proposed = 0.1, list[Action]()
    while not proposed and now < 3 * settings.lag_s:
        now += 0.2
        leading.hello(now, "c", hello(round(now * 10)))
        leading.fetch(now, "c", 1, CopyFetch(3, round(now * 10), 100, 100))
        leading.fetch(now, "b", 1, CopyFetch(3, 1, 300, 300))
        proposed = [action for action in leading.tick(now) if isinstance(action, Propose)]
        proposed = [action for action in proposed if action.state.in_sync != ("a", "b", "c")]
    assert [action.state.in_sync for action in proposed if isinstance(action, Propose)] == [("a", "b")]
    assert now <= settings.lag_s + 0.4


def test_a_leader_waits_until_enough_members_have_said_what_they_have() -> None:
    settings = ReplicaSettings(2)
    membership = InSyncSet(ShardState(3, "a", ("a", "b"), 1), 7)
    lease = LeadLease(settings)
    leading = Leading(settings, "a", membership, lease, "x", view(100, 0), 10.0)
    lease.held(10.0)
    assert leading.waits_s(14.0) == 4
    leading.hello(14.0, "b", hello(1))
    leading.fetch(14.1, "b", 1, CopyFetch(3, 1, 100, 100))
    assert leading.is_serving
    assert leading.waits_s(20.0) == 0


def test_a_lease_that_is_offered_before_the_state_is_read_is_not_trusted_once_it_is() -> None:
    settings = ReplicaSettings(2)
    state = ShardState(3, "a", ("a", "b"), 1)
    lease = LeadLease(settings)
    leading = Leading(settings, "a", InSyncSet(state, 7), lease, "x", view(100, 0), 0.0)
    lease.held(0.0)
    now, acquired = 0.0, ""
    for _ in range(2000):
        now += 0.05
        kinds = [type(action) for action in leading.tick(now)]
        if GiveUpLease in kinds:
            if acquired:
                break
            acquired = "first"
        elif HoldLease in kinds and not acquired:
            leading.was_held(now, now, "x")
        elif HoldLease in kinds:
            # It was free in between: S has to be read before it is trusted, and the answer is slow.
            acquired = f"y{now}"
            (read,) = leading.was_held(now, now, acquired)
            assert isinstance(read, ReadState)
            read_sent_at = now
    assert acquired.startswith("y"), "the lease was taken again, and offered again"
    leading.was_read(now, read_sent_at, ShardSnapshot(state, 7, "a"))
    assert not lease.is_valid(now)
