"""The message store that the broker sees: one Protocol, and what travels through it.

Threads: every method whose docstring does not say "blocking" is called on the event loop and
never waits for a disk; every callback runs on the event loop.

What travels is written out as plain classes: mypyc compiles no dataclass that has a memoryview.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from holdmq.errors import StorageError
from holdmq.record.batch import (
    Hashes,
    Ints,
    starts_of,
)
from storage.api.lookups import (
    MessageIndex,
    TableStore,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

TAIL_READ_BYTES: Final = 8 << 20
"""What one `tail` call gives at most: more than any answer carries."""

_ONE_START: Final = np.zeros(1, np.int64)
_ONE_START.flags.writeable = False


class BatchRun:
    """The records of one queue inside a batch, in its order.

    `base_offset` (the first queue offset) and `hashes` (tag hashes, None = no record has a tag)
    are filled by `MessageStore.append`; `is_hashed`: the appender has filled in the hashes itself.
    """

    __slots__ = ("base_offset", "count", "hashes", "is_hashed", "key_levels", "queue_id", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        count: int,
        key_levels: int = 1,
        base_offset: int = -1,
        hashes: Hashes | None = None,
        is_hashed: bool = False,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.count = count
        self.key_levels = key_levels
        self.base_offset = base_offset
        self.hashes = hashes
        self.is_hashed = is_hashed


class Batch:
    """Contiguous records, as they lie (or will lie) in the log; it never straddles two segments.

    `records` must be writable until the batch is stamped, and belongs to the store from `append`
    on. `sizes` is int64, one per record. `has_keys` False: no record has a key or unique id.
    `position` is the log offset of the first byte and `store_ms` the store time of every record,
    once stamped.
    """

    __slots__ = ("_starts", "has_keys", "position", "records", "runs", "sizes", "store_ms")

    def __init__(
        self,
        records: memoryview,
        sizes: Ints,
        runs: list[BatchRun],
        position: int = -1,
        store_ms: int = 0,
        has_keys: bool = True,
    ) -> None:
        self.records = records
        self.sizes = sizes
        self.runs = runs
        self.position = position
        self.store_ms = store_ms
        self.has_keys = has_keys
        self._starts: Ints | None = None

    @property
    def starts(self) -> Ints:
        """Where every record begins in the batch. Made when it is first asked for: appending does not."""
        starts = self._starts
        if starts is None:
            starts = self._starts = starts_of(self.sizes) if len(self.sizes) != 1 else _ONE_START
        return starts

    def topics(self) -> set[str]:
        """The topics of its runs: mostly one."""
        return {run.topic for run in self.runs}

    @property
    def end(self) -> int:
        """The log offset behind the last byte."""
        return self.position + len(self.records)


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


class Backlog(NamedTuple):
    """What waits for the writer: bytes, and the age of the oldest in ms (0 = nothing waits)."""

    size_bytes: int
    oldest_ms: float


class StoreState(NamedTuple):
    """Whether the store takes records; if not, why and what to do."""

    ok: bool
    reason: str


Appended = Callable[[Batch, StorageError | None], None]
Confirmed = Callable[[list[Batch]], None]


class DelayedRecord(NamedTuple):
    """A message and its due time: `record` is what its topic and queue would get, unstamped."""

    record: bytes | memoryview
    due_ms: int


class MessageTimer(Protocol):
    """Messages that appear in their queues later."""

    def schedule(self, delayed: Sequence[DelayedRecord], done: Appended) -> None:
        """Store messages that appear in their queues when they are due, at once if that is past.

        `done` is called as by `MessageStore.append`: stored means that they will be released, once,
        whatever happens. Raises RecordError for a message that cannot wait.
        """


class MessageStore(Protocol):
    """One broker's messages: an append-only log and the queues in it.

    Messages of temporary topics (names that end in `#tmp`) are kept in memory only, in queues of their
    own; their batches have the position -1 and are not in `tail` and `read_log`.

    Positions are log offsets; (`epoch`, position) stays meaningful across restarts. Records are
    visible from confirmation on: written under async flush, on disk under sync flush.
    """

    @property
    def timer(self) -> MessageTimer:
        """Where messages wait that are delayed or retried."""

    @property
    def reader_pool(self) -> Executor:
        """Where blocking reads belong."""

    @property
    def store_id(self) -> bytes:
        """8 bytes, for ever the same: StoreHost of every record and half of every MessageId."""

    @property
    def epoch(self) -> int:
        """The log epoch: rises when a start may have taken back what readers saw."""

    @property
    def first_position(self) -> int:
        """The log offset of the oldest record that is kept."""

    @property
    def confirmed_position(self) -> int:
        """The log offset up to which records are visible."""

    def epoch_limit(self, epoch: int) -> int | None:
        """Where positions learnt in `epoch` end: what lay past it was taken back. None = no limit.

        0 is no claim about an epoch.
        """

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

    def tail(self, position: int, max_bytes: int = TAIL_READ_BYTES) -> Sequence[Batch] | None:
        """Visible batches from `position` on, until `max_bytes` is reached; None = not in memory.

        `position` is a batch's or a record's start, or the confirmed position (then empty). The
        first batch may begin before it.
        """

    def read_log(self, position: int, max_bytes: int) -> list[Batch]:
        """Blocking: read whole records from `position` on as batches; call it on a reader pool.

        At least one record, unless `position` is the confirmed one (then empty). The batches are as
        they were stamped, but for their bounds. Raises CorruptRecordError when nothing can be read
        at the position; its `resume_at` is the next record that is whole. Raises BehindError when
        retention has passed it; `resume_at` is then the log's first position.
        """

    @property
    def tables(self) -> TableStore | None:
        """The newest values by key of topics that are tables; None = this store keeps none."""

    @property
    def index(self) -> MessageIndex:
        """Searches by key, id and time, and backwards."""

    def backlog(self) -> Backlog:
        """What waits for the writer thread; the caller answers BUSY by it."""

    def state(self) -> StoreState:
        """Whether records are taken, for /readyz."""

    def numbers(self) -> Mapping[str, float]:
        """Counters (names end in _total) and gauges; called on any thread."""
