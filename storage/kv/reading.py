"""Reads of what is no longer in the broker's memory: by queue, in log order, and by time. Every method
blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import local
from typing import Any, Final, NamedTuple

import numpy as np

from holdmq.errors import BehindError, CorruptRecordError
from holdmq.record.batch import Hashes, Ints, decode_columns
from holdmq.record.tag_table import TagTable
from storage.api.batches import Batch, BatchRun
from storage.api.queues import HashFilter, QueueRead, ReadStatus
from storage.core.queues import Queue, QueueRun, outside, read_memory
from storage.core.scan import KeyLevels, Whole, batch_of, part_of, whole_records
from storage.kv.core.layout import RUN, ShardKeys, offset_in
from storage.kv.server import ShardServer

READ_BYTES_MAX: Final = 8 << 20
"""What one call of the server brings: it serves nobody else meanwhile."""
READ_RECORDS_MAX: Final = 65_536
JOINED_BYTES: Final = 256 << 10
"""What is decoded in one go: producers' batches are small, and numpy costs by the call."""
_HINT: Final = "the memory of the server, or what it was restored from, damaged it; reading goes on behind it"


class Run(NamedTuple):
    """Where a run of a queue lies."""

    base_offset: int
    next_offset: int
    position: int


class CheckedRun(NamedTuple):
    """A run of a queue whose records are whole."""

    base_offset: int
    position: int
    raw: bytes
    sizes: Ints


