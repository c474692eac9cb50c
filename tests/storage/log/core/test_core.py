"""The pure parts: places, entries, epochs, and the bounded tail."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import StoreFormatError
from holdmq.record.codec import BLANK_SIZE_MIN
from storage.api.batches import Batch, BatchRun
from storage.api.replication import Epoch
from storage.core.epochs import Epochs
from storage.core.queues import Queue, QueueRun, read_memory
from storage.core.tail import BATCH_OVERHEAD_BYTES, Tail
from storage.log.core.entries import (
    ENTRY,
    ENTRY_SIZE,
    entries_of,
    file_size_of,
    first_at_or_after,
    ranges_of,
    span_to_read,
    spans_to_write,
)
from storage.log.core.names import Placement, blank_parts, blank_size_at, holding, name_of, offsets_of, place


def a_batch(position: int, size: int = 100, count: int = 1) -> Batch:
    batch = Batch(
        memoryview(bytearray(size * count)), np.full(count, size), [BatchRun("t", 0, count)], position
    )
    batch.runs[0].base_offset = position // size
    return batch


def test_names_are_offsets_of_20_digits() -> None:
    assert name_of(1 << 30) == "00000000001073741824"
    assert offsets_of(["00000000000000000020", "x", "1", "00000000000000000000", "0" * 21]) == [0, 20]
    assert [holding([10, 30], at) for at in (9, 10, 29, 30, 99)] == [-1, 0, 0, 1, 1]


def test_batches_leave_room_for_a_blank() -> None:
    assert place(0, 100, 88) == Placement(0, 0)
    assert place(0, 100, 89) == Placement(100, 100)
    assert place(50, 100, 38) == Placement(50, 0)
    assert place(50, 100, 39) == Placement(100, 50)


@given(st.lists(st.integers(1, 988), max_size=60))
def test_batches_lie_dense_but_for_blanks(sizes: list[int]) -> None:
    end = 0
    segment_end = 1000
    for size in sizes:
        at, blank = place(end, segment_end, size)
        assert at == end + blank
        if blank:
            assert blank >= BLANK_SIZE_MIN
            assert at == segment_end
            segment_end += 1000
        end = at + size
        assert end + BLANK_SIZE_MIN <= segment_end


def test_a_blank_is_known_by_its_head() -> None:
    head, tail = blank_parts(500)
    assert (head, tail) == (bytes.fromhex("000001f4484d5130"), bytes.fromhex("000001f4"))
    assert blank_size_at(b"??" + head, 2) == 500
    assert blank_size_at(head[:7], 0) == 0
    assert blank_size_at(bytes(8), 0) == 0


def test_entries_are_20_bytes_big_endian() -> None:
    one, two = a_batch(1000, count=2), a_batch(5000)
    one.runs[0].hashes = np.array([1, 1 << 63], np.uint64)
    raw = entries_of([one, two]).tobytes()
    assert raw.hex() == (
        "00000000000003e8000000640000000000000001"
        "000000000000044c000000648000000000000000"
        "0000000000001388000000640000000000000000"
    )  # fmt: skip
    assert ENTRY.itemsize == ENTRY_SIZE


def test_file_sizes_round_up_to_whole_entries() -> None:
    assert [file_size_of(n) for n in (20, 1024, 60_000_000)] == [20, 1040, 60_000_000]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), max_size=20), st.integers(0, 30))
def test_entries_written_anywhere_are_read_where_they_were_written(
    writes: list[tuple[int, int]], first: int
) -> None:
    files: dict[int, dict[int, int]] = {}
    following = first
    for count, file_entries in writes:
        for span in spans_to_write(sorted(files), following, count, file_entries * ENTRY_SIZE):
            assert span.start + span.at == span.first * ENTRY_SIZE
            file = files.setdefault(span.start, {})
            for i in range(span.entries):
                file[span.at // ENTRY_SIZE + i] = span.first + i
        following += count
    starts = sorted(files)
    assert sum(map(len, files.values())) == following - first
    assert all(b - a == len(files[a]) * ENTRY_SIZE for a, b in pairwise(starts))
    offset = first
    while offset < following:
        span = span_to_read(starts, offset, following - offset)
        assert span is not None
        assert span.entries > 0
        for i in range(span.entries):
            assert files[span.start][span.at // ENTRY_SIZE + i] == offset + i
        offset += span.entries
    assert span_to_read([40], 1, 5) is None


def test_the_first_entry_behind_a_position_is_found() -> None:
    positions = [10, 20, 30, -1, -1]
    assert [first_at_or_after(0, 5, at, positions.__getitem__) for at in (0, 10, 11, 30, 31)] == [
        0,
        0,
        1,
        2,
        3,
    ]
    assert first_at_or_after(0, 3, 99, positions.__getitem__) == 3


def test_reads_are_grouped_within_a_segment_a_gap_and_a_size() -> None:
    positions, sizes = np.array([0, 10, 25, 90, 100, 130]), np.array([10, 10, 10, 10, 30, 500])
    ranges = ranges_of(positions, sizes, [0, 100], 5, 60)
    assert [tuple(r) for r in ranges] == [(0, 35, 0, 3), (90, 10, 3, 1), (100, 30, 4, 1), (130, 500, 5, 1)]


def test_epochs_say_what_survived() -> None:
    epochs = Epochs([])
    assert (epochs.current, epochs.limit_of(1)) == (1, None)
    epochs.rise(500)
    epochs.rise(400 + 200)
    assert epochs.current == 3
    assert [epochs.limit_of(e) for e in (1, 2, 3)] == [500, 600, None]
    assert Epochs.of_content(epochs.content(), "p").content() == epochs.content()


@pytest.mark.parametrize(
    "content", [{}, {"epochs": []}, {"epochs": [[2, 0], [1, 5]]}, {"epochs": [[1, 9], [2, 5]]}]
)
def test_epochs_that_do_not_rise_are_refused(content: dict[str, object]) -> None:
    with pytest.raises(StoreFormatError, match="rising epochs"):
        Epochs.of_content(content, "epoch.json")
    assert Epochs([Epoch(1, 0)]).current == 1


def test_the_tail_keeps_what_has_no_index_file_yet() -> None:
    tail = Tail(0, 3 * (100 + BATCH_OVERHEAD_BYTES))
    batches = [a_batch(i * 100) for i in range(5)]
    for batch in batches:
        tail.add(batch)
    assert tail.evict(0) == []
    assert tail.evict(100) == batches[:1]
    assert tail.evict(500) == batches[1:2]
    assert (len(tail), tail.first_position) == (3, 200)
    assert tail.since(100, 1000) is None
    assert tail.since(200, 1000) == batches[2:]
    assert tail.since(250, 100) == batches[2:3]
    assert tail.since(500, 1000) == []


def test_the_tail_forgets_places_of_what_left() -> None:
    tail = Tail(0, 0)
    for i in range(5_000):
        tail.add(a_batch(i * 100))
        tail.evict((i + 1) * 100)
    assert len(tail) == 0
    assert len(tail._batches) < 2_100


def test_a_queue_drops_its_oldest_runs_and_goes_on() -> None:
    queue = Queue("t", 0)
    batches = [a_batch(i * 100) for i in range(300)]
    for i, batch in enumerate(batches):
        queue.confirm(QueueRun(i, 1, 0, batch, None))
    for dropped in range(299):
        queue.drop_oldest()
        assert queue.memory_offset == dropped + 1
        read = read_memory(queue, 299, 1000, 10, None)
        assert read is not None
        assert read.count == 1
        assert read_memory(queue, dropped, 1000, 10, None) is None
    assert len(queue.chunks) < 100
    queue.drop_oldest()
    assert queue.memory_offset == queue.confirmed == 300
