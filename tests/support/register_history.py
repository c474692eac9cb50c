"""What clients of a coordinator were told, and whether S and L were one register and one lease all the time.

Every state that is tried has an epoch of its own, so that a state names the attempt that wrote it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count, pairwise
from typing import Final, NamedTuple

from linearizability import IMPOSSIBLE, Impossible, Operation, is_linearizable

from holdmq.coordination.api import Coordinator, ShardSnapshot, ShardState
from holdmq.errors import CoordinatorError

Clock = Callable[[], float]
MEMBERS: Final = ("a", "b", "c")


class RegisterCall(NamedTuple):
    """A compare-and-set, or a read as one of what it gave by the same; epochs, 0 = there was no state."""

    expected: int
    new: int
    was_done: bool | None
    """None = nobody knows."""


class LeaseClaim(NamedTuple):
    """A replica trusts L from when it was told so until its time is over, counted from before the call."""

    replica_id: str
    acquisition: str
    told_at: float
    until: float


class RegisterHistory:
    """Collects what clients are told; `now` of each call is a clock that all of them share."""

    def __init__(self, ttl_s: float, margin_s: float) -> None:
        self._ttl_s = ttl_s
        self._margin_s = margin_s
        self._epochs = count(1)
        self._calls: list[Operation[RegisterCall]] = []
        self._epoch_of: dict[int, int] = {0: 0}
        self._claims: list[LeaseClaim] = []
        self.unknown = 0
        """Calls of which nobody knows whether they took effect."""

    async def read(self, coordinator: Coordinator, now: Clock) -> ShardSnapshot | None:
        """Read S; None = the coordinator did not answer."""
        called_at = now()
        try:
            snapshot = await coordinator.read()
        except CoordinatorError:
            return None
        epoch = snapshot.state.epoch if snapshot.state is not None else 0
        self._learn(snapshot.version, epoch)
        self._calls.append(Operation(RegisterCall(epoch, epoch, True), called_at, now()))
        return snapshot

    async def compare_and_set(self, coordinator: Coordinator, version: int, now: Clock) -> int | None:
        """Set S, with an epoch that nobody else uses, against a version that somebody has seen."""
        state = ShardState(next(self._epochs), random.choice(MEMBERS), MEMBERS, 1)
        expected = self._epoch_of[version]
        called_at = now()
        try:
            new = await coordinator.compare_and_set(version, state)
        except CoordinatorError:
            self.unknown += 1
            self._calls.append(Operation(RegisterCall(expected, state.epoch, None), called_at))
            return None
        call = RegisterCall(expected, state.epoch, new is not None)
        self._calls.append(Operation(call, called_at, now()))
        if new is not None:
            self._learn(new, state.epoch)
        return new

    async def hold(self, coordinator: Coordinator, replica_id: str, now: Clock) -> str | None:
        """Take or renew L."""
        called_at = now()
        try:
            held = await coordinator.hold(self._ttl_s)
        except CoordinatorError:
            self.unknown += 1
            return None
        if held is not None:
            until = called_at + self._ttl_s - self._margin_s
            self._claims.append(LeaseClaim(replica_id, held, now(), until))
        return held

    async def release(self, coordinator: Coordinator, replica_id: str, acquisition: str, now: Clock) -> None:
        """Give L up; who does so trusts it no more from before the call."""
        for number, claim in enumerate(self._claims):
            if (claim.replica_id, claim.acquisition) == (replica_id, acquisition):
                self._claims[number] = claim._replace(until=min(claim.until, now()))
        try:
            await coordinator.release(acquisition)
        except CoordinatorError:
            self.unknown += 1

    def check(self) -> None:
        """Fail unless the calls are those of one register, and nobody claimed L while another one did."""
        assert is_linearizable(self._calls, 0, _step), "S was not one register"
        for earlier, later in pairwise(self._merged()):
            assert earlier.until < later.told_at, f"two hold L: {earlier} and {later}"

    @property
    def sets(self) -> int:
        """How often S was set, for sure."""
        return sum(bool(each.what.was_done) and each.what.expected != each.what.new for each in self._calls)

    def summary(self) -> str:
        """What was seen, for a test that must have seen enough."""
        owners = len(self._merged())
        return f"{len(self._calls)} calls, {self.sets} set, {self.unknown} unknown, {owners} acquisitions"

    def _merged(self) -> list[LeaseClaim]:
        """Claims of one acquisition as one, in the order of their beginnings."""
        merged: dict[tuple[str, str], LeaseClaim] = {}
        for claim in self._claims:
            known = merged.setdefault((claim.replica_id, claim.acquisition), claim)
            merged[claim.replica_id, claim.acquisition] = known._replace(until=max(claim.until, known.until))
        return sorted(merged.values(), key=lambda each: each.told_at)

    def _learn(self, version: int, epoch: int) -> None:
        known = self._epoch_of.setdefault(version, epoch)
        assert known == epoch, f"version {version} was of epoch {known}, and is of epoch {epoch}"


def _step(epoch: int, call: RegisterCall) -> int | Impossible:
    if call.was_done is False:
        return epoch if epoch != call.expected else IMPOSSIBLE
    return call.new if epoch == call.expected else IMPOSSIBLE