class ServerReader:
    """Reads a shard's streams. What it gives was checked record by record."""

    def __init__(self, server: ShardServer, keys: ShardKeys, key_levels: KeyLevels) -> None:
        self.reads = self.corrupt = 0
        self._server = server
        self._keys = keys
        self._key_levels = key_levels
        self._tables = local()

    def read_queue(
        self, queue: Queue, offset: int, max_bytes: int, max_count: int, wanted: HashFilter | None
    ) -> QueueRead:
        """Read a queue from the server, at least one record if there is one."""
        answer = outside(queue, offset)
        if answer is not None:
            return answer
        count = max_count if wanted is None else READ_RECORDS_MAX
        size = max_bytes if wanted is None else READ_BYTES_MAX
        runs = self._runs(queue, offset, queue.confirmed, min(size, READ_BYTES_MAX), count)
        found = Queue(queue.topic, queue.queue_id, queue.first_offset, offset)
        checked: list[CheckedRun] = []
        fault: tuple[int, int, int, str] | None = None
        for base, following, position, raw in runs:
            if position < 0:
                break
            whole = _whole(raw, position)
            reason = whole.reason or _misplaced(whole.queue_offsets, base, following)
            if reason:
                fault = max(offset, base), following, position, reason
                break
            checked.append(CheckedRun(base, position, raw, whole.sizes))
        for run in self._decoded(queue, checked, wanted is not None):
            found.confirm(run)
        if fault is not None:
            return self._damaged(queue, *fault, found, offset)
        if not found.chunks:
            # Retention may have passed while the read was under way.
            first = max(queue.first_offset, runs[0][1] if runs else queue.confirmed)
            return QueueRead(ReadStatus.BEHIND, first, first, queue.confirmed)
        end = found.confirmed
        read = read_memory(found, offset, max_bytes, max_count, wanted)
        assert read is not None, (offset, found.memory_offset, end)
        read.end_offset = queue.confirmed
        return read

    def _runs(
        self, queue: Queue, offset: int, end: int, max_bytes: int, max_count: int
    ) -> list[tuple[int, int, int, bytes]]:
        self.reads += 1
        name = self._keys.queue(queue.topic, queue.queue_id)
        flat = self._server.run("read_queue", [self._keys.log, name], offset, end, max_bytes, max_count)
        return [
            (following - records, following, position, raw)
            for following, records, position, raw in zip(
                flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True
            )
        ]

    def _damaged(
        self, queue: Queue, at: int, following: int, position: int, reason: str, found: Queue, offset: int
    ) -> QueueRead:
        if found.chunks:
            read = read_memory(found, offset, READ_BYTES_MAX, READ_RECORDS_MAX, None)
            assert read is not None
            read.end_offset = queue.confirmed
            return read
        self.corrupt += 1
        text = f"{self._keys.log} at {position}: {reason}; {_HINT}"
        return QueueRead(
            ReadStatus.CORRUPT, max(at + 1, following), queue.first_offset, queue.confirmed, reason=text
        )

    def _decoded(self, queue: Queue, runs: list[CheckedRun], with_hashes: bool) -> Iterator[QueueRun]:
        """What a queue has of runs, their hashes made together: for a read that takes all, they are none."""
        if not runs:
            return
        records = memoryview(b"".join([run.raw for run in runs]))
        sizes = np.concatenate([run.sizes for run in runs])
        ends = np.cumsum(sizes)
        starts = ends - sizes
        lasts = np.cumsum([len(run.sizes) for run in runs])
        times = decode_columns(records, starts[lasts - 1], sizes[lasts - 1]).store_ms.tolist()
        levels = self._key_levels(queue.topic)
        hashes = self._hashes(records, starts, sizes, levels) if with_hashes else None
        first = 0
        for run, last, store_ms in zip(runs, lasts.tolist(), times, strict=True):
            own = None if hashes is None else hashes[first:last]
            count = last - first
            part = BatchRun(queue.topic, queue.queue_id, count, levels, run.base_offset, own)
            view = records[int(starts[first]) : int(ends[last - 1])]
            batch = Batch(view, run.sizes, [part], run.position, store_ms)
            yield QueueRun(run.base_offset, count, 0, batch, own)
            first = last

    def _batches(self, stored: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes, Batch | str]]:
        """Stored batches, neighbours as one: position, bytes, and a sentence where they are damaged."""
        at = 0
        while at < len(stored):
            begin, first = stored[at]
            size, last = len(first), at + 1
            while last < len(stored) and size < JOINED_BYTES and stored[last][0] == begin + size:
                size += len(stored[last][1])
                last += 1
            raw = b"".join([each for _, each in stored[at:last]]) if last > at + 1 else first
            batch = self._batch(raw, begin)
            if isinstance(batch, str) and last > at + 1:
                # One of them is damaged; the others are as good as ever.
                for place, each in stored[at:last]:
                    yield place, each, self._batch(each, place)
            else:
                yield begin, raw, batch
            at = last

    def _batch(self, raw: bytes, position: int) -> Batch | str:
        """The batch that bytes of the log are; a sentence when they are damaged."""
        whole = _whole(raw, position)
        if whole.reason:
            return whole.reason
        return batch_of(memoryview(raw), whole.sizes, position, self._key_levels, self._hashes)

    def _hashes(self, records: memoryview, starts: Ints, sizes: Ints, key_levels: int) -> Hashes | None:
        tables: dict[int, TagTable] | None = getattr(self._tables, "of_levels", None)
        if tables is None:
            tables = self._tables.of_levels = {}
        table = tables.get(key_levels)
        if table is None:
            table = tables[key_levels] = TagTable(key_levels)
        return table.hashes(records, starts, sizes)

    def read_log(self, position: int, max_bytes: int, first: int, end: int) -> list[Batch]:
        """Batches from a record's start on, nothing at or behind `end`, at least a record."""
        if position >= end:
            return []
        if position < first:
            raise BehindError(position, first)
        self.reads += 1
        flat = self._server.run("read_log", [self._keys.log], position, end, min(max_bytes, READ_BYTES_MAX))
        found: list[Batch] = []
        for begin, raw, batch in self._batches(list(zip(flat[::2], flat[1::2], strict=True))):
            if isinstance(batch, str):
                if found:
                    break
                self.corrupt += 1
                error = CorruptRecordError(
                    batch, operation="read", path=self._keys.log, offset=begin, hint=_HINT
                )
                error.resume_at = begin + len(raw)
                raise error
            at = int(np.searchsorted(batch.starts, position - begin)) if begin < position else 0
            if begin > position and not found and not self._is_hole(position, begin):
                raise BehindError(position, begin)
            if begin < position and (at == len(batch.starts) or int(batch.starts[at]) + begin != position):
                error = CorruptRecordError(
                    "no record begins here",
                    operation="read",
                    path=self._keys.log,
                    offset=position,
                    hint=_HINT,
                )
                error.resume_at = begin + (int(batch.starts[at]) if at < len(batch.starts) else len(raw))
                raise error
            fitting = int(
                np.searchsorted(batch.starts + batch.sizes, int(batch.starts[at]) + max_bytes, "right")
            )
            part = part_of(batch, at, max(at + 1, fitting))
            found.append(part)
            max_bytes -= len(part.records)
            if max_bytes <= 0 or part.end < batch.end:
                break
        if not found:
            raise BehindError(position, end)
        return found

    def _is_hole(self, position: int, begin: int) -> bool:
        """Whether an imported log has nothing between two positions; else retention took what was there."""
        following = self._server.command("HGET", self._keys.holes, position)
        return following is not None and int(following) == begin

    def position_at(self, store_ms: int, first: int, end: int) -> int:
        """The first position whose batch is stored at `store_ms` or later; `end` when none is."""
        return int(self._server.run("position_at", [self._keys.log], first, end, store_ms))

    def run_at(self, queue: Queue, store_ms: int) -> Run | None:
        """The first run of a queue that is stored at `store_ms` or later."""
        return self._run_at(queue, 2, store_ms)

    def run_from(self, queue: Queue, position: int) -> Run | None:
        """The first run of a queue at or behind a log position."""
        return self._run_at(queue, 1, position)

    def run_holding(self, queue: Queue, offset: int) -> Run | None:
        """The run of a queue that has an offset."""
        name = self._keys.queue(queue.topic, queue.queue_id)
        found = self._server.command("XRANGE", name, f"0-{offset + 1}", "+", "COUNT", 1)
        if not found:
            return None
        entry, fields = found[0]
        position, _, _, records = RUN.unpack(fields[b"p"])
        following = offset_in(entry)
        return Run(following - records, following, position)

    def _run_at(self, queue: Queue, field: int, wanted: int) -> Run | None:
        name = self._keys.queue(queue.topic, queue.queue_id)
        flat: list[Any] = self._server.run(
            "run_at", [name], queue.first_offset, queue.confirmed, field, wanted
        )
        if not flat:
            return None
        following, records, position = flat
        return Run(following - records, following, position)


def _whole(raw: bytes, position: int) -> Whole:
    """Check the records that the server gave as whole ones."""
    whole = whole_records(memoryview(raw), position)
    if whole.reason or int(whole.sizes.sum()) == len(raw):
        return whole
    return whole._replace(reason="its last record is cut")


def _misplaced(queue_offsets: Ints, base: int, following: int) -> str:
    """Why records are not those of a queue from `base` to before `following`; empty = they are."""
    if len(queue_offsets) == following - base and (queue_offsets == np.arange(base, following)).all():
        return ""
    return f"its records are not those of the offsets {base} to {following - 1}"
