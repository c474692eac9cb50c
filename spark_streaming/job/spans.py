"""Which spans of time of a table hold rows of the same keys in several files; no IO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class FileSpan(NamedTuple):
    """A data file: its oldest and newest time, in seconds since the epoch, and its rows."""

    oldest_s: int
    newest_s: int
    rows: int


def runs_to_fold(files: Iterable[FileSpan], span_s: int, rows_max: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start_s, end_s)``, end excluded, of spans that more than one file has rows in.

    Spans begin at multiples of `span_s`; neighbours are one run as long as that has at most about `rows_max`
    rows. A span that one file has to itself is folded already, or was written by one batch.
    """
    bounds = [(file.oldest_s // span_s, file.newest_s // span_s + 1, file.rows) for file in files]
    changes = sorted([(start, 1) for start, _, _ in bounds] + [(end, -1) for _, end, _ in bounds])
    depth = 0
    run_start: int | None = None
    for at, change in changes:
        depth += change
        if depth > 1 and run_start is None:
            run_start = at
        elif depth <= 1 and run_start is not None:
            if at > run_start:
                for start, end in _split(bounds, run_start, at, rows_max):
                    yield start * span_s, end * span_s
            run_start = None


def _split(
    bounds: list[tuple[int, int, int]], start: int, end: int, rows_max: int
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a run, halved until each has at most `rows_max` rows or one span."""
    open_runs = [(start, end)]
    while open_runs:
        start, end = open_runs.pop()
        if end - start > 1 and _rows_within(bounds, start, end) > rows_max:
            middle = (start + end) // 2
            open_runs += [(middle, end), (start, middle)]
        else:
            yield start, end


def _rows_within(bounds: list[tuple[int, int, int]], start: int, end: int) -> int:
    """Return about how many rows lie in a run, were those of each file spread evenly."""
    shares = (
        rows * max(0, min(end, newest) - max(start, oldest)) // (newest - oldest)
        for oldest, newest, rows in bounds
    )
    return sum(shares)
