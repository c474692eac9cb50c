"""Queues of messages: how they are appended to, read and given up.

Threads: every method whose docstring does not say "blocking" is called on the event loop and never waits for
a disk; every callback runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from holdmq.errors import StorageError
from holdmq.record.batch import Hashes
from storage.api.batches import Appended, Batch, Confirmed

if TYPE_CHECKING:
    from concurrent.futures import Executor


class ReadStatus(IntEnum):
    """How a read ended."""

    FOUND = 0
    """Records, or at least progress past entries that the filter rejected."""
    AT_END = 1
    """Nothing yet: the offset is exactly the end."""
    AHEAD = 2
    """The offset is past the end; `next_offset` is where to continue."""
    BEHIND = 3
    """Retention passed the offset; `next_offset` is where to continue."""
    CORRUPT = 4
    """The record at the offset is damaged (`reason`: path and offset); `next_offset` is behind it."""


class HashFilter:
    """Tag hashes that a reader wants: whole ones, and high halves for prefix filters.

    `exact` are 64-bit hashes (0 = messages without a tag), `prefixes` high halves (32 bits each).
    What passes may still not match: readers test again.
    """

    __slots__ = ("_exact", "_prefixes", "passes_untagged")

    def __init__(self, exact: Collection[int] = (), prefixes: Collection[int] = ()) -> None:
        self._exact: Hashes = np.unique(np.array(list(exact), np.uint64))
        self._prefixes: Hashes = np.unique(np.array(list(prefixes), np.uint64))
        self.passes_untagged = 0 in exact or 0 in prefixes

    def mask(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """True for every hash that may match."""
        passed: npt.NDArray[np.bool_] = _contains(self._exact, hashes)
        if len(self._prefixes):
            passed |= _contains(self._prefixes, hashes >> np.uint64(32))
        return passed

    def ranges(self) -> list[tuple[int, int]]:
        """The wanted hashes as (lowest, highest), both included."""
        exact = [(value, value) for value in self._exact.tolist()]
        return exact + [(value << 32, value << 32 | 0xFFFFFFFF) for value in self._prefixes.tolist()]


def _contains(wanted: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    if not len(wanted):
        return np.zeros(len(hashes), np.bool_)
    if len(wanted) == 1:
        same: npt.NDArray[np.bool_] = hashes == wanted[0]
        return same
    at = np.searchsorted(wanted, hashes)
    at[at == len(wanted)] = 0
    found: npt.NDArray[np.bool_] = np.equal(wanted[at], hashes)
    return found


class QueueRead:
    """Records of one queue: `parts` are views of one or several whole records, in order.

    `next_offset` is where the reader continues: past what the filter rejected, too. FOUND with
    no records is such progress, and not yet the end. `first_offset` and `end_offset` are the
    queue's bounds at that moment.
    """

    __slots__ = (
        "count",
        "end_offset",
        "first_offset",
        "next_offset",
        "parts",
        "reason",
        "size_bytes",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        status: ReadStatus,
        next_offset: int,
        first_offset: int,
        end_offset: int,
        parts: list[memoryview] | None = None,
        count: int = 0,
        size_bytes: int = 0,
        reason: str = "",
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.first_offset = first_offset
        self.end_offset = end_offset
        self.parts: list[memoryview] = [] if parts is None else parts
        self.count = count
        self.size_bytes = size_bytes
        self.reason = reason


class MessageQueues(Protocol):
    """The queues of one broker.

    Messages of temporary topics (names that end in `#tmp`) are kept in memory only, in queues of their
    own; their batches have the position -1.

    Records are visible from confirmation on: written under async flush, on disk under sync flush.
    """

    @property
    def reader_pool(self) -> Executor:
        """Where blocking reads belong."""

    @property
    def epoch(self) -> int:
        """The log epoch: rises when a start may have taken back what readers saw."""

    def append(self, batch: Batch, done: Appended) -> None:
        """Stamp a batch, in the order of calls, and queue it for the writer.

        The records must have passed `holdmq.record.batch.check_entries`. `done` is called once,
        later: with None when the batch is confirmed, else with the error and nothing of it
        stored. Batches are confirmed and refused in order; after a refusal offsets go on from
        the last confirmed one.
        """

    def subscribe(self, confirmed: Confirmed) -> None:
        """Call `confirmed` with every group of batches that became visible, before their `done`s."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First offset and next confirmed offset of a queue; (0, 0) if it was never written. Any thread."""

    def read_queue(
        self,
        topic: str,
        queue_id: int,
        epoch: int,
        offset: int,
        max_bytes: int,
        max_count: int,
        wanted: HashFilter | None = None,
    ) -> QueueRead | None:
        """Read a queue from memory; None = it is not in memory: call `read_queue_cold`.

        `epoch` is the log epoch in which `offset` was learnt; 0 = no claim. At least one record is
        given, whatever its size; no filter = everything.
        """

    def read_queue_cold(
        self,
        topic: str,
        queue_id: int,
        epoch: int,
        offset: int,
        max_bytes: int,
        max_count: int,
        wanted: HashFilter | None = None,
    ) -> QueueRead:
        """Blocking: read a queue from disk; call it on a reader pool. Otherwise as `read_queue`."""


class DeletableQueues(Protocol):
    """Gives up what queues hold."""

    def is_being_written(self, topic: str, queue_id: int) -> bool:
        """Whether records of the queue are on their way and not confirmed."""

    def delete_queue(self, topic: str, queue_id: int, done: Callable[[StorageError | None], None]) -> None:
        """Give up everything that a queue holds; `done` is called once, when that is durable.

        Readers see it empty at once. The queue goes on at its next offset if it is written again: what
        readers remember of it never means another message. The caller has stopped its producers; with
        a StorageError (the queue is being written, or the store is not open) nothing has happened.
        """


class TemporaryQueues(Protocol):
    """Queues in memory of topics that live no longer than their subscribers."""

    def add(self, topic: str) -> None:
        """Make a topic temporary whose name does not say so; before its first record."""

    def remove(self, topic: str) -> None:
        """Forget a topic and its messages: its last subscriber left, or it was deleted."""
