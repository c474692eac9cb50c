"""The port to Kubernetes: S and L of a shard are one object of the kind Lease (`lease_object`).

S is changed with the object's resourceVersion, after its version was compared; a renewal of L that came in
between costs another attempt and is no answer. What a server has not answered is never sent again: that is
unknown.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections.abc import Callable
from typing import Final

from holdmq.coordination.api import ShardSnapshot, ShardState, is_replica_id
from holdmq.coordination.kubernetes_api import ConflictError, KubernetesAccess, LeaseApi
from holdmq.coordination.lease_object import (
    LeaseFields,
    LeaseObserver,
    held_by,
    holding_of,
    name_of,
    new_identity,
    new_lease,
    patch_of,
    released,
    replica_of,
    state_of,
    version_of,
    with_state,
)
from holdmq.errors import CoordinatorError, UsageError

_CONFLICT_PAUSE_S: Final = 0.02
"""Between attempts whose object somebody else has changed meanwhile, on average."""
_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 1.0
"""Between attempts to watch."""


class KubernetesCoordinator:
    """One replica's client of S and L of `shard` (`holdmq.coordination.api.Coordinator`).

    `timeout_s` bounds each call.
    """

    def __init__(
        self, access: KubernetesAccess, cluster: str, shard: str, replica_id: str, timeout_s: float
    ) -> None:
        if not is_replica_id(replica_id):
            raise UsageError(f"{replica_id!r} is no replica id")
        self._name = name_of(cluster, shard)
        self._owner = f"{cluster}/{shard}"
        self._api = LeaseApi(access, self._name)
        self._replica_id = replica_id
        self._timeout_s = timeout_s
        self._observer = LeaseObserver()
        self._held = ""
        """The acquisition that `hold` has told; "" = none, or it was lost."""
        self._attempted = ""
        """One that was asked for and never told: nobody knows whether the object has it."""

    async def read(self) -> ShardSnapshot:
        """Give S and L, from the API's store."""
        return self._snapshot(await self._get("read", self._until_s()))

    async def compare_and_set(self, version: int, state: ShardState) -> int | None:
        """Make S `state` if its version still is `version`; the new version, None = not done."""
        new = 0
        state.encode()

        def change(lease: LeaseFields) -> LeaseFields | None:
            nonlocal new
            if version_of(lease, self._owner) != version:
                return None
            changed, new = with_state(lease, version, state)
            return changed

        return new if await self._change("compare_and_set", change) else None

    async def hold(self, ttl_s: float) -> str | None:
        """Take or renew L for `ttl_s`, in whole seconds, rounded up; None = somebody else has it."""
        if ttl_s < 1:
            raise UsageError(f"a lease of {ttl_s:g} s: it has 1 s or more")

        identity = ""

        def change(lease: LeaseFields) -> LeaseFields | None:
            nonlocal identity
            version_of(lease, self._owner)
            identity = holding_of(lease).identity
            if not identity or identity not in (self._held, self._attempted):
                self._held = ""
                if self._holder():
                    return None
                identity = self._attempted = self._attempted or new_identity(self._replica_id)
            return held_by(lease, identity, ttl_s, dt.datetime.now(dt.UTC))

        if not await self._change("hold", change):
            return None
        self._held, self._attempted = identity, ""
        return identity

    async def release(self, acquisition: str) -> None:
        """Leave the object without a holder, if that still is this acquisition."""

        def change(lease: LeaseFields) -> LeaseFields | None:
            return released(lease) if holding_of(lease).identity == acquisition else None

        await self._change("release", change)
        if self._held == acquisition:
            self._held = ""

    async def changed(self, seen: ShardSnapshot, wait_s: float) -> ShardSnapshot:
        """Wait until version or holder are not those of `seen`, at most `wait_s`, and give what they are."""
        end_s = self._now_s() + wait_s
        pause_s = _PAUSE_MIN_S
        while self._now_s() < end_s:
            try:
                lease = await self._get("changed", self._until_s())
                snapshot = self._snapshot(lease)
                if _differ(snapshot, seen):
                    return snapshot
                if lease is not None and await self._watched(lease, seen, end_s):
                    continue
            except CoordinatorError:
                if self._api.is_closed:
                    raise
                # A moment: otherwise the read at the end says it.
            await asyncio.sleep(max(min(pause_s, end_s - self._now_s()), 0))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        return await self.read()

    async def close(self) -> None:
        """End connections; L stays until it expires."""
        await self._api.close()

    async def _watched(self, lease: LeaseFields, seen: ShardSnapshot, end_s: float) -> bool:
        """Watch the object until it seems to differ from `seen`, its holder is gone, or `end_s`.

        False = the watch ended by itself.
        """
        resource_version = str(lease["metadata"].get("resourceVersion", ""))
        wait_s = end_s - self._now_s()
        watch = await self._api.watch("changed", resource_version, wait_s, min(end_s, self._until_s()))
        try:
            while True:
                until_s = min(end_s, self._observer.ends_at_s()) if self._holder() else end_s
                try:
                    async with asyncio.timeout_at(until_s):
                        event = await watch.event()
                except TimeoutError:
                    return True
                if event is None:
                    return False
                self._observer.saw(holding_of(event), self._now_s())
                if _differ(self._snapshot(event), seen):
                    return True
        finally:
            watch.close()

    async def _change(self, operation: str, change: Callable[[LeaseFields], LeaseFields | None]) -> bool:
        """Change the object as `change` says, again if somebody did meanwhile. False = it says None."""
        until_s = self._until_s()
        while True:
            lease = await self._get(operation, until_s)
            changed = change(lease if lease is not None else new_lease(self._name, self._owner))
            if changed is None:
                return False
            try:
                if lease is None:
                    await self._api.create(operation, changed, until_s)
                else:
                    await self._api.patch(operation, patch_of(lease, changed), until_s)
            except ConflictError:
                if self._now_s() >= until_s:
                    raise CoordinatorError("others keep changing the object", operation=operation) from None
                await asyncio.sleep(random.random() * 2 * _CONFLICT_PAUSE_S)  # noqa: S311 # no secret
            else:
                self._observer.saw(holding_of(changed), self._now_s())
                return True

    async def _get(self, operation: str, until_s: float) -> LeaseFields | None:
        lease = await self._api.get(operation, until_s)
        self._observer.saw(holding_of(lease or {}), self._now_s())
        return lease

    def _snapshot(self, lease: LeaseFields | None) -> ShardSnapshot:
        if lease is None:
            return ShardSnapshot(None, 0, "")
        version, state = state_of(lease, self._owner)
        return ShardSnapshot(state, version, self._holder())

    def _holder(self) -> str:
        return replica_of(self._observer.holder(self._now_s()))

    def _until_s(self) -> float:
        return self._now_s() + self._timeout_s

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _differ(snapshot: ShardSnapshot, seen: ShardSnapshot) -> bool:
    return (snapshot.version, snapshot.holder) != (seen.version, seen.holder)
