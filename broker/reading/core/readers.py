"""Readers: gateways following the whole log in order, each with a filter set of its own.

A reader has a position; everything below it has been scanned for it. `scan` walks confirmed
batches from there and picks the records that may match, up to the credit of the READ at
hand. What was already scanned without a match moves the position and sends nothing.

A paused topic keeps what is confirmed from the log position `paused_at` on: readers pass it. When it is
resumed, everybody who stands past that position is *late* with this topic: what it kept, up to where the
reader stands, is scanned for it once more, before it goes on. So one position stays enough: it never skips
what will be delivered elsewhere, and who comes back to a position inside a past pause gets what was kept
below it (perhaps again, never not at all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from broker.kernel.core.filters import FilterSet, Hashes, TopicFilter
from holdmq.record.codec import tag_of_record

SERVE_INTERVAL_S: Final = 0.0005
"""How often a reader is served at most, on average, so that wake-ups do not grow with the message rate."""
SERVES_AHEAD_MAX: Final = 8
"""How far a reader may be ahead of that: it gets messages that come by themselves at once, while loops count
their time and their timers in whole ms, in which such a message waited for up to two."""
SERVE_AT_BYTES: Final = 64 << 10
"""This many waiting bytes are served at once."""
TAG_TESTS_MAX: Final = 2_000
"""Tags that one scan compares with MQTT filters, whose hashes cannot decide: some milliseconds."""
STEPS_PER_TAG: Final = 16
"""What comparing a tag takes when its levels meet few filters; a tag that takes more counts as several."""


class RunLike(Protocol):
    """What a reader looks at of a storage run."""

    topic: str
    count: int
    hashes: Hashes | None


class BatchLike(Protocol):
    """What a reader looks at of a storage batch."""

    records: memoryview
    sizes: npt.NDArray[np.int64]
    position: int

    @property
    def starts(self) -> npt.NDArray[np.int64]: ...

    @property
    def runs(self) -> Sequence[RunLike]: ...


class ReadableRange(NamedTuple):
    """The log positions from which a topic's records may be given: `first` <= position < `end`."""

    first: int
    end: int


WindowOf = Callable[[str], ReadableRange]
EVERYWHERE: Final = ReadableRange(0, 1 << 63)
NOWHERE: Final = ReadableRange(0, 0)


class Picked:
    """What a scan found: `parts` in log order, `count` records, `size_bytes`; `position` = scanned to.

    `is_cut`: it compared as many tags as it may, and what lies further on was not looked at.
    """

    __slots__ = ("count", "is_cut", "parts", "position", "size_bytes", "tests_left")

    def __init__(self, position: int, tests_left: int = 0) -> None:
        self.parts: list[memoryview] = []
        self.count = 0
        self.size_bytes = 0
        self.position = position
        self.tests_left = tests_left
        self.is_cut = False


def scan(
    filters: FilterSet,
    batches: Sequence[BatchLike],
    position: int,
    credit_bytes: int,
    window_of: WindowOf = lambda _topic: EVERYWHERE,
    tag_tests_max: int = 1 << 62,
) -> Picked:
    """Pick what may match from `batches` (log order, the first may begin below `position`).

    Stops before the record that would exceed `credit_bytes`, but always gives one, and before the tag that
    would be compared beyond `tag_tests_max` (at least 1; one that many filters nearly match counts as
    several). Of each topic only records inside its window are picked.
    """
    picked = Picked(position, tag_tests_max)
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
                span = _span(batch, max(first, skip), last, window_of(run.topic)) if parts else (0, 0)
                if span[0] < span[1] and not _pick_run(picked, batch, run, first, span, parts, credit_bytes):
                    return picked
            first = last
        picked.position = batch.position + size
    return picked


def _span(batch: BatchLike, first: int, last: int, window: ReadableRange) -> tuple[int, int]:
    """The records from `first` to `last` that lie inside a window."""
    if window is EVERYWHERE:
        return first, last
    if window.first > batch.position:
        first = max(first, int(np.searchsorted(batch.starts, window.first - batch.position)))
    if window.end < batch.position + len(batch.records):
        last = min(last, int(np.searchsorted(batch.starts, max(0, window.end - batch.position))))
    return first, last


def _pick_run(
    picked: Picked,
    batch: BatchLike,
    run: RunLike,
    run_first: int,
    span: tuple[int, int],
    parts: Sequence[TopicFilter],
    credit_bytes: int,
) -> bool:
    """Add the run's matching records of the span (indices); False = that was all that this scan may do."""
    for part in parts:
        if part.all:
            return _pick_stretch(picked, batch, span, credit_bytes)
    starts = batch.starts
    for i in _matching(picked, batch, run, run_first, span, parts):
        begin, length = int(starts[i]), int(batch.sizes[i])
        if picked.count and picked.size_bytes + length > credit_bytes:
            picked.position = batch.position + begin
            return False
        picked.parts.append(batch.records[begin : begin + length])
        picked.count += 1
        picked.size_bytes += length
    return not picked.is_cut


