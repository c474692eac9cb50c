"""Batches of records as they travel through a store, and who is told of them.

Plain classes: mypyc compiles no dataclass that has a memoryview.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from holdmq.errors import StorageError
from holdmq.record.batch import Hashes, Ints, starts_of

_ONE_START: Final = np.zeros(1, np.int64)
_ONE_START.flags.writeable = False


class BatchRun:
    """The records of one queue inside a batch, in its order.

    `base_offset` (the first queue offset), `size_bytes` (of its records) and `hashes` (tag hashes,
    None = no record has a tag) are filled by `MessageStore.append`; `is_hashed`: the appender has
    filled in the hashes itself.
    """

    __slots__ = (
        "base_offset",
        "count",
        "hashes",
        "is_hashed",
        "key_levels",
        "queue_id",
        "size_bytes",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        count: int,
        key_levels: int = 1,
        base_offset: int = -1,
        hashes: Hashes | None = None,
        is_hashed: bool = False,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.count = count
        self.key_levels = key_levels
        self.base_offset = base_offset
        self.hashes = hashes
        self.is_hashed = is_hashed
        self.size_bytes = 0


class Batch:
    """Contiguous records, as they lie (or will lie) in the log; it never straddles two segments.

    `records` must be writable until the batch is stamped, and belongs to the store from `append`
    on. `sizes` is int64, one per record. `has_keys` False: no record has a key or unique id.
    `position` is the log offset of the first byte and `store_ms` the store time of every record,
    once stamped.
    """

    __slots__ = ("_starts", "has_keys", "position", "records", "runs", "sizes", "store_ms")

    def __init__(
        self,
        records: memoryview,
        sizes: Ints,
        runs: list[BatchRun],
        position: int = -1,
        store_ms: int = 0,
        has_keys: bool = True,
    ) -> None:
        self.records = records
        self.sizes = sizes
        self.runs = runs
        self.position = position
        self.store_ms = store_ms
        self.has_keys = has_keys
        self._starts: Ints | None = None

    @property
    def starts(self) -> Ints:
        """Where every record begins in the batch. Made when it is first asked for: appending does not."""
        starts = self._starts
        if starts is None:
            starts = self._starts = starts_of(self.sizes) if len(self.sizes) != 1 else _ONE_START
        return starts

    def topics(self) -> set[str]:
        """The topics of its runs: mostly one."""
        return {run.topic for run in self.runs}

    @property
    def end(self) -> int:
        """The log offset behind the last byte."""
        return self.position + len(self.records)


class ForeignBatch(Batch):
    """A batch that another process has stamped, or an earlier one: what is in it is not known here."""

    __slots__ = ()

    @classmethod
    def of(cls, batch: Batch) -> ForeignBatch:
        """The same records, marked as such."""
        return cls(batch.records, batch.sizes, batch.runs, batch.position, batch.store_ms, batch.has_keys)


def sizes_of(records: list[bytes]) -> Ints:
    """The sizes of records, for a batch of them."""
    return np.fromiter(map(len, records), np.int64, len(records))


Appended = Callable[[Batch, StorageError | None], None]
Confirmed = Callable[[list[Batch]], None]
