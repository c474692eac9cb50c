"""Checks of a whole store, and its exact sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from holdmq.errors import HoldMQError, StorageError
from holdmq.files.atomic_file import AtomicFile
from holdmq.names.topics import PRODUCED_TOPIC
from holdmq.record.batch import decode_columns
from storage.api.batches import Batch
from storage.core.scan import KeyLevels, batch_of, in_sequence
from storage.log.consume_queue import Key
from storage.log.core.entries import ENTRY, ENTRY_SIZE, Entries, entries_of
from storage.log.core.names import name_of, offsets_of
from storage.log.offline.state import logged_files
from storage.log.offline.store import Finding, OfflineStore, Report
from storage.log.state.following import CONFIG_KEY

_LOW: Final = np.uint64(0xFFFFFFFF)


@dataclass(slots=True)
class QueueSums:
    """What the log holds of one queue; bytes of bodies, and of whole records."""

    topic: str
    queue_id: int
    first_offset: int
    end_offset: int = 0
    messages: int = 0
    body_bytes: int = 0
    record_bytes: int = 0


@dataclass(slots=True)
class LogSums:
    """What a store holds; `end` is the log offset behind its last whole record."""

    first_position: int = 0
    end: int = 0
    segments: int = 0
    first_store_ms: int = 0
    last_store_ms: int = 0
    findings: int = 0
    queues: dict[Key, QueueSums] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        """Count the records of a batch."""
        columns = decode_columns(batch.records, batch.starts, batch.sizes)
        at = 0
        for run in batch.runs:
            part = slice(at, at + run.count)
            at += run.count
            key = (run.topic, run.queue_id)
            sums = self.queues.get(key)
            if sums is None:
                sums = self.queues[key] = QueueSums(run.topic, run.queue_id, run.base_offset)
            sums.end_offset = run.base_offset + run.count
            sums.messages += run.count
            sums.body_bytes += int(columns.body_size[part].sum())
            sums.record_bytes += int(batch.sizes[part].sum())
        self.first_store_ms = self.first_store_ms or int(columns.store_ms[0])
        self.last_store_ms = batch.store_ms
        self.end = batch.end


def sums_of(store: OfflineStore, report: Report) -> LogSums:
    """Count everything in the log; first offsets are the checkpoint's where it has them."""
    sums = LogSums(store.segments.first_position, store.segments.first_position)
    sums.segments = len(store.segments.table)
    for item in store.walk(lambda _: 1, report):
        if isinstance(item, Finding):
            sums.findings += 1
        else:
            sums.add(item)
    for key in [key for key in sums.queues if key[0] == PRODUCED_TOPIC]:
        del sums.queues[key]
    for key, (first, _) in store.checkpoint.queues.items():
        if key in sums.queues:
            sums.queues[key].first_offset = max(first, sums.queues[key].first_offset)
    return sums


