"""The shards of the cluster and their replicas, as they say themselves.

A broker says where the replicas of its shard are, and each replica what it has and does. Where they are is
remembered: a shard that nobody leads has no broker that could say it, and is what people look for then.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from holdmq.client.admin import Admin
from holdmq.client.replicas import ShardReplicas, ShardView
from holdmq.errors import HoldMQError
from holdmq.rpc.security import Security

FRESH_S: Final = 0.9
"""An answer may be this old: less than the time between two looks of a page."""
SHARDS_MAX: Final = 1000
"""Shards whose replicas are remembered, more than a cluster has brokers; beyond it the oldest go."""


class ShardsNow(NamedTuple):
    """Every shard that is known, by name; without replicas it has one copy. `notice` says what is missing."""

    shards: list[ShardView]
    notice: str


class Shards:
    """Asks the brokers that `admin` knows, and their replicas, at most once per `FRESH_S`."""

    def __init__(self, admin: Admin, client_id: str, security: Security | None) -> None:
        self._admin = admin
        self._client_id = client_id
        self._security = security
        self._turn = asyncio.Lock()
        self._asked_at = -FRESH_S
        self._now = ShardsNow([], "")
        self._known: dict[str, dict[str, str]] = {}

    async def now(self) -> ShardsNow:
        """Return all shards. A broker or replica that does not answer is said, and raises nothing."""
        async with self._turn:
            if time.monotonic() - self._asked_at >= FRESH_S:
                self._now = await self._ask()
                self._asked_at = time.monotonic()
            return self._now

    def forget(self) -> None:
        """Ask anew when somebody asks next: something was changed."""
        self._asked_at = -FRESH_S

    async def replicas_of(self, broker: str) -> ShardReplicas | None:
        """Return the replicas of a shard, none in it = it has one copy; None = there is no such broker."""
        if broker not in self._known:
            await self.now()
        addresses = self._known.get(broker)
        return None if addresses is None else self._replicas(broker, addresses)

    async def _ask(self) -> ShardsNow:
        notice = await self._learn()
        shards = sorted(self._known.items())
        views = await asyncio.gather(*(self._replicas(*shard).view() for shard in shards))
        return ShardsNow(list(views), notice)

    async def _learn(self) -> str:
        """Ask the brokers where replicas are; what could not be asked, as a sentence."""
        try:
            answers = await self._admin.replicas()
        except HoldMQError as error:
            return f"the brokers cannot be asked: {error}"
        failed: dict[str, HoldMQError] = {}
        for broker, found in answers.items():
            if isinstance(found, HoldMQError):
                failed[broker] = found
            else:
                self._known.pop(broker, None)
                self._known[broker] = found
        while len(self._known) > SHARDS_MAX:
            del self._known[next(iter(self._known))]
        if not failed:
            return ""
        return f"{', '.join(sorted(failed))} cannot be asked: {failed[min(failed)]}"

    def _replicas(self, broker: str, addresses: dict[str, str]) -> ShardReplicas:
        return ShardReplicas(broker, addresses, self._client_id, "console", self._security)
