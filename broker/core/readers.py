"""Readers: gateways following the whole log in order, each with a filter set of its own.

A reader has a position; everything below it has been scanned for it. `scan` walks confirmed
batches from there and picks the records that may match, up to the credit of the READ at
hand. What was already scanned without a match moves the position and sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from broker.core.filters import FilterSet, Hashes, TopicFilter
from holdmq.record import tag_of_record

SERVE_INTERVAL_S: Final = 0.0005
"""A busy reader is served at most this often, so that wake-ups do not grow with the message rate."""
SERVE_AT_BYTES: Final = 64 << 10
"""This many waiting bytes are served at once."""


class RunLike(Protocol):
    """What a reader looks at of a storage run."""

    topic: str
    count: int
    hashes: Hashes | None


class BatchLike(Protocol):
    """What a reader looks at of a storage batch."""

    records: memoryview
    sizes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    position: int

    @property
    def runs(self) -> Sequence[RunLike]: ...


class Picked:
    """What a scan found: `parts` in log order, `count` records, `size_bytes`; `position` = scanned to."""

    __slots__ = ("count", "parts", "position", "size_bytes")

    def __init__(self, position: int) -> None:
        self.parts: list[memoryview] = []
        self.count = 0
        self.size_bytes = 0
        self.position = position


def scan(filters: FilterSet, batches: Sequence[BatchLike], position: int, credit_bytes: int) -> Picked:
    """Pick what may match from `batches` (log order, the first may begin below `position`).

    Stops before the record that would exceed `credit_bytes`, but always gives one.
    """
    picked = Picked(position)
    for batch in batches:
        size = len(batch.records)
        if batch.position + size <= picked.position:
            continue
        skip = 0
        if picked.position > batch.position:
            skip = int(np.searchsorted(batch.starts, picked.position - batch.position))
        first = 0
        for run in batch.runs:
            last = first + run.count
            if last > skip:
                parts = filters.of_topic(run.topic)
                if parts and not _pick_run(picked, batch, run, first, max(first, skip), parts, credit_bytes):
                    return picked
            first = last
        picked.position = batch.position + size
    return picked


def _pick_run(
    picked: Picked,
    batch: BatchLike,
    run: RunLike,
    run_first: int,
    first: int,
    parts: Sequence[TopicFilter],
    credit_bytes: int,
) -> bool:
    """Add the run's matching records from index `first` on; False = the credit is used up."""
    last = run_first + run.count
    starts = batch.starts
    if any(p.all for p in parts):
        begin = int(starts[first])
        end = int(starts[last - 1]) + int(batch.sizes[last - 1])
        if picked.size_bytes + end - begin <= credit_bytes:
            picked.parts.append(batch.records[begin:end])
            picked.count += last - first
            picked.size_bytes += end - begin
            return True
        indices: Sequence[int] = range(first, last)
    else:
        indices = _matching(batch, run, run_first, first, parts)
    for i in indices:
        begin, length = int(starts[i]), int(batch.sizes[i])
        if picked.count and picked.size_bytes + length > credit_bytes:
            picked.position = batch.position + begin
            return False
        picked.parts.append(batch.records[begin : begin + length])
        picked.count += 1
        picked.size_bytes += length
    return True


def _matching(
    batch: BatchLike, run: RunLike, run_first: int, first: int, parts: Sequence[TopicFilter]
) -> list[int]:
    hashes = run.hashes
    found: set[int] = set()
    for part in parts:
        found.update(run_first + i for i in part.indices_by_hash(hashes, run.count))
        if part.needs_tags:
            for i in range(first, run_first + run.count):
                if i not in found and part.passes_tag(tag_of_record(batch.records, int(batch.starts[i]))):
                    found.add(i)
    return sorted(i for i in found if i >= first)


class Reader:
    """One reader's state; its READ requests wait in the shell."""

    __slots__ = ("filters", "is_loading", "position", "reader_id", "served_at")

    def __init__(self, reader_id: int, position: int) -> None:
        self.reader_id = reader_id
        self.position = position
        self.filters = FilterSet()
        self.served_at = 0.0
        self.is_loading = False

    def due_at(self, waiting_bytes: int, now: float) -> float:
        """When this reader should be served, given how much lies before it."""
        if waiting_bytes >= SERVE_AT_BYTES or now - self.served_at >= SERVE_INTERVAL_S:
            return now
        return self.served_at + SERVE_INTERVAL_S
