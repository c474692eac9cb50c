"""The index of keys and unique ids on disk: filled by the flushing thread, searched by the reader pool.

It follows the log at its own pace: what is missing since its last durable header (all of it, when
the files were deleted) is read from the log again, a slice per step. Layout: `core.hash_index`.
Source: storage.md, Other indexes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import structlog

from holdmq.errors import BehindError, CorruptRecordError
from holdmq.files.disk import FULL_ERRORS, Disk
from storage.api.batches import Batch
from storage.api.index import LOG_END
from storage.log.core.names import name_of, offsets_of
from storage.log.index.core.hash_index import (
    ENTRY,
    ENTRY_SIZE,
    HEADER_SIZE,
    KEYS,
    SLOT,
    SLOT_SIZE,
    IndexHeader,
    Keys,
    Slots,
    add_to_slots,
    keys_of,
    link,
)

SLOTS: Final = 1 << 20
"""Slots of a file: 4 MiB of memory for the one that is being filled."""
ENTRIES_MAX: Final = 4 << 20
"""Entries of a file: four in a chain on average, 84 MB."""
PENDING_MAX: Final = 1 << 20
"""Entries that wait for a full disk (some 100 MB): past it they are read from the log again later."""
CATCH_UP_BYTES: Final = 4 << 20
"""What a step reads of the log when the index is behind: consume queues wait no longer than that takes."""
PROBES_MAX: Final = 1 << 16
"""Entries of one file that a search looks at: a key that shares its chain with one of millions ends there."""
_SLICE: Final = 1 << 16

ReadLog = Callable[[int, int, int], list[Batch]]
"""Position, bytes, end: batches from there on, as `ColdReader.read_log`."""

log = structlog.get_logger("holdmq.storage")


class KeyCandidates(NamedTuple):
    """Candidates, newest first: log offsets whose record has the hash. `is_complete`: none was left out."""

    positions: list[int]
    is_complete: bool


class _File:
    """A file of the index; `slots` are in memory while it is being filled."""

    __slots__ = ("entries", "first", "first_ms", "path", "slots", "slots_count")

    def __init__(self, path: Path, header: IndexHeader) -> None:
        self.path = path
        self.first = header.first
        self.first_ms = header.first_ms
        self.entries = header.entries
        self.slots_count = header.slots
        self.slots: Slots | None = None

    @property
    def entries_at(self) -> int:
        return HEADER_SIZE + self.slots_count * SLOT_SIZE


class KeyIndex:
    """`position`: the log is indexed up to there; `add` … `drop` belong to the flushing thread.

    `slots` and `entries_max` are of every file that is begun.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        read_log: ReadLog,
        slots: int = SLOTS,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self.position = 0
        self.written_entries = 0
        self.failures = 0
        self.discards = 0
        self.rebuilds = 0
        self._disk = disk
        self._directory = directory
        self._read_log = read_log
        self.slots = slots
        self.entries_max = entries_max
        self._files: list[_File] = []
        self._pending: list[Keys] = []
        self._pending_count = 0
        self._offered_end = 0
        self._written_end = 0
        self._synced_end = -1

    def open(self, first_position: int, end: int) -> None:
        """Load what is there for a log from `first_position` to `end`; OSError as the disk says."""
        self._disk.make_directory(self._directory)
        starts = offsets_of(self._disk.list(self._directory))
        headers = [self._header(start) for start in starts]
        known = [header for header in headers if header is not None]
        is_whole = len(known) == len(starts) > 0 and known[0].first <= first_position <= known[-1].end
        for header, following in zip(known, starts[1:], strict=False):
            is_whole = is_whole and header.end == following
        if is_whole:
            while known[-1].first > end and len(known) > 1:
                self._disk.unlink(self._directory / name_of(known.pop().first))
            self._files = [_File(self._directory / name_of(header.first), header) for header in known]
            self._written_end = min(known[-1].end, end)
            self._load_last(end)
        else:
            if end > first_position:
                self.rebuilds += 1
                log.warning("the index of keys is built again from the log", up_to=end)
            for start in starts:
                self._disk.unlink(self._directory / name_of(start))
            self._files = []
            self._written_end = first_position
            self._begin_file(0)
        self.position = self._written_end
        self._offered_end = end

    def _header(self, start: int) -> IndexHeader | None:
        file = self._disk.open_to_read(self._directory / name_of(start))
        try:
            header = IndexHeader.unpack(file.read(0, HEADER_SIZE))
        finally:
            file.close()
        return header if header is not None and header.first == start else None

    def _load_last(self, end: int) -> None:
        """Slots of the file that is being filled follow from its entries; those past the log's end go."""
        last = self._files[-1]
        slots: Slots = np.zeros(last.slots_count, np.uint32)
        count = 0
        file = self._disk.open_to_read(last.path)
        try:
            while count < last.entries:
                wanted = min(_SLICE, last.entries - count)
                raw = file.read(last.entries_at + count * ENTRY_SIZE, wanted * ENTRY_SIZE)
                entries = np.frombuffer(raw, ENTRY, len(raw) // ENTRY_SIZE)
                inside = int(np.searchsorted(entries["position"].astype(np.int64), end))
                add_to_slots(slots, entries[:inside], count + 1)
                count += inside
                if inside < wanted:
                    break
        finally:
            file.close()
        last.entries, last.slots = count, slots

    def _begin_file(self, first_ms: int) -> None:
        header = IndexHeader(self.slots, 0, self._written_end, self._written_end, first_ms)
        path = self._directory / name_of(header.first)
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            file.write([header.pack()], 0)
            file.sync()
        finally:
            file.close()
        self._disk.sync_directory(self._directory)
        made = _File(path, header)
        made.slots = np.zeros(self.slots, np.uint32)
        self._files = [*self._files, made]
        self._synced_end = self._written_end

    # Filling

    def add(self, batches: list[Batch]) -> None:
        """Take confirmed batches, in log order."""
        if self.position == self._offered_end:
            self._take(batches)
            self.position = batches[-1].end
        self._offered_end = batches[-1].end
        if self._pending_count > PENDING_MAX:
            self.discards += 1
            self._keep(np.empty(0, KEYS))
            self.position = self._written_end

    def _take(self, batches: list[Batch]) -> None:
        for batch in batches:
            if not batch.has_keys:
                continue
            keys = keys_of(batch)
            if len(keys):
                self._pending.append(keys)
                self._pending_count += len(keys)

    def _keep(self, keys: Keys) -> None:
        """These are what waits to be written."""
        self._pending = [keys] if len(keys) else []
        self._pending_count = len(keys)

    def step(self) -> bool:
        """Write what was taken, and a slice of what is missing; True = more of it is left.

        A full disk is counted and tried again; any other OSError is the caller's.
        """
        try:
            self._write()
            if self.position < self._offered_end:
                self._catch_up()
                self._write()
        except OSError as error:
            self.failures += 1
            if error.errno not in FULL_ERRORS:
                raise
            return False
        return self.position < self._offered_end

    def _catch_up(self) -> None:
        try:
            batches = self._read_log(self.position, CATCH_UP_BYTES, self._offered_end)
        except (CorruptRecordError, BehindError) as error:
            self.position = min(error.resume_at, self._offered_end)
            return
        self._take(batches)
        self.position = batches[-1].end if batches else self._offered_end

    def _write(self) -> None:
        if not self._pending:
            self._written_end = self.position
            return
        keys = np.concatenate(self._pending)
        positions = keys["position"]
        while len(keys):
            current = self._files[-1]
            room = self.entries_max - current.entries
            if room <= 0:
                self._finish_file(current)
                self._begin_file(int(keys["store_ms"][0]))
                continue
            if not current.entries:
                current.first_ms = int(keys["store_ms"][0])
            # All entries of a record lie in one file: the next one begins with the record behind.
            if room < len(keys):
                room = int(np.searchsorted(positions, positions[room - 1], "right"))
            self._append(current, keys[:room])
            keys = keys[room:]
            positions = positions[room:]
            # At once: what an error stops goes on from here.
            self._keep(keys)
            self._written_end = int(positions[0]) if len(keys) else self.position

    def _append(self, current: _File, keys: Keys) -> None:
        assert current.slots is not None
        made = link(keys, current.entries + 1, current.first_ms, current.slots)
        file = self._disk.open(current.path)
        try:
            file.write([made.tobytes()], current.entries_at + current.entries * ENTRY_SIZE)
        finally:
            file.close()
        add_to_slots(current.slots, made, current.entries + 1)
        current.entries += len(keys)
        self.written_entries += len(keys)

    def _finish_file(self, current: _File) -> None:
        """Write the slots; from now on searches read them from the file."""
        assert current.slots is not None
        file = self._disk.open(current.path)
        try:
            file.write([current.slots.astype(SLOT).tobytes()], HEADER_SIZE)
        finally:
            file.close()
        self.sync()
        current.slots = None

    def sync(self) -> None:
        """Make what was written durable, then the header that says so. OSError is final: a failed fsync."""
        if self._synced_end == self._written_end or not self._files:
            return
        current = self._files[-1]
        header = IndexHeader(
            current.slots_count, current.entries, current.first, self._written_end, current.first_ms
        )
        file = self._disk.open(current.path)
        try:
            file.sync()
            file.write([header.pack()], 0)
            file.sync()
        finally:
            file.close()
        self._synced_end = self._written_end

    def drop(self, first_position: int) -> int:
        """Remove files that speak only of the log below a position; how many those were."""
        removed = 0
        while len(self._files) > 1 and self._files[1].first <= first_position:
            gone = self._files[0]
            self._files = self._files[1:]
            self._disk.unlink(gone.path)
            removed += 1
        return removed

    def numbers(self) -> dict[str, float]:
        """Counters and gauges for metrics; any thread."""
        return {
            "key_index_entries_total": self.written_entries,
            "key_index_failures_total": self.failures,
            "key_index_discards_total": self.discards,
            "key_index_rebuilds_total": self.rebuilds,
            "key_index_files": len(self._files),
            "key_index_pending": self._pending_count,
            "key_index_position": self.position,
        }

    # Searching

    @property
    def searchable_position(self) -> int:
        """What lies below this log position is in the files, where `find` sees it."""
        return self._written_end

    def find(
        self, hash_: int, begin_ms: int, end_ms: int, max_count: int, before: int = LOG_END
    ) -> KeyCandidates:
        """Records whose key has this hash, stored from `begin_ms` to `end_ms`, included. Blocking.

        Only those below the log position `before`.
        """
        positions: list[int] = []
        is_complete = not self._pending and self.position == self._offered_end
        newer_ms = -1
        for current in reversed(self._files):
            # Store times never decrease: the next file's first is at or behind this one's last.
            if (newer_ms >= 0 and newer_ms < begin_ms) or len(positions) >= max_count:
                break
            if current.first_ms <= end_ms and current.first < before and current.entries:
                wanted = max_count - len(positions)
                found = self._find_in(current, hash_, begin_ms, end_ms, wanted, before)
                positions += found.positions
                is_complete = is_complete and found.is_complete
            if current.entries:
                newer_ms = current.first_ms
        return KeyCandidates(positions, is_complete)

    def _find_in(
        self, current: _File, hash_: int, begin_ms: int, end_ms: int, max_count: int, below: int
    ) -> KeyCandidates:
        slots = current.slots
        slot = hash_ % current.slots_count
        positions: list[int] = []
        try:
            file = self._disk.open_to_read(current.path)
        except FileNotFoundError:
            return KeyCandidates([], True)  # retention was faster
        try:
            if slots is None:
                number = int.from_bytes(file.read(HEADER_SIZE + slot * SLOT_SIZE, SLOT_SIZE), "big")
            else:
                number = int(slots[slot])
            for _ in range(PROBES_MAX):
                if not number or len(positions) >= max_count:
                    return KeyCandidates(positions, True)
                raw = file.read(current.entries_at + (number - 1) * ENTRY_SIZE, ENTRY_SIZE)
                if len(raw) < ENTRY_SIZE:
                    return KeyCandidates(positions, False)
                entry = np.frombuffer(raw, ENTRY)[0]
                store_ms = current.first_ms + int(entry["seconds"]) * 1000
                if store_ms + 999 < begin_ms:
                    return KeyCandidates(positions, True)
                position = int(entry["position"])
                if int(entry["hash"]) == hash_ and store_ms <= end_ms and position < below:
                    positions.append(position)
                before = int(entry["before"])
                if before >= number:
                    return KeyCandidates(positions, False)  # no chain goes forward: the file is damaged
                number = before
            return KeyCandidates(positions, False)
        finally:
            file.close()
