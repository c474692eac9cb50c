"""Chunks of the log in memory for cold readers, and what may stay there: pure decisions.

The rules are EQueue's: what nobody used for IDLE_S goes as soon as DROP_ABOVE of the memory limit
is in use, and nothing new stays above ADD_BELOW. Source: storage.md, Reads.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Final

from holdmq.record.batch import Ints
from storage.api.batches import Batch

IDLE_S: Final = 5.0
"""A chunk that nobody asked for in this time is the first to go."""
DROP_ABOVE: Final = 0.40
"""Share of the memory limit from which on idle chunks are dropped."""
ADD_BELOW: Final = 0.75
"""Share of the memory limit up to which chunks are kept at all."""
CHUNK_OVERHEAD_BYTES: Final = 6_000
"""What a chunk costs beside its bytes and its 40 bytes per record: objects and list places."""
_RECORD_OVERHEAD_BYTES: Final = 40


class RecordChunk:
    """Whole records of one segment, one behind the other, checked when they came from disk.

    `batch` is made for the first who follows the log.
    """

    __slots__ = (
        "batch", "end", "position", "queue_offsets", "segment_start", "sizes", "starts",
        "used_at", "view",
    )  # fmt: skip

    def __init__(
        self,
        segment_start: int,
        position: int,
        view: memoryview,
        starts: Ints,
        sizes: Ints,
        queue_offsets: Ints,
    ) -> None:
        self.segment_start = segment_start
        self.position = position
        self.end = position + len(view)
        self.view = view
        self.starts = starts
        self.sizes = sizes
        self.queue_offsets = queue_offsets
        self.batch: Batch | None = None
        self.used_at = 0.0

    @property
    def size_bytes(self) -> int:
        """What it counts for in the bound."""
        return len(self.view) + _RECORD_OVERHEAD_BYTES * len(self.sizes) + CHUNK_OVERHEAD_BYTES


class ChunkCache:
    """Chunks that do not overlap, bounded by `max_bytes`, the least recently used dropped first.

    `used_share` is how much of the memory limit the process uses, as far as is known. Not for
    several threads at once: the caller locks.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.used_share = 0.0
        self.hits = 0
        self.misses = 0
        self.dropped = 0
        self.refused = 0
        self._positions: list[int] = []
        self._chunks: OrderedDict[int, RecordChunk] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def takes(self) -> bool:
        """Whether something new may stay."""
        return self.max_bytes > 0 and self.used_share < ADD_BELOW

    def get(self, position: int, now: float) -> RecordChunk | None:
        """The chunk that holds a position."""
        chunk = self.before(position)
        if chunk is None or position >= chunk.end:
            self.misses += 1
            return None
        self.hits += 1
        chunk.used_at = now
        self._chunks.move_to_end(chunk.position)
        return chunk

    def before(self, position: int) -> RecordChunk | None:
        """The last chunk that begins at or before a position; this is no use of it."""
        index = bisect_right(self._positions, position) - 1
        return self._chunks[self._positions[index]] if index >= 0 else None

    def following(self, position: int) -> int:
        """Where the next chunk behind a position begins; -1 = there is none."""
        index = bisect_right(self._positions, position)
        return self._positions[index] if index < len(self._positions) else -1

    def add(self, chunk: RecordChunk, now: float) -> bool:
        """Keep a chunk; False = it overlaps one that is here, or memory is short."""
        before = self.before(chunk.position)
        following = self.following(chunk.position)
        if (before is not None and before.end > chunk.position) or 0 <= following < chunk.end:
            return False
        if not self.takes or chunk.size_bytes > self.max_bytes:
            self.refused += 1
            return False
        while self.size_bytes + chunk.size_bytes > self.max_bytes:
            self._drop(next(iter(self._chunks)))
        chunk.used_at = now
        insort(self._positions, chunk.position)
        self._chunks[chunk.position] = chunk
        self.size_bytes += chunk.size_bytes
        return True

    def drop_idle(self, now: float) -> None:
        """Drop what was not used lately, if memory is wanted for something else."""
        if self.used_share < DROP_ABOVE:
            return
        for position, chunk in list(self._chunks.items()):
            if now - chunk.used_at < IDLE_S:
                return
            self._drop(position)

    def drop_below(self, position: int) -> None:
        """Drop what the log no longer holds."""
        while self._positions and self._positions[0] < position:
            self._drop(self._positions[0])

    def _drop(self, position: int) -> None:
        chunk = self._chunks.pop(position)
        self._positions.remove(position)
        self.size_bytes -= chunk.size_bytes
        self.dropped += 1
