"""The place in the log for a moment: bisection over segments, then over the bytes of one.

Store times never decrease within a log, and a record knows its own place: from any byte on the next whole
one can be found.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdmq.files.disk import Disk
from holdmq.record.codec import RECORD_BYTES_LIMIT, VERIFY_ALL, decode_record
from storage.core.scan import next_whole
from storage.log.segments import Segment, Segments

SCAN_BYTES: Final = 4 << 10
"""So few bytes are looked through record by record: some dozens of them."""
WINDOWS_BYTES: Final = (16 << 10, 1 << 20, 2 * RECORD_BYTES_LIMIT)
"""How much is read for the next whole record: more only where it is not in less, so that it is large."""


class FoundRecord(NamedTuple):
    """A whole record: its log position, size in bytes and store time."""

    position: int
    size: int
    store_ms: int


class LogTimes:
    """Searches of a log by store time. Every method blocks; OSError as the disk says."""

    def __init__(self, disk: Disk, segments: Segments) -> None:
        self._disk = disk
        self._segments = segments

    def first_at(self, store_ms: int, end: int) -> int:
        """The position of the first record below `end` stored at `store_ms` or later; `end` = none is.

        `end` is the confirmed position. Damaged records are passed; a segment without a whole one counts as
        stored later than the others.
        """
        table = [segment for segment in self._segments.table if segment.start < end]
        low, high = 0, len(table)
        first = end
        while low < high:
            middle = (low + high) // 2
            found = self._next(table[middle], table[middle].start, end)
            if found is None or found.store_ms >= store_ms:
                high = middle
                first = first if found is None else found.position
            else:
                low = middle + 1
        if not low:
            return table[0].start if table else end
        return self._first_within(table[low - 1], store_ms, end, first)

    def _first_within(self, segment: Segment, store_ms: int, end: int, first: int) -> int:
        """The same of a segment that begins earlier; `first` if it has none."""
        low, high = segment.start, min(segment.end, end)
        while low < high:
            middle = low if high - low <= SCAN_BYTES else (low + high) // 2
            found = self._next(segment, middle, high)
            if found is not None and found.store_ms < store_ms:
                low = found.position + found.size
            elif middle == low:
                return first if found is None else found.position
            else:
                high = middle
                first = first if found is None else found.position
        return first

    def _next(self, segment: Segment, position: int, end: int) -> FoundRecord | None:
        """The first whole record of a segment at or behind `position` that begins below `end`."""
        file = self._disk.open_to_read(segment.path)
        try:
            for window in WINDOWS_BYTES:
                # What begins below `end` may end behind it.
                view = memoryview(file.read(position - segment.start, min(window, segment.end - position)))
                at = next_whole(view, position, 0)
                if at >= 0:
                    record = decode_record(view, at, VERIFY_ALL)
                    found = FoundRecord(position + at, record.total_size, record.store_ms)
                    return found if found.position < end else None
                if position + window >= segment.end:
                    break
        finally:
            file.close()
        return None