def _pick_stretch(picked: Picked, batch: BatchLike, span: tuple[int, int], credit_bytes: int) -> bool:
    """Add all records of the span, in one piece; False = the credit is used up."""
    first, last = span
    starts = batch.starts
    begin = int(starts[first])
    end = int(starts[last - 1]) + int(batch.sizes[last - 1])
    fitting = last - first
    if picked.size_bytes + end - begin > credit_bytes:
        ends = starts[first:last] + batch.sizes[first:last]
        fitting = int(np.searchsorted(ends, begin + credit_bytes - picked.size_bytes, "right"))
        if not picked.count:
            fitting = max(1, fitting)
        if not fitting:
            picked.position = batch.position + begin
            return False
        end = int(ends[fitting - 1])
    picked.parts.append(batch.records[begin:end])
    picked.count += fitting
    picked.size_bytes += end - begin
    if fitting == last - first:
        return True
    picked.position = batch.position + end
    return False


def _matching(
    picked: Picked,
    batch: BatchLike,
    run: RunLike,
    run_first: int,
    span: tuple[int, int],
    parts: Sequence[TopicFilter],
) -> Iterator[int]:
    """The span's records that may match, in order, each looked for when it is asked for."""
    first, last = span
    if len(parts) == 1 and not parts[0].needs_tags:
        for i in parts[0].indices_by_hash(run.hashes, run.count):
            if first <= run_first + i < last:
                yield run_first + i
        return
    found: set[int] = set()
    for part in parts:
        found.update(run_first + i for i in part.indices_by_hash(run.hashes, run.count))
    tagged = [part for part in parts if part.needs_tags]
    if not tagged:
        yield from sorted(i for i in found if first <= i < last)
        return
    for i in range(first, last):
        if i in found:
            yield i
            continue
        if picked.tests_left <= 0:
            picked.is_cut = True
            picked.position = batch.position + int(batch.starts[i])
            return
        picked.tests_left -= 1
        tag = tag_of_record(batch.records, int(batch.starts[i]))
        for part in tagged:
            is_passing = part.passes_tag(tag)
            picked.tests_left -= part.steps // STEPS_PER_TAG
            if is_passing:
                yield i
                break


class BulkReader:
    """One reader's state; its READ requests wait in the shell.

    `since`: nothing below this log position is owed to it. `late`: topics that were paused, with the
    position from which they owe it what they kept; `late_at` is how far that has been scanned.
    `held_back`: the same of topics that were paused again before.
    """

    __slots__ = (
        "filters",
        "held_back",
        "is_loading",
        "late",
        "late_at",
        "position",
        "reader_id",
        "served_until",
        "since",
    )

    def __init__(self, reader_id: int, position: int, since: int = 0) -> None:
        self.reader_id = reader_id
        self.position = position
        self.since = since
        self.late: dict[str, int] = {}
        self.late_at = 0
        self.held_back: dict[str, int] = {}
        self.filters = FilterSet()
        self.served_until = 0.0
        self.is_loading = False

    def owe(self, topic: str, position: int) -> None:
        """A topic was resumed that kept what was confirmed from this position on."""
        position = max(self.since, min(position, self.held_back.pop(topic, position)))
        if position >= self.position or not self.filters.of_topic(topic):
            return
        if not self.late:
            self.late_at = position
        elif position < self.late_at:
            # Of the others only what is left.
            self.late = {other: max(first, self.late_at) for other, first in self.late.items()}
            self.late_at = position
        self.late[topic] = min(position, self.late.get(topic, position))

    def hold_back(self, topic: str, position: int | None = None) -> None:
        """A topic is paused (again): what it still owes, from `position` or as is known, stays owed."""
        if position is None:
            first = self.late.pop(topic, None)
            if first is None:
                return
            position = max(first, self.late_at)
        self.held_back[topic] = position

    def forget(self, topic: str) -> None:
        """A topic is gone, or may not be read: it owes nothing."""
        self.late.pop(topic, None)
        self.held_back.pop(topic, None)

    def late_window(self, topic: str) -> ReadableRange:
        """What a topic owes: nothing, or from where it was paused to where this reader stands."""
        first = self.late.get(topic)
        return NOWHERE if first is None else ReadableRange(first, self.position)

    def late_scanned(self, position: int) -> None:
        """What is owed was scanned up to here; at the reader's own position nothing is owed any more."""
        self.late_at = position
        if position >= self.position:
            self.late.clear()

    def served(self, now: float) -> None:
        """Note that a READ is being served: other readers come first for a while."""
        self.served_until = max(self.served_until, now) + SERVE_INTERVAL_S

    def due_at(self, waiting_bytes: int, now: float) -> float:
        """When this reader should be served, given how much lies before it."""
        if waiting_bytes >= SERVE_AT_BYTES:
            return now
        return max(now, self.served_until - SERVES_AHEAD_MAX * SERVE_INTERVAL_S)
