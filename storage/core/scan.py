"""What recovery and cold reads decide about bytes of the log: which records are whole, and where they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from holdmq.errors import RecordError
from holdmq.record.batch import Hashes, Ints, decode_columns, tag_hashes
from holdmq.record.codec import MAGIC, PHYSICAL_OFFSET_AT, QUEUE_ID_AT, VERIFY_ALL, decode_record
from storage.api.batches import Batch, BatchRun
from storage.core.checks import Checker

KeyLevels = Callable[[str], int]
HashesOf = Callable[[memoryview, Ints, Ints, int], Hashes | None]
"""`holdmq.record.batch.tag_hashes`, or what gives the same."""
NextOffsets = dict[tuple[str, int], int]

_MAGIC: Final = MAGIC.to_bytes(4, "big")
CHECK_BYTES: Final = 32 << 10
"""What is checked in one go: some 50 us in which compiled code gives no other thread a turn."""
CHECK_RECORDS: Final = 256
"""As many records that lie apart."""


class Whole(NamedTuple):
    """The records at the start of a buffer that are whole, and what is wrong with the one behind them.

    `reason` is empty when only the buffer ends there.
    """

    sizes: Ints
    queue_offsets: Ints
    reason: str


def whole_records(view: memoryview, position: int) -> Whole:
    """Check records from the buffer's start on: layout, BodyCRC, StampCheck, place in the log.

    `position` is the log offset of the buffer's first byte. A record that the buffer's end cuts is not
    judged. In parts, so that other threads have their turn between them.
    """
    checker = Checker(position)
    at = 0
    size = CHECK_BYTES
    while at < len(view):
        checker.check(bytes(view[at : at + size]))
        if checker.reason:
            break
        size = CHECK_BYTES
        if checker.size_bytes == at:
            # The record is longer than a part, or the buffer ends in it.
            size = head_size(view[at:])
            if size <= CHECK_BYTES or at + size > len(view):
                break
        at = checker.size_bytes
    return Whole(
        np.frombuffer(checker.sizes(), np.int64),
        np.frombuffer(checker.queue_offsets(), np.int64),
        checker.reason,
    )


def whole_at(view: memoryview, position: int, starts: Ints, sizes: Ints) -> int:
    """How many records at these places, all within the buffer, come before the first that is not whole."""
    checker = Checker(position)
    data = bytes(view)
    begins, totals = starts.tolist(), sizes.tolist()
    for first in range(0, len(begins), CHECK_RECORDS):
        some = slice(first, first + CHECK_RECORDS)
        good = checker.check_at(data, begins[some], totals[some])
        if first + good < min(some.stop, len(begins)):
            return first + good
    return len(begins)


def head_size(view: memoryview) -> int:
    """The TotalSize that the record at the buffer's start claims; 0 = not even that is there."""
    return int.from_bytes(view[:4], "big") if len(view) >= 4 else 0


class Sequence(NamedTuple):
    """How far a batch of the log is in sequence: `records` of it, then `reason`."""

    records: int
    reason: str


def in_sequence(batch: Batch, offsets: NextOffsets, store_ms: int) -> Sequence:
    """Whether queue offsets are dense and store times do not decrease; advances `offsets`.

    A queue that `offsets` does not know may begin anywhere (retention took what was before).
    """
    columns = decode_columns(batch.records, batch.starts, batch.sizes)
    times = columns.store_ms
    late = np.empty(len(times), np.bool_)
    late[0] = times[0] < store_ms
    np.less(times[1:], times[:-1], out=late[1:])
    stop = int(late.argmax()) if late.any() else len(times)
    first = 0
    for run in batch.runs:
        key = (run.topic, run.queue_id)
        base = offsets.get(key, run.base_offset)
        wanted = np.arange(base, base + run.count)
        wrong = columns.queue_offset[first : first + run.count] != wanted
        dense = int(wrong.argmax()) if wrong.any() else run.count
        if first + dense >= stop or dense < run.count:
            count = min(stop, first + dense)
            if count > first:
                offsets[key] = base + count - first
            if count == stop and stop < len(times):
                return Sequence(count, "its StoreTimestamp is before its predecessor's")
            if count < len(times):
                return Sequence(count, f"its QueueOffset is not the next of {run.topic}/{run.queue_id}")
        offsets[key] = base + run.count
        first += run.count
    return Sequence(len(times), "")


