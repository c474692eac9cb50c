"""The mistakes that other replicated systems shipped, each as a patch of the core or of the model around it.

A simulation that does not catch one of them proves nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from model_log import ModelLog, Platter
from replica_faults import run_world
from replica_history import Violation
from replica_scenarios import (
    copy_ahead,
    diverged_copy,
    late_read,
    lease_taken_again,
    unheard_growth,
)
from replica_world import Process, SimCoordinator

from broker.replication.core.actions import Action, CutLog, Propose, Serve, StartOver
from broker.replication.core.copying import Copying
from broker.replication.core.in_sync_set import InSyncSet
from broker.replication.core.leading import Leading
from broker.replication.core.lease import LeadLease
from broker.replication.core.messages import CopyFetch, CopyHello, CopyWelcome
from broker.replication.core.replica import Replica, ReplicaRole
from holdmq.coordination.api import ShardSnapshot, ShardState


class Trap(NamedTuple):
    """A mistake: what is patched, by what, and the faults under which it shows (none = all).

    `scenario`: it shows within so short a time that only a directed run gets there.
    """

    patches: Sequence[tuple[Any, str, Any]]
    faults: Sequence[str] = ()
    scenario: Callable[[], None] | None = None


def _grown_before_counted() -> Sequence[tuple[type, str, Any]]:
    """S has the new member, while the leader goes on counting by the set before (rocketmq#5663)."""
    taken = InSyncSet.taken

    def forgets(self: InSyncSet, state: ShardState, version: int) -> None:
        known = self.state.in_sync
        taken(self, state, version)
        if len(state.in_sync) > len(known):
            self.counted = known  # type: ignore[attr-defined]

    class Slotless(InSyncSet):
        counted: tuple[str, ...] = ()

        def members(self) -> set[str]:
            state = set(self.state.in_sync)
            return state & set(self.counted) if self.counted else state

        taken = forgets

    return [(_module_of(Replica), "InSyncSet", Slotless)]


def _module_of(of: type) -> Any:
    import sys

    return sys.modules[of.__module__]


def _shrinks_before_set(self: Leading, now: float) -> list[Action]:
    """A member that is behind counts no more before S says so."""
    state = self.membership.state
    left = tuple(m for m in state.in_sync if m == self._replica or not self._is_behind(m, now))
    if len(left) >= self._settings.min_in_sync:
        self.membership.state = replace(state, in_sync=left)
    actions = _advance(self, now)
    self.membership.state = state
    return actions


def _unanswered_is_refused(self: InSyncSet) -> None:
    self._is_under_way = False
    self._may_be.clear()


def _cuts_to_confirmed(self: Copying, now: float, welcome: CopyWelcome) -> list[Action]:
    """Truncate to the high watermark, and not where the epochs part (Kafka, before KIP-101)."""
    actions = _welcomed(self, now, welcome)
    if actions and isinstance(actions[0], StartOver):
        return actions
    if self._log.written > self._log.confirmed:
        self._is_changing_log = True
        kept = [epoch for epoch in self._log.epochs if epoch.start <= self._log.confirmed]
        return [CutLog(self._log.confirmed, max(1, min(len(kept), len(self._log.epochs))))]
    return actions


_welcomed = Copying.welcomed
_hello = Leading.hello
_fetch = Leading.fetch
_was_read = Leading.was_read
_advance = Leading._advance
_must_stand = Replica._must_stand
_wanted = Leading._wanted
_place = Replica._place


def _never_cuts(self: Copying, now: float, welcome: CopyWelcome) -> list[Action]:
    """A log that is not longer than the leader's is not cut (kafka#5436)."""
    actions = _welcomed(self, now, welcome)
    if actions and isinstance(actions[0], CutLog) and self._log.written <= welcome.end:
        self._is_changing_log = False
        leader = welcome.epochs
        begun = {epoch.epoch for epoch in self._log.epochs}
        self._leader_epochs = welcome._replace(epochs=tuple(e for e in leader if e.epoch not in begun))
        return self._fetch()
    return actions


def _diverged_counts(self: Leading, now: float, peer: str, hello: CopyHello) -> tuple[Any, list[Action]]:
    """What a copy has when it says hello counts, though it is cut only afterwards (kafka#11136)."""
    answer, actions = _hello(self, now, peer, hello)
    if isinstance(answer, CopyWelcome):
        self.copies[peer].acknowledged = hello.end
        actions = actions + self._advance(now)
    return answer, actions


def _no_note(self: Leading, now: float) -> ShardState:
    """The note of what is confirmed in S would save the shard from the trap."""
    return replace(_wanted(self, now), confirmed=0)


def _drops_all(self: Copying, now: float, welcome: CopyWelcome) -> list[Action]:
    """A log that is ahead of the leader's counts as one that is behind: it is dropped (kafka#129)."""
    actions = _welcomed(self, now, welcome)
    if actions and isinstance(actions[0], CutLog):
        return [StartOver(welcome.store_id, welcome.first)]
    return actions


def _stays_whole(self: ModelLog, store_id: bytes, position: int, epochs: list[Any]) -> None:
    whole = self.platter.whole_in
    _start_over(self, store_id, position, epochs)
    self.platter.whole_in = whole


_start_over = ModelLog.start_over
_log_init = ModelLog.__init__
_cut = ModelLog.cut
_platter_cut = Platter.cut


def _is_always_whole(self: ModelLog, platter: Platter, *args: Any) -> None:
    """An emptied disk is a member's like any other (KIP-903, nats#2792)."""
    platter.whole_in = args[1]
    _log_init(self, platter, *args)


def _power_loss_is_nothing(self: ModelLog, platter: Platter, *args: Any) -> None:
    """What a power loss took under async is not suspected."""
    if platter.whole_in is not None:
        platter.whole_in = args[1]
    _log_init(self, platter, *args)


def _anybody_stands(self: Replica, now: float, state: ShardState) -> bool:
    """A copy that is no member leads (stolon#783, #917)."""
    return (
        self._free_since is not None and now >= self._rests_until and self.log.is_settled and state.epoch > 0
    )


def _anybody_campaigns(self: Replica, now: float, snapshot: ShardSnapshot) -> list[Action]:
    state = snapshot.state
    if state is not None and self._replica not in state.in_sync:
        snapshot = snapshot._replace(state=replace(state, in_sync=(*state.in_sync, self._replica)))
    log = self.log
    self.log = log._replace(is_whole=True)
    actions = _campaign(self, now, snapshot)
    self.log = self.log._replace(is_whole=log.is_whole)
    return actions


_campaign = Replica._campaign


def _synced_stays(self: ModelLog, position: int, epochs_kept: int) -> None:
    """The synced position stays where it was above a cut (redpanda#2937)."""
    synced = self.platter.synced
    _cut(self, position, epochs_kept)
    self.platter.synced = synced


def _windows_stay(self: Process, epoch: int) -> None:
    """A new leader does not know what producers have sent before (rocketmq#7790)."""
    self.world.history.serves_from(self.machine.name, epoch, self.log.confirmed)
    self.windows = dict.fromkeys(())


def _without_windows(self: Process, producer: int, sequence: int, done: Callable[[bool], None]) -> None:
    if producer not in self.windows:
        self.windows[producer] = (sequence - 1, -1)
    _produce(self, producer, sequence, done)


_produce = Process.produce


def _takes_key_over(self: Leading, now: float, sent_at: float, snapshot: ShardSnapshot) -> list[Action]:
    """A leader that wakes finds a newer epoch and writes itself over it (patroni#2787)."""
    state = snapshot.state
    if state is not None and state.epoch > self.epoch:
        mine = replace(self.membership.state, epoch=state.epoch)
        self.membership.state, self.membership.version = mine, snapshot.version
        self.epoch = state.epoch
        return [Propose(snapshot.version, mine)]
    return _was_read(self, now, sent_at, snapshot)


def _lease_from_answer(self: Leading, now: float, sent_at: float, acquisition: str) -> list[Action]:
    """A call without a timeout: the lease is counted from its answer (kubernetes#44887)."""
    return _was_held(self, now, now, acquisition)


_was_held = Leading.was_held


def _never_shrinks(self: Leading, member: str, now: float) -> bool:
    """What shrinks the set has died silently (rocketmq#7219)."""
    return False


def _opens_at_once(self: Leading, now: float) -> list[Action]:
    """A new leader serves before its members have what it has."""
    if not self.is_serving and not self.has_handed_over and not self.ended_why and self._lease.is_valid(now):
        self.is_serving = True
        return [Serve(self.epoch), *_advance(self, now)]
    return _advance(self, now)


def _any_read(self: Leading, now: float, sent_at: float, snapshot: ShardSnapshot) -> list[Action]:
    """An answer that was under way while S was changed counts as what S is."""
    self._changed_at = float("-inf")
    return _was_read(self, now, sent_at, snapshot)


def _trusts_any_acquisition(self: Leading, now: float, sent_at: float, acquisition: str) -> list[Action]:
    """A leader that takes its lease again goes on without a look at S."""
    if acquisition:
        self._acquisition = acquisition
    return _was_held(self, now, sent_at, acquisition)


def _lease_for_ever(self: LeadLease, now: float) -> bool:
    """Nobody looks at the lease when something is handed out."""
    return self.valid_until > float("-inf")


def _owned_for_ever(self: Replica, now: float) -> float:
    leading = self.leading
    is_open = leading is not None and leading.is_serving and self.lease.valid_until > float("-inf")
    return 1.0 if is_open else 0.0


def _goes_on_after_restart(self: Replica, now: float, snapshot: ShardSnapshot) -> list[Action]:
    """A restarted leader goes on in the epoch that it led."""
    state = snapshot.state
    if state is not None and state.leader == self._replica and state.epoch == self.log.last_epoch:
        self.copying = None
        self.role = ReplicaRole.LEADING
        self.lease.held(now)
        self.leading = Leading(
            self._settings,
            self._replica,
            InSyncSet(state, snapshot.version),
            self.lease,
            "",
            self.log,
            now,
        )
        return self.leading.tick(now)
    return _place(self, now, snapshot)


def _any_session(
    self: Leading, now: float, peer: str, number: int, fetch: CopyFetch
) -> tuple[Any, list[Action]]:
    """A fetch counts in whatever session it was sent."""
    copy = self.copies.get(peer)
    if copy is not None:
        fetch = fetch._replace(session=copy.session)
    return _fetch(self, now, peer, number, fetch)


TRAPS: dict[str, Trap] = {
    "the set grows, the old one acknowledges": Trap(
        _grown_before_counted(), ("kill", "kill the leader", "pause", "partition")
    ),
    "a removal counts before it is set": Trap(
        [(Leading, "_advance", _shrinks_before_set)],
        ("the leader cut from the coordinator", "partition", "pause"),
    ),
    "an unanswered proposal counts as refused": Trap(
        [(InSyncSet, "unanswered", _unanswered_is_refused)], scenario=unheard_growth
    ),
    "cut to the confirmed position": Trap(
        [(Copying, "welcomed", _cuts_to_confirmed)], ("kill", "kill the leader", "power of all")
    ),
    "not cut at every epoch": Trap(
        [(Copying, "welcomed", _never_cuts)], ("kill the leader", "partition", "one-way", "pause the leader")
    ),
    "a diverged copy counts": Trap(
        [(Leading, "hello", _diverged_counts), (Leading, "_wanted", _no_note)], scenario=diverged_copy
    ),
    "ahead is read as behind": Trap(
        [(Copying, "welcomed", _drops_all), (ModelLog, "start_over", _stays_whole)], scenario=copy_ahead
    ),
    "an emptied disk is a member's": Trap(
        [(ModelLog, "__init__", _is_always_whole)], ("emptied disk", "kill the leader")
    ),
    "a power loss is nothing": Trap(
        [(ModelLog, "__init__", _power_loss_is_nothing)], ("power", "power of all", "kill the leader")
    ),
    "an old copy leads": Trap(
        [(Replica, "_must_stand", _anybody_stands), (Replica, "_campaign", _anybody_campaigns)],
        ("partition", "kill the leader", "pause", "emptied disk"),
    ),
    "synced stays above a cut": Trap(
        [(ModelLog, "cut", _synced_stays)], ("kill the leader", "partition", "one-way", "pause the leader")
    ),
    "producer windows do not follow": Trap(
        [(Process, "_serve", _windows_stay), (Process, "produce", _without_windows)], ("kill the leader",)
    ),
    "a waking leader takes the key": Trap([(Leading, "was_read", _takes_key_over)], ("pause the leader",)),
    "a lease counted from its answer": Trap(
        [(Leading, "was_held", _lease_from_answer), (SimCoordinator, "has_timeouts", False)],
        ("lossy coordinator", "pause the leader", "the leader cut from the coordinator"),
    ),
    "nothing shrinks the set": Trap([(Leading, "_is_behind", _never_shrinks)], ("kill",)),
    "a leader opens at once": Trap(
        [(Leading, "_advance", _opens_at_once)], ("kill the leader", "partition", "pause the leader")
    ),
    "nobody looks at the lease": Trap(
        [(LeadLease, "is_valid", _lease_for_ever), (Replica, "owned_for_s", _owned_for_ever)],
        ("pause the leader", "the leader cut from the coordinator", "partition"),
    ),
    "a stale read counts": Trap([(Leading, "was_read", _any_read)], scenario=late_read),
    "a lease taken again is trusted": Trap(
        [(Leading, "was_held", _trusts_any_acquisition)], scenario=lease_taken_again
    ),
    "a restarted leader goes on": Trap(
        [(Replica, "_place", _goes_on_after_restart)], ("kill the leader", "pause the leader", "power")
    ),
}


@contextmanager
def sprung(trap: Trap) -> Iterator[None]:
    """The mistake is made while this lasts."""
    patches = [patch.object(of, name, new) for of, name, new in trap.patches]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


CAUGHT = (Violation, IndexError, ValueError, KeyError)
"""How a mistake shows: a broken promise, or a model of a disk that is read where nothing is."""


def is_caught_by_scenario(trap: Trap) -> str:
    """How the trap's directed run breaks a promise; "" = it does not."""
    assert trap.scenario is not None
    with sprung(trap):
        try:
            trap.scenario()
        except CAUGHT as caught:
            return str(caught)
    return ""


def seed_that_catches(trap: Trap, seeds: int) -> tuple[int, str] | None:
    """The first seed under which the mistake breaks a promise, and how; None = none of `seeds` does."""
    with sprung(trap):
        for seed in range(seeds):
            for is_sync in (False, True):
                try:
                    run_world(seed, is_sync, trap.faults)
                except CAUGHT as caught:
                    return seed, str(caught)
    return None
