"""Raw reads give exactly the log's bytes, from memory and from the files alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_disk import SimDisk
from stepped_store import Stepped

from holdmq.errors import BehindError, CorruptRecordError
from storage.api.replication import Epoch, LogBytes
from storage.log.core.names import blank_parts, name_of
from storage.log.open_files import OpenFiles
from storage.log.replicated.raw_reads import RawReader, read_memory

SEGMENT = 4096
ONE = (Epoch(1, 0),)


class Filled:
    """A store with several segments, and its log as its files have it."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.stepped = Stepped(self.disk, SEGMENT)
        self.positions: list[int] = []
        for number in range(20):
            self.stepped.append(number % 3, 3, body=b"x" * 120)
            self.positions.append(self.stepped.store.confirmed_position)
        store = self.stepped.store
        self.end = store.confirmed_position
        segments = store.writer.segments
        self.segments = segments
        self.content = b"".join(bytes(self.disk.content(segment.path)) for segment in segments.table)[
            : self.end
        ]
        self.reader = RawReader(OpenFiles(self.disk), segments, lambda: self.end)

    def walk(self, max_bytes: int, epochs: tuple[Epoch, ...] = ONE) -> list[LogBytes]:
        found, position = [], 0
        while position < self.end:
            read = self.reader.read(epochs, position, max_bytes)
            assert read.position == position
            assert read.end > position
            found.append(read)
            position = read.end
        return found


@pytest.fixture
def filled() -> Filled:
    return Filled()


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_the_files_give_every_byte_once(filled: Filled, max_bytes: int) -> None:
    blanks = 0
    for read in filled.walk(max_bytes):
        data = b"".join(bytes(part) for part in read.parts)
        if len(data) == read.end - read.position:
            assert data == filled.content[read.position : read.end]
        else:
            blanks += 1
            assert data == blank_parts(read.end - read.position)[0]
        segment = filled.segments.locate(read.position)
        assert segment is not None
        assert read.end <= segment.end
    assert blanks == len(filled.segments.table) - 1


def test_an_answer_ends_where_an_epoch_begins(filled: Filled) -> None:
    start = filled.positions[7]
    ends = [read.end for read in filled.walk(1 << 20, (Epoch(1, 0), Epoch(5, start)))]
    assert start in ends


def test_nothing_is_read_behind_what_is_written(filled: Filled) -> None:
    filled.end = filled.positions[4]
    assert filled.walk(1 << 20)[-1].end == filled.positions[4]
    assert filled.reader.read(ONE, filled.end, 1000) == LogBytes(filled.end, filled.end, ())


def test_what_is_gone_or_damaged_is_said(filled: Filled) -> None:
    path = Path("/store/commitlog") / name_of(0)
    filled.disk.content(path)[200] ^= 255
    with pytest.raises(CorruptRecordError):
        for _ in filled.walk(1 << 20):
            pass
    second = filled.segments.table[1]
    filled.segments.drop_oldest()
    with pytest.raises(BehindError) as behind:
        filled.reader.read(ONE, 0, 1000)
    assert behind.value.resume_at == second.start


def test_memory_and_files_agree(filled: Filled) -> None:
    store = filled.stepped.store
    tail = store._appends.tail
    from_memory = 0
    for position in [0, *filled.positions[:-1]]:
        read = read_memory(tail, (), filled.end, ONE, position, 1 << 20)
        if read is None:
            continue  # the files have it: it left memory, or a blank comes next
        from_memory += 1
        assert b"".join(bytes(part) for part in read.parts) == filled.content[position : read.end]
        cold = filled.reader.read(ONE, position, 1 << 20)
        assert read.end <= cold.end
    assert from_memory
    last = filled.positions[-2]
    limited = read_memory(tail, (), filled.end, (Epoch(1, 0), Epoch(2, last)), filled.positions[-4], 1 << 20)
    assert limited is None or limited.end <= last
