"""Stamps and hashes of a batch, by the cheaper of two ways."""

from __future__ import annotations

import numpy as np

from holdmq.record.batch import stamp, tag_hashes
from storage.api.batches import Batch
from storage.core.stamps import EACH_BYTES_MAX, TagHashes, stamp_each


class Stamper:
    """Writes what a batch and its runs know of their place into the records."""

    def __init__(self) -> None:
        self._hashes: dict[int, TagHashes] = {}

    def stamp(self, batch: Batch, store_id: bytes) -> None:
        """Stamp a batch that has its position, and runs that have their base offsets; hash the tags.

        `has_keys` becomes False when none of the records has one.
        """
        if len(batch.records) <= EACH_BYTES_MAX * len(batch.sizes):
            self._stamp_each(batch, store_id)
        else:
            _stamp_at_once(batch, store_id)

    def _stamp_each(self, batch: Batch, store_id: bytes) -> None:
        records, runs = batch.records, batch.runs
        data = bytes(records)
        host = int.from_bytes(store_id, "big", signed=True)
        start = 0
        has_keys = False
        for run in runs:
            if run.is_hashed:
                has_keys = True  # the appender knows
            else:
                tagged = self._hashes_of(run.key_levels).each(data, start, run.count)
                run.hashes = np.frombuffer(tagged.hashes, np.uint64) if tagged.has_tags else None
                has_keys = has_keys or tagged.has_keys
            end = stamp_each(
                records, data, start, run.count, run.base_offset, batch.position, batch.store_ms, host
            )
            run.size_bytes = end - start
            start = end
        batch.has_keys = batch.has_keys and has_keys

    def _hashes_of(self, key_levels: int) -> TagHashes:
        found = self._hashes.get(key_levels)
        if found is None:
            found = self._hashes[key_levels] = TagHashes(key_levels)
        return found


def _stamp_at_once(batch: Batch, store_id: bytes) -> None:
    starts, sizes = batch.starts, batch.sizes
    offsets = np.arange(len(sizes), dtype=np.int64)
    first = 0
    for run in batch.runs:
        last = first + run.count
        offsets[first:last] += run.base_offset - first
        run.size_bytes = int(sizes[first:last].sum())
        if not run.is_hashed:
            run.hashes = tag_hashes(batch.records, starts[first:last], sizes[first:last], run.key_levels)
        first = last
    stamp(batch.records, starts, sizes, offsets, batch.position, batch.store_ms, store_id)
