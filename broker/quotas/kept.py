"""How much of the log tenants keep: looked at every few seconds while a quota limits it, on the reader pool.

No counter has it, which would have to be kept through retention and restarts: what a queue keeps is its
number of messages times their mean size, of some at both of its ends. So it is an estimate, which a start
makes anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol

import structlog

from broker.kernel.table_pages import read_on_pool
from holdmq.errors import HoldMQError
from storage.api.queues import QueueRead

LOOK_S: Final = 5.0
"""Between two looks: how long a tenant may go on beyond what it may keep."""
SAMPLE_BYTES: Final = 64 << 10
SAMPLE_RECORDS: Final = 100
"""Read at each end of a queue: what a read of the disk brings anyway."""
QUEUES_PER_LOOK: Final = 2_000
"""Queues looked at by one read of the pool: a second or less; more wait for the next look."""

log = structlog.get_logger("holdmq.broker")


class ReadableQueues(Protocol):
    """What is needed of the store."""

    @property
    def reader_pool(self) -> Executor:
        """Where blocking reads belong."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First offset and next confirmed offset of a queue. Any thread."""

    def read_queue_cold(
        self, topic: str, queue_id: int, epoch: int, offset: int, max_bytes: int, max_count: int
    ) -> QueueRead:
        """Blocking: read a queue from disk."""


class TenantQueue(NamedTuple):
    """A queue, and whose it is."""

    tenant: str
    topic: str
    queue_id: int


class KeptBytes:
    """What tenants keep at this broker, as far as it was asked for; `queues` gives those to look at."""

    def __init__(self, store: ReadableQueues, queues: Callable[[], Sequence[TenantQueue]]) -> None:
        self.looks = 0
        self._store = store
        self._queues = queues
        self._of: dict[TenantQueue, int] = {}
        self._sums: dict[str, int] = {}
        self._next = 0
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False

    def of(self, tenant: str) -> int:
        """Bytes that a tenant keeps, as they were a few seconds ago."""
        return self._sums.get(tenant, 0)

    def look(self) -> None:
        """Look now, and again every LOOK_S, as long as there are queues to look at."""
        if self._is_looking or self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queues = list(self._queues())
        if not queues:
            self._of.clear()
            self._sums.clear()
            return
        if self._next >= len(queues):
            self._next = 0
        chosen = queues[self._next : self._next + QUEUES_PER_LOOK]
        self._next += QUEUES_PER_LOOK
        self._is_looking = True
        read_on_pool(
            self._store.reader_pool,
            lambda: [(queue, self._size_of(queue)) for queue in chosen],
            lambda found: self._looked(queues, found),
        )

    def close(self) -> None:
        """Look at no queue any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _looked(
        self, queues: Sequence[TenantQueue], found: list[tuple[TenantQueue, int]] | HoldMQError
    ) -> None:
        self._is_looking = False
        if self._is_closed:
            return
        self.looks += 1
        if isinstance(found, HoldMQError):
            log.warning("what tenants keep was not found out; trying again", reason=str(found))
        else:
            self._of.update(found)
            known: Mapping[TenantQueue, int] = self._of
            self._of = {queue: known[queue] for queue in queues if queue in known}
            self._sums = {}
            for queue, size in self._of.items():
                self._sums[queue.tenant] = self._sums.get(queue.tenant, 0) + size
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look)

    def _size_of(self, queue: TenantQueue) -> int:
        """On the reader pool."""
        _, topic, queue_id = queue
        first, end = self._store.bounds(topic, queue_id)
        if end <= first:
            return 0
        count = size_bytes = 0
        for offset in {first, max(first, end - SAMPLE_RECORDS)}:
            read = self._store.read_queue_cold(topic, queue_id, 0, offset, SAMPLE_BYTES, SAMPLE_RECORDS)
            count += read.count
            size_bytes += read.size_bytes
        return (end - first) * size_bytes // count if count else 0
