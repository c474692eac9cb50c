"""Store times of a queue's entries, and the offset for a timestamp: a binary search over the consume queue.

Store times never decrease within a log, so neither do they within a queue.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from holdmq.files.disk import Disk
from holdmq.record.codec import (
    FIXED_SIZE,
    IPV6_EXTRA,
    MAGIC,
    MAGIC_AT,
    QUEUE_OFFSET_AT,
    STORE_MS_AT,
    SUFFIX_BYTES,
    SYS_BORN_IPV6,
    SYS_FLAG_AT,
    stamp_check,
)
from storage.log.consume_queue import ConsumeQueues, Key
from storage.log.segments import Segments

PROBES_MAX: Final = 1_000
"""Damaged entries in a row that a search looks past: more are taken as newer than any time."""

_HEAD_BYTES: Final = STORE_MS_AT + IPV6_EXTRA + 16
_U32: Final = Struct(">I")
_OFFSETS: Final = Struct(">qq")
_STORED: Final = Struct(">QQ")


class Times:
    """Searches by store time. Every method blocks; OSError as the disk says."""

    def __init__(self, disk: Disk, segments: Segments, queues: ConsumeQueues) -> None:
        self._disk = disk
        self._segments = segments
        self._queues = queues

    def first_at(self, key: Key, low: int, high: int, store_ms: int) -> int:
        """The first offset in [low, high) stored at `store_ms` or later; `high` when there is none."""
        while low < high:
            middle = (low + high) // 2
            known = self.of_first_readable(key, middle, high)
            if known is None:
                high = middle
            elif known[1] < store_ms:
                low = known[0] + 1
            else:
                high = middle
        return low

    def of_first_readable(self, key: Key, offset: int, end: int) -> tuple[int, int] | None:
        """Offset and store time (ms) of the first record in [offset, end) that can be read; None = none."""
        for at in range(offset, min(end, offset + PROBES_MAX)):
            entries = self._queues.read(key, at, 1)
            if not len(entries):
                return None
            size = int(entries["size"][0])
            store_ms = self._store_ms(int(entries["position"][0]), size, at) if size else -1
            if store_ms >= 0:
                return at, store_ms
        return None

    def _store_ms(self, position: int, size: int, queue_offset: int) -> int:
        """The record's store time, its stamp checked; -1 = it is damaged or gone."""
        segment = self._segments.locate(position)
        if segment is None or size < FIXED_SIZE or position + size > segment.end:
            return -1
        file = self._disk.open_to_read(segment.path)
        try:
            head = file.read(position - segment.start, min(size, _HEAD_BYTES))
            tail = file.read(position - segment.start + size - SUFFIX_BYTES, SUFFIX_BYTES)
        finally:
            file.close()
        if len(head) < min(size, _HEAD_BYTES) or len(tail) < SUFFIX_BYTES:
            return -1
        if _U32.unpack_from(head, MAGIC_AT)[0] != MAGIC:
            return -1
        at = STORE_MS_AT + (IPV6_EXTRA if head[SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0)
        offset, physical = _OFFSETS.unpack_from(head, QUEUE_OFFSET_AT)
        store_ms, host = _STORED.unpack_from(head, at)
        whole = stamp_check(offset, physical, store_ms, host) == _U32.unpack_from(tail, 0)[0]
        return store_ms if whole and physical == position and offset == queue_offset else -1
