"""What the log says of producers' windows: the records of `%PRODUCED%`, and what a start makes of them.

A window's records need nothing of their own in the log to be known again: a record has a *mark* (field 14,
PreparedTransactionOffset, where SysFlag says of no transaction), the same in all that one producer process
makes, 0 where nobody set one. Records with a mark are counted. The body of a `%PRODUCED%` record is
msgpack::

    [log epoch, bytes of the other records of its append, [row, …]]
    [0, producer id, epoch, topic, queue id, first sequence, mark]     a binding
    [1, producer id, epoch, topic, queue id, first sequence, count]    a delayed run

A binding: records with this mark in this queue are, from here on, this producer's, from this sequence on. It
is written in front of what it first holds for, in one append with it, and only where what was written before
does not say the same: for a new window or epoch, after a final refusal (whose sequences are missing), and
when another one's records with the same mark came between. A delayed run is stored elsewhere (`%TIMER`), so
it is said of each; its records are the next ones there within the append.

The snapshot has the windows as of a log position, or later; `ProducedReplay` takes no record twice.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from broker.produce.core.sequences import (
    CRC_BYTES,
    RECOVERED_RECORDS_MAX,
    WINDOW_BATCHES,
    Key,
    Mark,
    ProducerWindow,
    SequencedBatch,
    Sequences,
)
from holdmq.errors import RecordError, WireError
from holdmq.names.topics import PRODUCED_TOPIC
from holdmq.record.batch import Ints
from holdmq.record.codec import (
    CRC_AT,
    IPV6_EXTRA,
    MARK_AT,
    SYS_BORN_IPV6,
    SYS_FLAG_AT,
    decode_record,
    encode_record,
)
from holdmq.wire.untrusted import unpack
from storage.api.batches import Batch
from storage.api.timer import TIMER_TOPIC

PRODUCED_QUEUE: Final = 0
_TOPIC: Final = PRODUCED_TOPIC.encode()
_BINDING: Final = 0
_DELAYED: Final = 1
_CRC: Final = np.dtype("V4")
_MARK: Final = np.dtype(">i8")

LimitOf = Callable[[int], int | None]
"""Tells where a log epoch was cut, as `LogOrder.epoch_limit` does."""


class ProducedRow(NamedTuple):
    """A row of `%PRODUCED%`; `value` is a binding's mark, or how many records a delayed run has."""

    kind: int
    producer_id: int
    epoch: int
    topic: str
    queue_id: int
    first: int
    value: int

    @property
    def key(self) -> Key:
        """The window that it is about."""
        return (self.producer_id, self.topic, self.queue_id)

    @property
    def is_binding(self) -> bool:
        """Whether it says whose records with a mark are."""
        return self.kind == _BINDING


def binding(key: Key, epoch: int, first: int, mark: int) -> ProducedRow:
    """The row of a binding."""
    return ProducedRow(_BINDING, key[0], epoch, key[1], key[2], first, mark)


def delayed_run(key: Key, epoch: int, first: int, count: int) -> ProducedRow:
    """The row of a run that waits in `%TIMER`."""
    return ProducedRow(_DELAYED, key[0], epoch, key[1], key[2], first, count)


def record_of(rows: Sequence[ProducedRow], log_epoch: int, size_bytes: int, now_ms: int) -> bytes:
    """The record that goes in front of `size_bytes` of others in one append; not yet stamped."""
    return encode_record(_TOPIC, PRODUCED_QUEUE, msgpack.packb([log_epoch, size_bytes, rows]), b"", now_ms)


