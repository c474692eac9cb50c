"""What recovery and cold reads decide about bytes of the log: which records are whole, and where they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from holdmq.errors import RecordError
from holdmq.record import FIXED_SIZE, QUEUE_ID_AT, RECORD_BYTES_LIMIT, VERIFY_ALL, decode_record
from holdmq.record_batch import (
    Ints,
    check_layout,
    decode_columns,
    split_records,
    starts_of,
    tag_hashes,
    verify_bodies,
    verify_stamps,
)
from storage.store import Batch, Run

KeyLevels = Callable[[str], int]
NextOffsets = dict[tuple[str, int], int]

_MAGIC: Final = b"HMQ1"


class Whole(NamedTuple):
    """The records at the start of a buffer that are whole: `sizes`, and what is wrong behind them.

    `reason` is empty when only the buffer ends there.
    """

    sizes: Ints
    reason: str


def whole_records(view: memoryview, position: int) -> Whole:
    """Check records from the buffer's start on: layout, BodyCRC, StampCheck, place in the log.

    `position` is the log offset of the buffer's first byte. A record that the buffer's end cuts
    is not judged.
    """
    sizes = split_records(view)
    reason = ""
    if not len(sizes):
        return Whole(sizes, _head_problem(view, 0))
    starts = starts_of(sizes)
    bad = check_layout(view, starts, sizes)
    if bad is not None:
        sizes, starts, reason = sizes[: bad.entry], starts[: bad.entry], bad.reason
    if len(sizes):
        at = verify_bodies(view, starts, sizes)
        if at >= 0:
            sizes, starts, reason = sizes[:at], starts[:at], "its BodyCRC does not match"
    if len(sizes):
        at = verify_stamps(view, starts, sizes)
        if at >= 0:
            sizes, starts, reason = sizes[:at], starts[:at], "its StampCheck does not match"
    if len(sizes):
        wrong = decode_columns(view, starts, sizes).physical_offset != starts + position
        if wrong.any():
            at = int(wrong.argmax())
            sizes, reason = sizes[:at], "its PhysicalOffset is not where it lies"
    if not reason:
        reason = _head_problem(view, int(sizes.sum()))
    return Whole(sizes, reason)


def _head_problem(view: memoryview, pos: int) -> str:
    """What is wrong with a record whose head lies at `pos`; empty when its end is only not in the buffer."""
    left = len(view) - pos
    if left < 4:
        return ""
    total = int.from_bytes(view[pos : pos + 4], "big")
    return "" if FIXED_SIZE <= total <= RECORD_BYTES_LIMIT else f"its TotalSize is {total}"


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


def batch_of(view: memoryview, sizes: Ints, position: int, key_levels: KeyLevels) -> Batch:
    """The batch that records of the log make: runs of neighbours of one queue, with their hashes."""
    batch = Batch(view[: int(sizes.sum())], sizes, [], position)
    starts = batch.starts
    columns = decode_columns(batch.records, starts, sizes)
    batch.store_ms = int(columns.store_ms[-1])
    bounds = _run_bounds(batch.records, starts, columns.topic_start, columns.topic_size)
    # Most topics have one key level: their hashes are made for the whole batch at once.
    hashes = tag_hashes(batch.records, starts, sizes, 1)
    base_offsets = columns.queue_offset.tolist()
    for first, last in zip(bounds, [*bounds[1:], len(sizes)], strict=True):
        begin = int(columns.topic_start[first])
        topic = bytes(view[begin : begin + int(columns.topic_size[first])]).decode("utf-8", "surrogateescape")
        at = int(starts[first]) + QUEUE_ID_AT
        levels = key_levels(topic)
        own = None if hashes is None else hashes[first:last]
        if own is not None and levels != 1:
            own = tag_hashes(batch.records, starts[first:last], sizes[first:last], levels)
        queue_id = int.from_bytes(view[at : at + 4], "big")
        batch.runs.append(Run(topic, queue_id, last - first, levels, base_offsets[first], own))
    return batch


def _run_bounds(view: memoryview, starts: Ints, topic_start: Ints, topic_size: Ints) -> list[int]:
    """The index of the first record of every run."""
    data = bytes(view)
    bounds: list[int] = []
    before = b""
    for index, (start, begin, size) in enumerate(
        zip(starts.tolist(), topic_start.tolist(), topic_size.tolist(), strict=True)
    ):
        name = data[begin : begin + size] + data[start + QUEUE_ID_AT : start + QUEUE_ID_AT + 4]
        if name != before:
            bounds.append(index)
            before = name
    return bounds


def next_whole(view: memoryview, position: int, after: int) -> int:
    """The offset in the buffer of the first whole record at or behind `after`; -1 = none.

    How reading goes on behind damage whose size cannot be trusted: a record knows its own place.
    """
    data = bytes(view)
    at = data.find(_MAGIC, after + 4)
    while at >= 0:
        try:
            record = decode_record(data, at - 4, VERIFY_ALL)
        except RecordError:
            record = None
        if record is not None and record.physical_offset == position + at - 4:
            return at - 4
        at = data.find(_MAGIC, at + 1)
    return -1
