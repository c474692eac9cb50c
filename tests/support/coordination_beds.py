"""What the conformance suite of `holdmq.coordination` runs on: a shard at some coordinator, and its time."""

from __future__ import annotations

from typing import Protocol

from holdmq.coordination.api import Coordinator
from holdmq.coordination.memory import MemoryShard


class Bed(Protocol):
    """One shard that nobody has used.

    `ttl_s` is the shortest lease that a test can wait for, `settle_s` the real time until a call that was
    begun has come to where it waits.
    """

    ttl_s: float
    settle_s: float

    def coordinator(self, replica_id: str) -> Coordinator:
        """A new client, as a new process of this replica would have; closed with the bed."""
        ...

    async def pass_time(self, by_s: float) -> None:
        """Wait."""
        ...

    async def put_raw(self, text: str) -> None:
        """Write `text` where S is, as somebody who does not know better."""
        ...


class MemoryBed:
    """A shard in memory, whose time the test moves."""

    ttl_s = 9.0
    settle_s = 0.01

    def __init__(self) -> None:
        self.shard = MemoryShard()

    def coordinator(self, replica_id: str) -> Coordinator:
        return self.shard.coordinator(replica_id)

    async def pass_time(self, by_s: float) -> None:
        self.shard.advance(by_s)

    async def put_raw(self, text: str) -> None:
        self.shard.register.put_raw(text.encode())