class Verification:
    """Looks at every byte of a store. `records`, `entries` and `files` count what was looked at."""

    def __init__(self, store: OfflineStore, key_levels: KeyLevels | None) -> None:
        """`key_levels` None = unknown: the half of a tag's hash that depends on it is not compared."""
        self.records = 0
        self.entries = 0
        self.files = 0
        self.end = 0
        self._store = store
        self._key_levels: KeyLevels = key_levels or (lambda _: 1)
        self._compares_prefix = key_levels is not None
        self._ends: dict[Key, int] = {}
        self._store_ms = 0
        self._is_gap = False

    def run(self, report: Report) -> Iterator[Finding]:
        """Everything that is wrong, in the order of files and offsets."""
        yield from self._json_files()
        yield from self._logged_files()
        store = self._store
        self.end = store.segments.first_position
        for item in store.walk(self._key_levels, report):
            if isinstance(item, Finding):
                self._is_gap = True
                yield item
                continue
            yield from self._sequence(item)
            yield from self._entries_of(item)
            self.records += sum(run.count for run in item.runs if run.topic != PRODUCED_TOPIC)
            self.end = item.end
        yield from store.reserve()
        yield from self._clean_end()
        yield from self._behind_queues()

    def _json_files(self) -> Iterator[Finding]:
        store = self._store
        for directory in (store.directory, store.directory / "config"):
            for name in sorted(store.disk.list(directory)):
                if name.endswith((".json", ".json.bak")):
                    self.files += 1
                    path = directory / name
                    try:
                        problem = AtomicFile(path, store.disk).problem()
                    except StorageError as error:
                        problem = str(error)
                    if problem:
                        yield Finding(str(path), 0, problem)

    def _logged_files(self) -> Iterator[Finding]:
        """State files that the log has must be whole: chunks, and what they hold."""
        directory = self._store.directory
        if CONFIG_KEY not in self._store.checkpoint.queues and CONFIG_KEY not in self._store.queues.on_disk():
            return
        try:
            files = logged_files(self._store)
        except StorageError as error:
            yield Finding(str(directory), 0, str(error))
            return
        for name in sorted(files.names()):
            self.files += 1
            try:
                AtomicFile(directory / name).of_bytes(files.content(name) or b"")
            except HoldMQError as error:
                yield Finding(str(directory / name), 0, f"in the log: {error}")

    def _sequence(self, batch: Batch) -> Iterator[Finding]:
        """Offsets are dense and times ascend; behind damage a queue may go on anywhere."""
        while len(batch.sizes):
            sequence = in_sequence(batch, self._ends, self._store_ms)
            self._store_ms = batch.store_ms
            good = sequence.records
            if good == len(batch.sizes):
                return
            if not self._is_gap:
                position = batch.position + int(batch.starts[good])
                segment = self._store.segments.locate(position)
                path, start = (str(segment.path), segment.start) if segment else ("", 0)
                yield Finding(path, position - start, sequence.reason, position)
            begin = int(batch.starts[good])
            rest = batch.records[begin:]
            batch = batch_of(rest, batch.sizes[good:], batch.position + begin, self._key_levels)
            self._store_ms = 0
            for run in batch.runs[:1]:
                self._ends[run.topic, run.queue_id] = run.base_offset

    def _entries_of(self, batch: Batch) -> Iterator[Finding]:
        """Compare the batch's entries with the files, each queue's in one go."""
        entries = entries_of([batch])
        wanted: dict[Key, tuple[int, list[Entries]]] = {}
        at = 0
        for run in batch.runs:
            key = (run.topic, run.queue_id)
            first, parts = wanted.setdefault(key, (run.base_offset, []))
            if first + sum(map(len, parts)) != run.base_offset:
                # Offsets that are not dense were reported; what follows is a stretch of its own.
                yield from self._compare(key, first, parts)
                parts = []
                wanted[key] = (run.base_offset, parts)
            parts.append(entries[at : at + run.count])
            at += run.count
        for key, (first, parts) in wanted.items():
            yield from self._compare(key, first, parts)

    def _compare(self, key: Key, offset: int, parts: list[Entries]) -> Iterator[Finding]:
        wanted = np.frombuffer(b"".join([part.tobytes() for part in parts]), ENTRY)
        first, saved = self._store.checkpoint.queues.get(key, (0, 0))
        # Behind the checkpoint a crash may leave anything: a start writes these entries again.
        judged_end = saved if self._store.clean_end is None else offset + len(wanted)
        skip = min(len(wanted), max(0, first - offset))
        wanted, offset = wanted[skip : max(0, judged_end - offset)], offset + skip
        while len(wanted):
            found = self._store.queues.read(key, offset, len(wanted))
            count = len(found)
            if not count:
                yield self._of_entry(key, offset, "the entry, and maybe more, is missing")
                return
            self.entries += 0 if key[0] == PRODUCED_TOPIC else count
            same = found["position"] == wanted["position"][:count]
            same &= found["size"] == wanted["size"][:count]
            differing = found["hash"].astype(np.uint64) ^ wanted["hash"][:count].astype(np.uint64)
            same &= (differing if self._compares_prefix else differing & _LOW) == 0
            for index in np.flatnonzero(~same).tolist():
                yield self._of_entry(key, offset + index, "the entry is not what the record says")
            offset += count
            wanted = wanted[count:]

    def _of_entry(self, key: Key, offset: int, what: str) -> Finding:
        directory = self._store.queues.directory / key[0] / str(key[1])
        starts = [at for at in offsets_of(self._store.disk.list(directory)) if at <= offset * ENTRY_SIZE]
        start = starts[-1] if starts else offset * ENTRY_SIZE
        what = f"{key[0]}/{key[1]} offset {offset}: {what}"
        return Finding(str(directory / name_of(start)), offset * ENTRY_SIZE - start, what)

    def _clean_end(self) -> Iterator[Finding]:
        clean_end = self._store.clean_end
        if clean_end is not None and clean_end != self.end:
            yield Finding(
                str(self._store.directory / "clean"),
                0,
                f"it says {clean_end}, but the log ends at {self.end}",
            )

    def _behind_queues(self) -> Iterator[Finding]:
        """Entries that no record has."""
        if self._store.clean_end is None:
            return
        for key in sorted(self._store.queues.on_disk()):
            bounds = self._store.checkpoint.queues.get(key, (0, 0))
            end = self._ends.get(key, bounds[1])
            found = self._store.queues.read(key, end, 1 << 16)
            if not len(found):
                continue
            raw = np.frombuffer(found.tobytes(), ENTRY)
            for index in np.flatnonzero((raw["position"] != 0) | (raw["size"] != 0) | (raw["hash"] != 0))[:1]:
                yield self._of_entry(key, end + int(index), "no record has this entry")
