"""What the key index and the timer must say of a log, and the comparison with a store that has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from sim_disk import SimDisk

from holdmq.record.codec import decode_record
from holdmq.record.properties import KEY, UNIQUE, decode_properties
from storage.api.batches import Batch
from storage.core.keys import hash_of
from storage.log.index.core.hash_index import ENTRY, HEADER_SIZE, SLOT_SIZE, IndexHeader
from storage.log.store import LogStore
from storage.log.writer import Pending

Named = tuple[bytes, str, str]
"""Key or unique id: its marker, its topic, its value."""


class Note(NamedTuple):
    """A record of interest: its names; `waits`, the timer that it is; `leaves`, the one whose copy it is."""

    position: int
    names: list[Named]
    waits: int | None
    leaves: int | None


def notes_of(batch: Batch) -> list[Note]:
    """The notes of a stamped batch."""
    notes: list[Note] = []
    for start in batch.starts.tolist():
        record = decode_record(batch.records, start)
        topic = record.topic.decode()
        pairs = decode_properties(bytes(record.properties)).pairs
        names = [
            (marker, topic, value)
            for key, value in pairs
            for marker in (KEY, UNIQUE)
            if key.encode() + b"\x01" == marker
        ]
        origins = [int(value.split("/")[2]) for key, value in pairs if key == "ORIGIN"]
        waits = leaves = None
        if topic == "%TIMER":
            waits = origins[0] if origins else record.queue_offset
        elif origins:
            leaves = origins[0]
        if names or waits is not None or leaves is not None:
            notes.append(Note(batch.position + start, names, waits, leaves))
    return notes


def check_keys(
    store: LogStore, disk: SimDisk, directory: Path, notes: list[Note], chance: Random | None
) -> None:
    """The index, brought to the log's end, has every name of the log and no other."""
    keys, first = store.index.keys, store.first_position
    while keys.step():
        pass
    assert store.index.indexed_position == store.confirmed_position
    keys.sync()
    found: Counter[tuple[int, int]] = Counter()
    for name in disk.list(directory):
        content = disk.content(directory / name)
        header = IndexHeader.unpack(content[:HEADER_SIZE])
        assert header is not None
        at = HEADER_SIZE + header.slots * SLOT_SIZE
        entries = np.frombuffer(bytes(content[at:]), ENTRY, header.entries)
        found.update(zip(entries["hash"].tolist(), entries["position"].tolist(), strict=True))
    wanted: dict[Named, list[int]] = {}
    expected: Counter[tuple[int, int]] = Counter()
    for note in notes:
        for name in note.names if note.position >= first else ():
            marker, topic, value = name
            expected[hash_of(marker, topic.encode(), value.encode()), note.position] += 1
            wanted.setdefault(name, []).append(note.position)
    # A file goes when nothing in it is of use; until then it may have more.
    assert {each: count for each, count in found.items() if each[1] >= first} == expected
    if chance is not None and wanted:
        names = chance.sample(sorted(wanted), min(2, len(wanted)))
        for name in (*names, (UNIQUE, "a", "nobody"), (KEY, "nowhere", "k1")):
            check_found(store, name, wanted.get(name, []))


def check_found(store: LogStore, name: Named, positions: list[int]) -> None:
    """A search gives exactly the records at these places, newest first."""
    marker, topic, value = name
    search = store.index.by_key if marker == KEY else store.index.by_unique_id
    matches = search(topic, value, max_count=1000)
    assert [record.physical_offset for record in matches.records] == positions[::-1], name
    assert matches.is_complete


def pending_in(notes: Iterable[Note], first_position: int) -> set[int]:
    """Timers that were scheduled and not released, wherever in the log; each still lies in it.

    `notes` are of the whole log, also of what retention took: what waited there was appended again.
    """
    pending: set[int] = set()
    kept: set[int] = set()
    for note in notes:
        if note.waits is not None:
            pending.add(note.waits)
            if note.position >= first_position:
                kept.add(note.waits)
        elif note.leaves is not None:
            pending.discard(note.leaves)
    assert pending <= kept, "no segment goes before its timers"
    return pending


def check_timer(store: LogStore, notes: Iterable[Note], run_out: Callable[[], bool]) -> None:
    """Those wait that must. If `run_out` (it lets all be due): each leaves, once, and nothing else does."""
    pending = pending_in(notes, store.first_position)
    put, left = store.writer.put, list[int]()

    def watched(item: Pending) -> None:
        left.extend(note.leaves for note in notes_of(item.batch) if note.leaves is not None)
        put(item)

    store.writer.put = watched
    store.timer.step()
    assert store.timer.pending == len(pending)
    if not run_out():
        return
    for _ in range(20):
        store.timer.step()
        while store.writer.step():
            pass
        if not store.timer.pending:
            break
    assert sorted(left) == sorted(pending)
    assert store.timer.pending == 0
