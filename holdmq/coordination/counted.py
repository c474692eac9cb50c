"""A coordinator's client whose calls are counted: without an answer, leases lost, the last renewal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from holdmq.coordination.api import Coordinator, ShardSnapshot, ShardState
from holdmq.errors import CoordinatorError

T = TypeVar("T")

HELP: Final = {
    "calls_total": "Calls to the coordinator; a watch that ends with its time is one.",
    "calls_unanswered_total": "Calls without an answer in time: etcd or the Kubernetes API is away or slow.",
    "outcomes_unknown_total": "Of these, changes of state or lease that may have been made, or yet be.",
    "leases_lost_total": "Times that the lease of the lead ended before it was given up.",
    "renewal_age_seconds": "Since the last call that renewed the lease was sent, while it is held.",
}
"""Behind holdmq_coordination_, of a replica."""


class CountedCoordinator:
    """Passes calls on to `real` (`holdmq.coordination.api.Coordinator`) and counts what comes of them.

    `clock` gives seconds and never goes back. Its numbers may be read on any thread.
    """

    def __init__(self, real: Coordinator, clock: Callable[[], float]) -> None:
        self._real = real
        self._clock = clock
        self._calls = self._unanswered = self._unknown = self._lost = 0
        self._acquisition = ""
        self._renewed_at: float | None = None

    def numbers(self) -> Mapping[str, int | float]:
        """Give gauges and counters (names end in `_total`)."""
        found: dict[str, int | float] = {
            "calls_total": self._calls,
            "calls_unanswered_total": self._unanswered,
            "outcomes_unknown_total": self._unknown,
            "leases_lost_total": self._lost,
        }
        renewed_at = self._renewed_at
        if renewed_at is not None:
            found["renewal_age_seconds"] = max(0.0, self._clock() - renewed_at)
        return found

    async def read(self) -> ShardSnapshot:
        return await self._counted(self._real.read(), is_change=False)

    async def compare_and_set(self, version: int, state: ShardState) -> int | None:
        return await self._counted(self._real.compare_and_set(version, state), is_change=True)

    async def hold(self, ttl_s: float) -> str | None:
        sent_at = self._clock()
        acquisition = await self._counted(self._real.hold(ttl_s), is_change=True)
        if self._acquisition and acquisition != self._acquisition:
            self._lost += 1
        self._acquisition = acquisition or ""
        self._renewed_at = None if acquisition is None else sent_at
        return acquisition

    async def release(self, acquisition: str) -> None:
        # Whether or not it is answered, this replica trusts the lease no more.
        if acquisition == self._acquisition:
            self._acquisition = ""
            self._renewed_at = None
        await self._counted(self._real.release(acquisition), is_change=True)

    async def changed(self, seen: ShardSnapshot, wait_s: float) -> ShardSnapshot:
        return await self._counted(self._real.changed(seen, wait_s), is_change=False)

    async def close(self) -> None:
        await self._real.close()

    async def _counted(self, call: Awaitable[T], *, is_change: bool) -> T:
        self._calls += 1
        try:
            return await call
        except CoordinatorError:
            self._unanswered += 1
            self._unknown += is_change
            raise
