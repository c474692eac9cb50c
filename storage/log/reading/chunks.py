"""Chunks of the log: read from disk once, checked once, kept for the readers that come next.

Called on the reader pool. Behind a chunk that is read in sequence the disk is asked for more, so
that it reads while the chunk is checked: a thread for it would only contend for the interpreter.
Source: storage.md, Reads.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

from holdmq.errors import StorageError
from holdmq.record.batch import starts_of
from holdmq.record.codec import RECORD_BYTES_LIMIT
from holdmq.service.memory import memory_limit, memory_used
from storage.core.scan import head_size, whole_records
from storage.log.core.names import blank_size_at
from storage.log.open_files import OpenFiles
from storage.log.reading.activity import Activity
from storage.log.reading.core.chunks import ChunkCache, RecordChunk
from storage.log.segments import Segment, Segments

CHUNK_BYTES: Final = 1 << 20
"""One read of the log: large enough for a disk's full speed, small enough for 2 readers' memory."""
UNCACHED_BYTES: Final = 128 << 10
"""The least that is read when it cannot be kept: who reads little at a time would read it all again."""
JOIN_BYTES: Final = 64 << 10
"""A chunk begins where the last one ended if that is no farther away: no holes between chunks."""
AHEAD_BYTES: Final = CHUNK_BYTES
"""Asked of the disk ahead of who reads in sequence: it reads while a chunk is checked."""
PLACES: Final = 16
"""Locks for stretches of CHUNK_BYTES of the log: who shares one without need waits for one chunk."""
UPKEEP_S: Final = 1.0
"""Between two looks at the memory that is used, and what rates are counted over."""


class Damage(NamedTuple):
    """Why there is no record at a position of a segment."""

    segment: Segment
    position: int
    stop: int
    reason: str


class Chunks:
    """The log's chunks. Any thread of the reader pool may call it.

    `memory_limit_bytes` 0 = what `memory_limit` finds.
    """

    def __init__(
        self,
        files: OpenFiles,
        segments: Segments,
        cache: ChunkCache,
        memory_limit_bytes: int = 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.activity = Activity()
        self.reads = 0
        self.read_ahead = 0
        self.cache = cache
        self._files = files
        self._segments = segments
        self._clock = clock
        self._lock = Lock()
        self._places = [Lock() for _ in range(PLACES)]
        self._memory_limit = memory_limit(memory_limit_bytes)
        self._kept_at = float("-inf")

    def at(
        self, position: int, end: int, wanted_bytes: int = CHUNK_BYTES, keep: bool = True
    ) -> RecordChunk | Damage | None:
        """The chunk with the record at `position`, or behind a blank there; None = `end` is reached.

        `end` is the confirmed position: nothing behind it is read. `keep`: others may want it, too.
        Who wants what another thread is reading waits for it. Raises StorageError when the disk does, or when
        no segment holds the position.
        """
        while position < end:
            chunk = self.cached(position)
            if chunk is not None:
                return chunk
            segment = self._segments.locate(position)
            if segment is None:
                raise StorageError("no segment holds it", operation="read", offset=position)
            stop = min(end, segment.end)
            with self.place(position):
                with self._lock:
                    before = self.cache.before(position)
                if before is not None and position < before.end:
                    continue  # another thread has read it meanwhile
                begin, follows = _begin(before, segment, position)
                is_kept = keep and self.cache.takes
                size = CHUNK_BYTES if is_kept else min(CHUNK_BYTES, max(UNCACHED_BYTES, wanted_bytes))
                found = self._load(segment, begin, stop, size, AHEAD_BYTES if follows else 0)
                if begin < position and not (isinstance(found, RecordChunk) and position < found.end):
                    # Damage on the way: what lies behind it is not to blame.
                    found = self._load(segment, position, stop, size)
                if isinstance(found, RecordChunk) and keep:
                    with self._lock:
                        self.cache.add(found, self._clock())
            if isinstance(found, int):
                position = found
                continue
            return found
        return None

    def place(self, position: int) -> Lock:
        """Held by who reads the log there, or decodes what begins there."""
        return self._places[position // CHUNK_BYTES % PLACES]

    def cached(self, position: int) -> RecordChunk | None:
        """The chunk with the record at `position`, if it is in memory."""
        if position < self._segments.first_position:
            return None  # retention took it from the disk, and so from here
        with self._lock:
            chunk = self.cache.get(position, self._clock())
        if chunk is not None:
            self.activity.hit(chunk.segment_start)
        return chunk

    def _load(
        self, segment: Segment, position: int, stop: int, size: int, ahead: int = 0
    ) -> RecordChunk | Damage | int:
        """Read and check records from `position` on; a number is where to go on behind a blank."""
        with self._lock:
            following = self.cache.following(position)
        wanted = min(size, stop - position, following - position if following > 0 else size)
        view = self.read(segment, position, wanted, min(ahead, stop - position - wanted))
        checked = whole_records(view, position)
        if not len(checked.sizes):
            blank = blank_size_at(view, 0)
            if blank and position + blank == segment.end:
                return segment.end
            needed = head_size(view)
            if not checked.reason and len(view) < needed <= min(stop - position, RECORD_BYTES_LIMIT):
                view = self.read(segment, position, needed)
                checked = whole_records(view, position)
            if not len(checked.sizes):
                return Damage(segment, position, stop, checked.reason or "it ends nowhere")
        starts = starts_of(checked.sizes)
        view = view[: int(starts[-1] + checked.sizes[-1])]
        return RecordChunk(segment.start, position, view, starts, checked.sizes, checked.queue_offsets)

    def read(self, segment: Segment, position: int, size: int, ahead: int = 0) -> memoryview:
        """Read a stretch of a segment, unchecked; StorageError as the disk says.

        The disk is asked for `ahead` bytes behind it.
        """
        self.reads += 1
        self.read_ahead += ahead > 0
        try:
            data = self._files.read(segment.path, position - segment.start, size, ahead)
        except OSError as error:
            raise StorageError(
                error.strerror or str(error), operation="read", path=str(segment.path), offset=position
            ) from error
        self.activity.read(segment.start, len(data))
        return memoryview(data)

    # Every second

    def upkeep(self, end: int, tail_hits: int) -> None:
        """Apply the memory rules, forget what retention took, count; does nothing within a second.

        `end` is the log's, `tail_hits` how many reads memory has answered since the start.
        """
        now = self._clock()
        if now - self._kept_at < UPKEEP_S:
            return
        self._kept_at = now
        used_share = memory_used() / self._memory_limit
        with self._lock:
            self.cache.used_share = used_share
            self.cache.drop_idle(now)
            self.cache.drop_below(self._segments.first_position)
        self.activity.tick(self._segments.table, end, tail_hits, now)

    def numbers(self) -> dict[str, float]:
        """Counters and gauges, as `MessageStore.numbers`."""
        cache = self.cache
        return {
            "disk_reads_total": self.reads,
            "disk_read_bytes_total": self.activity.read_bytes,
            "read_ahead_total": self.read_ahead,
            "chunk_hits_total": cache.hits,
            "chunk_misses_total": cache.misses,
            "chunks_dropped_total": cache.dropped,
            "chunks_refused_total": cache.refused,
            "chunks": len(cache),
            "chunk_bytes": cache.size_bytes,
            "memory_used_share": cache.used_share,
            "read_files": len(self._files),
            "read_files_opened_total": self._files.opened,
        }


def _begin(before: RecordChunk | None, segment: Segment, position: int) -> tuple[int, bool]:
    """Where to begin to read for `position`, and whether the chunk before it was read."""
    if before is None or position - before.end > JOIN_BYTES or before.end <= segment.start:
        return position, before is not None and before.end == position
    return before.end, True