def mark_of(record: memoryview) -> int:
    """The mark of the well-formed record that the buffer begins with."""
    at = MARK_AT + (IPV6_EXTRA if record[SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0)
    return int.from_bytes(record[at : at + 8], "big", signed=True)


def crcs_of(records: memoryview, starts: Ints) -> bytes:
    """The BodyCRCs of well-formed records, 4 bytes each."""
    raw = np.frombuffer(records, np.uint8)
    view: npt.NDArray[np.void] = np.ndarray((len(raw) - 3,), _CRC, raw, strides=(1,))
    return view[starts + CRC_AT].tobytes()


def _marks_of(records: memoryview, starts: Ints) -> npt.NDArray[np.int64]:
    raw = np.frombuffer(records, np.uint8)
    at = starts + MARK_AT
    longer = raw[starts + (SYS_FLAG_AT + 3)] & SYS_BORN_IPV6
    if longer.any():
        at = at + np.where(longer != 0, IPV6_EXTRA, 0)
    view: npt.NDArray[np.generic] = np.ndarray((len(raw) - 7,), _MARK, raw, strides=(1,))
    return view[at].astype(np.int64)


class _Known:
    """A window as far as it is known; records of its queue below offset `end` are counted.

    `begins`: the next record's sequence, by a binding. Not before: a crash may have come between them.
    """

    __slots__ = ("begins", "end", "recovered", "window")

    def __init__(self, window: ProducerWindow) -> None:
        self.window = window
        self.begins = -1
        self.end = 0
        self.recovered = 0

    def take(self, offset: int, crcs: bytes) -> None:
        """Records from this queue offset on are the window's next ones."""
        gone = max(0, self.end - offset)
        records = len(crcs) // CRC_BYTES - gone
        if records <= 0:
            return
        offset, crcs = offset + gone, crcs[gone * CRC_BYTES :]
        window = self.window
        window.next = max(window.next, self.begins)
        self.begins = -1
        last = window.batches[-1] if window.batches else None
        if (
            last is not None
            and last.crcs
            and last.first + last.records == window.next
            and last.base_offset + last.records == offset
        ):
            last.records += records
            last.crcs += crcs
        else:
            window.batches.append(SequencedBatch.stored(window.next, records, offset, crcs))
        window.next += records
        self.end = offset + records
        self.recovered += records
        self._bound()

    def add(self, batch: SequencedBatch) -> None:
        """Take a run; what follows it in the same append may have been counted before it."""
        window = self.window
        window.batches = deque(sorted([*window.batches, batch], key=lambda known: known.first))
        window.next = max(window.next, batch.first + batch.records)
        self._bound()

    def _bound(self) -> None:
        batches = self.window.batches
        while len(batches) > WINDOW_BATCHES or (self.recovered > RECOVERED_RECORDS_MAX and len(batches) > 1):
            self.recovered -= len(batches.popleft().crcs) // CRC_BYTES
        if self.recovered > RECOVERED_RECORDS_MAX:
            # Nobody resends as much: the oldest of one long stretch go.
            only = batches[0]
            gone = self.recovered - RECOVERED_RECORDS_MAX
            only.first, only.base_offset = only.first + gone, only.base_offset + gone
            only.records, only.crcs = only.records - gone, only.crcs[gone * CRC_BYTES :]
            self.recovered -= gone


class _DelayedRun:
    """A delayed run whose records in `%TIMER` come next, below the log position `end`."""

    __slots__ = ("count", "end", "found", "known", "row")

    def __init__(self, row: ProducedRow, known: _Known, end: int) -> None:
        self.row = row
        self.known = known
        self.end = end
        self.count = row.value
        self.found = 0


class ProducedReplay:
    """The windows as snapshot and log say them. `limit_of` tells where a log epoch was cut."""

    def __init__(self, limit_of: LimitOf) -> None:
        self.rows = 0
        self._limit_of = limit_of
        self._known: dict[Key, _Known] = {}
        self._owners: dict[Mark, Key] = {}
        self._queues: dict[tuple[str, int], int] = {}
        self._waiting: deque[_DelayedRun] = deque()

    # The snapshot

    def load(self, content: Any, position: int) -> None:
        """Take a snapshot's windows; the log is applied from `position` on. RecordError if they are none."""
        try:
            for number in sorted(content):
                self._load_window(content[number], position)
        except (TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"the snapshot of producers' windows is malformed: {error}") from None

    def _load_window(self, entry: Any, position: int) -> None:
        producer_id, topic, queue_id, epoch, following, mark, bound_at, batches = entry
        key = (int(producer_id), str(topic), int(queue_id))
        window = ProducerWindow(int(epoch), int(following), 0.0)
        known = self._known[key] = _Known(window)
        for first, records, base_offset, is_torn, crcs in batches:
            batch = SequencedBatch.stored(int(first), int(records), int(base_offset), b64decode(crcs))
            batch.is_torn = bool(is_torn)
            window.batches.append(batch)
            known.recovered += len(batch.crcs) // CRC_BYTES
            known.end = max(known.end, batch.base_offset + batch.records if base_offset >= 0 else 0)
        if 0 <= bound_at < position:
            # Later ones are in what is read of the log.
            owned = (key[1], key[2], int(mark))
            owner = self._owners.get(owned)
            if owner is None or self._known[owner].window.bound_at < bound_at:
                self._own(owned, key, int(bound_at))

    def forget_bindings(self) -> None:
        """A part of the log cannot be read: what follows it is counted from new bindings on only."""
        self._owners.clear()
        self._queues.clear()
        self._waiting.clear()

    # The log

    def apply(self, batch: Batch) -> None:
        """Take the next records of the log."""
        first = 0
        marks: npt.NDArray[np.int64] | None = None
        for run in batch.runs:
            last = first + run.count
            if run.topic == PRODUCED_TOPIC:
                for index in range(first, last):
                    begin = int(batch.starts[index])
                    self._take_rows(batch.records[begin:], batch.position + begin)
            elif run.topic == TIMER_TOPIC:
                if self._waiting:
                    self._take_waiting(batch.position + batch.starts[first:last])
            elif (run.topic, run.queue_id) in self._queues:
                if marks is None:
                    marks = _marks_of(batch.records, batch.starts)
                crcs = crcs_of(batch.records, batch.starts[first:last])
                self._count(run.topic, run.queue_id, run.base_offset, marks[first:last], crcs)
            first = last

    def _count(
        self, topic: str, queue_id: int, offset: int, marks: npt.NDArray[np.int64], crcs: bytes
    ) -> None:
        """Give records of one queue to whose they are, stretch by stretch of one mark."""
        bounds = [0, *(np.flatnonzero(marks[1:] != marks[:-1]) + 1).tolist(), len(marks)]
        for first, last in pairwise(bounds):
            owner = self._owners.get((topic, queue_id, int(marks[first])))
            if owner is not None:
                self._known[owner].take(offset + first, crcs[first * CRC_BYTES : last * CRC_BYTES])

    def _take_rows(self, record: memoryview, position: int) -> None:
        decoded = decode_record(record)
        try:
            log_epoch, size_bytes, rows = unpack(decoded.body, "it")
            rows = [ProducedRow._make(row) for row in rows]
        except (WireError, ValueError, TypeError) as error:
            raise RecordError(f"a record of {PRODUCED_TOPIC} is malformed: {error}") from None
        self._end_waiting()
        end = position + decoded.total_size + size_bytes
        limit = self._limit_of(log_epoch)
        for row in rows:
            self.rows += 1
            known = self._at(row)
            if row.kind == _BINDING:
                owned = (row.topic, row.queue_id, row.value)
                if known is None:
                    self._owners.pop(owned, None)
                else:
                    known.begins = row.first
                    self._own(owned, row.key, position)
            elif row.kind == _DELAYED and known is not None:
                self._waiting.append(_DelayedRun(row, known, end if limit is None else min(end, limit)))

    def _at(self, row: ProducedRow) -> _Known | None:
        """The row's window, brought to where the row begins; None = it is of an older epoch."""
        known = self._known.pop(row.key, None)
        if known is None:
            known = _Known(ProducerWindow(row.epoch, row.first, 0.0))
        self._known[row.key] = known
        window = known.window
        if row.epoch < window.epoch:
            return None
        if row.epoch > window.epoch:
            window.epoch, window.next = row.epoch, row.first
            window.batches.clear()
            known.recovered = 0
        return known

    def _own(self, owned: Mark, key: Key, position: int) -> None:
        window = self._known[key].window
        window.mark = window.bound_mark = owned[2]
        window.bound_at = position
        self._owners[owned] = key
        self._queues[owned[:2]] = 1

    def _take_waiting(self, positions: Ints) -> None:
        for position in positions.tolist():
            while self._waiting and (position >= self._waiting[0].end or not self._waiting[0].count):
                self._end_first()
            if not self._waiting:
                return
            self._waiting[0].found += 1
            self._waiting[0].count -= 1

    def _end_waiting(self) -> None:
        while self._waiting:
            self._end_first()

    def _end_first(self) -> None:
        waiting = self._waiting.popleft()
        row, window = waiting.row, waiting.known.window
        if not waiting.found or row.epoch != window.epoch:
            return
        if any(batch.first <= row.first < batch.first + batch.records for batch in window.batches):
            return  # the snapshot has it
        batch = SequencedBatch.stored(row.first, waiting.found, -1)
        batch.is_torn = waiting.count > 0
        waiting.known.add(batch)

    # The result

    def restore(self, sequences: Sequences, now: float) -> None:
        """Give the windows to `sequences`, as they go on."""
        self._end_waiting()
        for key, known in self._known.items():
            window = known.window
            mark = window.mark
            is_owner = mark is not None and self._owners.get((key[1], key[2], mark)) == key
            window.is_bound = is_owner and known.begins <= window.next
            window.used_at = now
            sequences.restore(key, window)


class Captured(NamedTuple):
    """A window for a snapshot; its batches are confirmed and do not change any more."""

    key: Key
    epoch: int
    following: int
    mark: int
    bound_at: int
    batches: list[SequencedBatch]


def capture(sequences: Sequences, keys: Iterable[Key]) -> list[Captured]:
    """What the log has of these windows; those that were forgotten meanwhile are left out."""
    captured: list[Captured] = []
    for key in keys:
        window = sequences.window(key)
        if window is not None:
            following, batches = window.stored()
            captured.append(
                Captured(key, window.epoch, following, window.bound_mark, window.bound_at, batches)
            )
    return captured


def snapshot_of(captured: Sequence[Captured]) -> dict[str, Any]:
    """The snapshot's windows, by number."""
    return {
        f"{number:08}": [
            *window.key,
            window.epoch,
            window.following,
            window.mark,
            window.bound_at,
            [
                [batch.first, batch.records, batch.base_offset, batch.is_torn, b64encode(batch.crcs).decode()]
                for batch in window.batches
            ],
        ]
        for number, window in enumerate(captured)
    }