def batch_of(
    view: memoryview, sizes: Ints, position: int, key_levels: KeyLevels, hashes_of: HashesOf = tag_hashes
) -> Batch:
    """The batch that records of the log make: runs of neighbours of one queue, with their hashes."""
    batch = Batch(view[: int(sizes.sum())], sizes, [], position)
    starts = batch.starts
    columns = decode_columns(batch.records, starts, sizes)
    batch.store_ms = int(columns.store_ms[-1])
    bounds = _run_bounds(batch.records, starts, columns.topic_start, columns.topic_size)
    base_offsets = columns.queue_offset[bounds].tolist()
    for first, last, base_offset in zip(bounds, [*bounds[1:], len(sizes)], base_offsets, strict=True):
        begin = int(columns.topic_start[first])
        topic = bytes(view[begin : begin + int(columns.topic_size[first])]).decode("utf-8", "surrogateescape")
        at = int(starts[first]) + QUEUE_ID_AT
        queue_id = int.from_bytes(view[at : at + 4], "big")
        batch.runs.append(BatchRun(topic, queue_id, last - first, key_levels(topic), base_offset))
    levels = {run.key_levels for run in batch.runs}
    # Most topics have one key level: their hashes are made for the whole batch at once.
    every = hashes_of(batch.records, starts, sizes, levels.pop()) if len(levels) == 1 else None
    for first, run in zip(bounds, batch.runs, strict=True):
        span = slice(first, first + run.count)
        if every is not None:
            run.hashes = every[span]
        elif levels:
            run.hashes = hashes_of(batch.records, starts[span], sizes[span], run.key_levels)
    return batch


def part_of(batch: Batch, first: int, last: int) -> Batch:
    """Records `first` … `last` of a batch as one of its own; the batch itself when that is all of it."""
    if first == 0 and last == len(batch.sizes):
        return batch
    begin, sizes = int(batch.starts[first]), batch.sizes[first:last]
    end = int(batch.starts[last - 1] + batch.sizes[last - 1])
    part = Batch(batch.records[begin:end], sizes, [], batch.position + begin, batch.store_ms)
    if last < len(batch.sizes):
        # Of a read of the log: the records behind the part may have been stored later.
        last_one = decode_columns(batch.records, batch.starts[last - 1 : last], sizes[-1:])
        part.store_ms = int(last_one.store_ms[0])
    at = 0
    for run in batch.runs:
        low, high = max(first, at) - at, min(last, at + run.count) - at
        if low < high:
            hashes = None if run.hashes is None else run.hashes[low:high]
            part.runs.append(
                BatchRun(run.topic, run.queue_id, high - low, run.key_levels, run.base_offset + low, hashes)
            )
        at += run.count
    return part


def _run_bounds(view: memoryview, starts: Ints, topic_start: Ints, topic_size: Ints) -> list[int]:
    """The index of the first record of every run."""
    raw = np.frombuffer(view, np.uint8)
    words: npt.NDArray[np.uint32] = np.ndarray((len(raw) - 3,), ">u4", raw, strides=(1,))
    queue_ids = words[starts + QUEUE_ID_AT]
    changes = (queue_ids[1:] != queue_ids[:-1]) | (topic_size[1:] != topic_size[:-1])
    # Neighbours of one queue id and topic length are compared byte for byte, all at once per length.
    for size in np.unique(topic_size[1:][~changes]).tolist():
        if not size:
            continue
        alike = np.flatnonzero(~changes & (topic_size[1:] == size))
        names: npt.NDArray[np.void] = np.ndarray((len(raw) - size + 1,), f"V{size}", raw, strides=(1,))
        changes[alike] = names[topic_start[alike]] != names[topic_start[alike + 1]]
    return [0, *(np.flatnonzero(changes) + 1).tolist()]


def next_whole(view: memoryview, position: int, after: int) -> int:
    """The offset in the buffer of the first whole record at or behind `after`; -1 = none.

    How reading goes on behind damage whose size cannot be trusted: a record knows its own place.
    """
    data = bytes(view)
    at = data.find(_MAGIC, after + 4)
    while at >= 0:
        place = at - 4 + PHYSICAL_OFFSET_AT
        # First what is cheap to ask: a body may be full of what looks like records.
        if int.from_bytes(data[place : place + 8], "big") == position + at - 4:
            try:
                decode_record(data, at - 4, VERIFY_ALL)
                return at - 4
            except RecordError:
                pass
        at = data.find(_MAGIC, at + 1)
    return -1
