"""Delayed messages as records: how one waits in the timer's topic, and the copy that leaves it.

A waiting record is the message under `%TIMER`, queue 0, with these pairs behind its own::

    … | DUE 0x01 ms since the epoch 0x02 | DEST 0x01 topic/queue 0x02 | ORIGIN 0x01 … 0x02, when rolled |

The copy has the message's topic and queue again, keeps DUE, has no DEST and no PS (its producer's
window is of the waiting record), and ends in `ORIGIN %TIMER/0/first offset/attempt`: the queue offset
that the message first had in `%TIMER`, which rolling never changes, names the timer for ever.
An ORIGIN that the message had before (a retry's) stays, in front. Source: storage.md, Moves.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from holdmq.errors import RecordError
from holdmq.record.batch import Ints, decode_columns
from holdmq.record.codec import SYS_ROLLED, VERIFY_ALL, Buffer, Record, decode_record
from storage.api.batches import Batch
from storage.api.timer import (
    DUE_LIMIT_MS,
    TIMER_ORIGIN,
    TIMER_QUEUE,
    TIMER_TOPIC,
    encode_copy,
    pairs_without,
    value_of,
)

_COPY_MARK: Final = b"\x02" + TIMER_ORIGIN


class Entry(NamedTuple):
    """One line of the timer: `first` names it for ever; size 0 = released, by the record at `position`."""

    due_ms: int
    first: int
    position: int
    size: int


class Released(NamedTuple):
    """The copy of a due message: unstamped, for queue `queue_id` of `topic`."""

    record: bytes
    topic: str
    queue_id: int


def _read_waiting(raw: Buffer, entry: Entry) -> Record:
    """The waiting record of an entry; RecordError when the bytes are not its."""
    record = decode_record(raw, 0, VERIFY_ALL)
    if record.topic != TIMER_TOPIC.encode() or record.physical_offset != entry.position:
        raise RecordError(f"the record at {entry.position} is no delayed message")
    found = entry_of(record.properties, record.queue_offset, entry.position, entry.size)
    if found != entry:
        raise RecordError(f"the record at {entry.position} is another delayed message")
    return record


def released_copy(raw: Buffer, entry: Entry) -> Released:
    """The copy that leaves the timer; `raw` are the stamped bytes at the entry's position.

    Raises RecordError when they are damaged or of another message.
    """
    record = _read_waiting(raw, entry)
    target = value_of(record.properties, b"DEST") or b""
    topic, _, queue = target.rpartition(b"/")
    if not topic or not queue.isdigit():
        raise RecordError(f"the delayed message at {entry.position} says no topic and queue")
    pairs, separator, mqtt = record.properties.partition(b"\0")
    pairs = pairs_without(pairs, b"DEST\x01", b"PS\x01", TIMER_ORIGIN)
    origin = TIMER_ORIGIN + b"%d/%d\x02" % (entry.first, record.reconsume_times)
    queue_id = int(queue)
    copy = encode_copy(
        record, topic, queue_id, pairs + origin + separator + mqtt, record.sys_flag & ~SYS_ROLLED
    )
    return Released(copy, topic.decode(), queue_id)


def rolled_record(raw: Buffer, entry: Entry) -> bytes:
    """The waiting record of a message whose segment goes: origin, due and born time are kept.

    Raises RecordError as `released_copy` does.
    """
    record = _read_waiting(raw, entry)
    pairs, separator, mqtt = record.properties.partition(b"\0")
    origin = TIMER_ORIGIN + b"%d/%d\x02" % (entry.first, record.reconsume_times)
    properties = pairs_without(pairs, TIMER_ORIGIN) + origin + separator + mqtt
    return encode_copy(record, TIMER_TOPIC.encode(), TIMER_QUEUE, properties, record.sys_flag | SYS_ROLLED)


def entry_of(properties: bytes, queue_offset: int, position: int, size: int) -> Entry | None:
    """The entry of a record in the timer's topic; None = nothing there says when it is due."""
    due = value_of(properties, b"DUE")
    if due is None or not due.isdigit() or int(due) >= DUE_LIMIT_MS:
        return None
    first = first_of(properties)
    return Entry(int(due), queue_offset if first is None else first, position, size)


def first_of(properties: bytes) -> int | None:
    """The `%TIMER` offset that a copy or rolled record names as its first; None = it names none."""
    origin = value_of(properties, b"ORIGIN")
    if origin is None or not origin.startswith(b"%TIMER/0/"):
        return None
    first = origin.split(b"/")[2]
    return int(first) if first.isdigit() else None


def has_waiting(batch: Batch) -> bool:
    """Whether a batch has records of the timer's topic."""
    return any(run.topic == TIMER_TOPIC for run in batch.runs)


def may_have_copies(batch: Batch) -> bool:
    """Whether a batch may have copies of timers' messages: their mark is somewhere in it."""
    return _COPY_MARK in bytes(batch.records)


def entries_in(batch: Batch, with_copies: bool) -> list[Entry]:
    """The timer's entries that a stamped batch makes, in its order.

    `with_copies`: also look for copies in all other records (size 0), as a replay must.
    """
    if not with_copies and not has_waiting(batch):
        return []
    data = bytes(batch.records)
    wanted: list[int] = []
    first = 0
    for run in batch.runs:
        if run.topic == TIMER_TOPIC:
            wanted.extend(range(first, first + run.count))
        first += run.count
    waiting = set(wanted)
    if with_copies:
        # The mark may stand in a body, too: what is found is read before it counts.
        ends = batch.starts + batch.sizes
        at = data.find(_COPY_MARK)
        while at >= 0:
            index = int(np.searchsorted(ends, at, "right"))
            if index not in waiting:
                wanted.append(index)
            at = data.find(_COPY_MARK, int(ends[index]))
        wanted.sort()
    if not wanted:
        return []
    return _read_entries(batch, data, np.array(wanted, np.int64), waiting)


def _read_entries(batch: Batch, data: bytes, wanted: Ints, waiting: set[int]) -> list[Entry]:
    starts, sizes = batch.starts[wanted], batch.sizes[wanted]
    columns = decode_columns(data, starts, sizes)
    found: list[Entry] = []
    for index, size, begin, length, offset, position in zip(
        wanted.tolist(),
        sizes.tolist(),
        columns.properties_start.tolist(),
        columns.properties_size.tolist(),
        columns.queue_offset.tolist(),
        columns.physical_offset.tolist(),
        strict=True,
    ):
        properties = data[begin : begin + length]
        is_waiting = index in waiting
        if not is_waiting and first_of(properties) is None:
            continue
        entry = entry_of(properties, offset, position, size if is_waiting else 0)
        if entry is not None:
            found.append(entry)
    return found
