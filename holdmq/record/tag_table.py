"""Hashes of tags seen before, for many records at once: what a cold read can afford.

`holdmq.record.batch.tag_hashes` looks every tag up in a dict; this finds them with a few numpy
calls, which let other threads work meanwhile. The table is direct-mapped: a tag is compared in full
with the one in its slot, and what is not there is hashed and takes the slot.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from holdmq.record.batch import Hashes, Ints, properties_bounds, tag_hashes
from holdmq.record.codec import Buffer
from holdmq.record.tags import TagCache

SLOTS_BITS: Final = 15
"""32,768 tags, the devices of a broker: 1.3 MB a table."""
TAG_BYTES_MAX: Final = 31
"""Longer tags are hashed one by one."""

_ROW: Final = TAG_BYTES_MAX + 1  # with the byte that ends it
_WORDS: Final = _ROW // 8
_TAGS: Final = np.frombuffer(b"TAGS\x01", "V5")[0]
_FACTORS: Final = np.array(
    [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64
)
_ENDS: Final = np.uint64(0x0202020202020202)
_LOWS: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)


class TagTable:
    """Tags and their hashes, for one number of key levels. One thread at a time."""

    def __init__(self, key_levels: int) -> None:
        self._key_levels = key_levels
        self._cache = TagCache(key_levels)
        self._tags = np.zeros((1 << SLOTS_BITS, _WORDS), np.uint64)
        self._hashes = np.zeros(1 << SLOTS_BITS, np.uint64)

    def hashes(self, records: Buffer, starts: Ints, sizes: Ints) -> Hashes | None:
        """Return what `tag_hashes` does, faster where a tag is known."""
        raw = np.frombuffer(records, np.uint8)
        begins, ends = properties_bounds(raw, starts, sizes)
        if int(begins[-1]) + 5 > len(raw):
            return tag_hashes(records, starts, sizes, self._key_levels)
        heads: npt.NDArray[np.void] = np.ndarray((len(raw) - 4,), "V5", raw, strides=(1,))
        if not ((heads[begins] == _TAGS) & (ends > begins + 5)).all():
            return tag_hashes(records, starts, sizes, self._key_levels)
        begins = begins + 5
        whole = begins + _ROW <= len(raw)
        rows: npt.NDArray[np.void] = np.ndarray((max(0, len(raw) - _ROW + 1),), f"V{_ROW}", raw, strides=(1,))
        tags = rows[begins[whole]].view("<u8").reshape(-1, _WORDS)
        has_end = _clear_behind_end(tags)
        slots = (tags * _FACTORS).sum(axis=1, dtype=np.uint64) >> np.uint64(64 - SLOTS_BITS)
        found: Hashes = np.zeros(len(begins), np.uint64)
        found[whole] = np.where((self._tags[slots] == tags).all(axis=1) & has_end, self._hashes[slots], 0)
        missing = np.flatnonzero(found == 0)
        if len(missing):
            data = bytes(memoryview(records))
            known = np.full(len(begins), -1, np.int64)
            known[np.flatnonzero(whole)[has_end]] = np.flatnonzero(has_end)
            for index in missing.tolist():
                begin = int(begins[index])
                value = self._cache.hash(data[begin : data.find(b"\x02", begin)])
                found[index] = value
                row = int(known[index])
                if row >= 0:
                    self._tags[slots[row]] = tags[row]
                    self._hashes[slots[row]] = value
        return found


def _clear_behind_end(tags: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Set what follows each row's first U+0002 to zero; True for every row that has one."""
    ended = np.zeros(len(tags), np.bool_)
    for word in range(_WORDS):
        values = tags[:, word]
        # The lowest byte that is 2 has its high bit set here, and no lower one has.
        other = values ^ _ENDS
        marks = (other - _LOWS) & ~other & _HIGHS
        lowest = marks & (~marks + _ONE)
        # All up to that byte; everything when there is none: a shift out of the word leaves 0 - 1.
        tags[:, word] = np.where(ended, 0, values & ((lowest << _ONE) - _ONE))
        ended |= marks != 0
    return ended
