"""A coordinator without processes or clocks: for simulations, and for tests of what uses one.

`MemoryRegister` is one shard's S and L with time as an argument. `MemoryShard` puts the port around it, with
a time that stands still until somebody moves it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from holdmq.coordination.api import ShardSnapshot, ShardState, is_replica_id
from holdmq.errors import CoordinatorError, UsageError


class MemoryRegister:
    """S and L of one shard, without waiting; `now_s` are seconds of any clock that never goes back.

    Versions rise with each change of S or L, as etcd's do: they are no epochs.
    """

    __slots__ = ("_acquisition", "_ends_at_s", "_holder", "_raw", "_version", "revision")

    def __init__(self) -> None:
        self._raw = b""
        self._version = 0
        self._holder = ""
        self._acquisition = ""
        self._ends_at_s = 0.0
        self.revision = 0
        """Changes of S and L so far."""

    def read(self, now_s: float) -> ShardSnapshot:
        """Give what both are now."""
        self._expire(now_s)
        state = ShardState.decode(self._raw) if self._version else None
        return ShardSnapshot(state, self._version, self._holder)

    def compare_and_set(self, version: int, state: ShardState) -> int | None:
        """Make S `state` if its version is `version` (0: if there is none); the new one, None = not done."""
        raw = state.encode()
        if version != self._version:
            return None
        self.put_raw(raw)
        return self._version

    def put_raw(self, raw: bytes) -> None:
        """Write `raw` as S, whatever it is, as somebody with access to the coordinator may."""
        self.revision += 1
        self._raw, self._version = raw, self.revision

    def hold(self, replica_id: str, acquisition: str, ttl_s: float, now_s: float) -> str | None:
        """Take or renew L: `acquisition` is the last one that this replica was given, "" = none.

        Returns the acquisition, None = somebody else, or the replica by another acquisition, has L.
        """
        self._expire(now_s)
        if self._holder and acquisition != self._acquisition:
            return None
        if not self._holder:
            self.revision += 1
            self._holder, self._acquisition = replica_id, f"{replica_id}/{self.revision}"
        self._ends_at_s = now_s + ttl_s
        return self._acquisition

    def release(self, acquisition: str, now_s: float) -> None:
        """Give L up, if it is this acquisition."""
        self._expire(now_s)
        if self._holder and acquisition == self._acquisition:
            self._give_up()

    def ends_at_s(self) -> float | None:
        """When L ends unless it is renewed; None = nobody holds it."""
        return self._ends_at_s if self._holder else None

    def wipe(self) -> None:
        """Lose S and L, as a coordinator whose disks were emptied."""
        self.revision += 1
        self._raw, self._version = b"", 0
        self._holder = self._acquisition = ""

    def _expire(self, now_s: float) -> None:
        if self._holder and now_s >= self._ends_at_s:
            self._give_up()

    def _give_up(self) -> None:
        self.revision += 1
        self._holder = self._acquisition = ""


class MemoryShard:
    """One register, a time of its own, and a client of it for each replica."""

    def __init__(self) -> None:
        self.register: Final = MemoryRegister()
        self.now_s = 0.0
        self._waiters: set[asyncio.Future[None]] = set()

    def coordinator(self, replica_id: str) -> MemoryCoordinator:
        """A new client, as a new process of this replica would have it."""
        if not is_replica_id(replica_id):
            raise UsageError(f"{replica_id!r} is no replica id")
        return MemoryCoordinator(self, replica_id)

    def advance(self, by_s: float) -> None:
        """Let time pass; whoever waits for a change or a time looks again."""
        self.now_s += by_s
        self.notify()

    def notify(self) -> None:
        """Have all that wait look again: something has changed."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def event(self) -> None:
        """Wait for the next change or move of time."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


class MemoryCoordinator:
    """The port (`holdmq.coordination.api.Coordinator`) to a `MemoryShard`; only `changed` waits."""

    def __init__(self, shard: MemoryShard, replica_id: str) -> None:
        self._shard = shard
        self._replica_id = replica_id
        self._acquisition = ""
        self._is_closed = False

    async def read(self) -> ShardSnapshot:
        """Give S and L as they are."""
        self._begin("read")
        return self._shard.register.read(self._shard.now_s)

    async def compare_and_set(self, version: int, state: ShardState) -> int | None:
        """Make S `state` if its version still is `version`; the new version, None = not done."""
        self._begin("compare_and_set")
        new = self._shard.register.compare_and_set(version, state)
        self._shard.notify()
        return new

    async def hold(self, ttl_s: float) -> str | None:
        """Take or renew L for `ttl_s`; the acquisition, None = somebody else has it."""
        self._begin("hold")
        shard = self._shard
        held = shard.register.hold(self._replica_id, self._acquisition, ttl_s, shard.now_s)
        self._acquisition = held or ""
        shard.notify()
        return held

    async def release(self, acquisition: str) -> None:
        """Give L up, if it is this acquisition."""
        self._begin("release")
        self._shard.register.release(acquisition, self._shard.now_s)
        self._shard.notify()

    async def changed(self, seen: ShardSnapshot, wait_s: float) -> ShardSnapshot:
        """Wait until version or holder are not those of `seen`, at most `wait_s` of the shard's time."""
        until_s = self._shard.now_s + wait_s
        while True:
            self._begin("changed")
            snapshot = self._shard.register.read(self._shard.now_s)
            if (snapshot.version, snapshot.holder) != (seen.version, seen.holder):
                return snapshot
            if self._shard.now_s >= until_s:
                return snapshot
            await self._shard.event()

    async def close(self) -> None:
        """Refuse all calls from now on, those that wait among them."""
        self._is_closed = True
        self._shard.notify()

    def _begin(self, operation: str) -> None:
        if self._is_closed:
            raise CoordinatorError("this client is closed", operation=operation)
