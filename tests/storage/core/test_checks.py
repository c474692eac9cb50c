"""Records from disk: the loop over them judges as decoding them one by one does."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import RecordError
from holdmq.record.batch import stamp, starts_of
from holdmq.record.codec import (
    FIXED_SIZE,
    RECORD_BYTES_LIMIT,
    VERIFY_ALL,
    decode_record,
    encode_host,
    encode_record,
)
from storage.core.scan import CHECK_BYTES, whole_at, whole_records

POSITION = (1 << 40) + 12
HOSTS = [bytes(8), encode_host("10.0.0.1", 1883), encode_host("2001:db8::1", 1883)]


def log_of(bodies: list[int], position: int = POSITION) -> bytearray:
    chosen = random.Random(len(bodies))
    made = []
    for n, size in enumerate(bodies):
        host = chosen.choice(HOSTS)
        flag = 0x10 if len(host) == 20 else 0
        born_ms = 1_700_000_000_000 + n // 3
        made.append(
            encode_record(b"topic", n % 2, chosen.randbytes(size), b"TAGS\x01a\x02", born_ms, host, flag)
        )
    raw = bytearray(b"".join(made))
    sizes = np.array([len(record) for record in made], np.int64)
    stamp(
        raw,
        starts_of(sizes),
        sizes,
        np.arange(len(made)) * 7,
        position,
        1_700_000_000_999,
        b"\xffstore\x00\x01",
    )
    return raw


def one_by_one(raw: bytearray | memoryview) -> list[tuple[int, int]]:
    """Size and queue offset of the records at the start that are whole and at their place."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(raw):
        try:
            record = decode_record(raw, at, VERIFY_ALL)
        except RecordError:
            break
        if record.physical_offset != POSITION + at:
            break
        found.append((record.total_size, record.queue_offset))
        at += record.total_size
    return found


def assert_alike(raw: bytearray) -> None:
    whole = whole_records(memoryview(raw), POSITION)
    expected = one_by_one(raw)
    assert list(zip(whole.sizes.tolist(), whole.queue_offsets.tolist(), strict=True)) == expected
    at = sum(size for size, _ in expected)
    size = int.from_bytes(raw[at : at + 4], "big")
    is_cut = len(raw) - at < 8 or (FIXED_SIZE <= size <= RECORD_BYTES_LIMIT and at + size > len(raw))
    assert bool(whole.reason) != is_cut


def test_every_flipped_byte_ends_what_is_whole_where_the_passes_end_it() -> None:
    raw = log_of([30, 0, 17, 30])
    assert len(whole_records(memoryview(raw), POSITION).sizes) == 4
    for at in range(len(raw)):
        raw[at] ^= 0x41
        assert_alike(raw)
        whole = whole_records(memoryview(raw), POSITION)
        assert len(whole.sizes) < 4
        raw[at] ^= 0x41


def test_every_cut_leaves_the_records_before_it() -> None:
    raw = log_of([5, 40, 0])
    for end in range(len(raw) + 1):
        part = memoryview(raw)[:end]
        assert whole_records(part, POSITION).sizes.tolist() == [size for size, _ in one_by_one(part)]


@given(st.lists(st.one_of(st.integers(0, 200), st.integers(0, 3 * CHECK_BYTES)), min_size=1, max_size=20))
def test_records_of_any_size_are_whole_through_the_bounds_of_parts(bodies: list[int]) -> None:
    assert_alike(log_of(bodies))
    whole = whole_records(memoryview(log_of(bodies)), POSITION)
    assert (len(whole.sizes), whole.reason) == (len(bodies), "")


def test_records_at_another_place_are_not_whole() -> None:
    whole = whole_records(memoryview(log_of([1, 2])), POSITION + 1)
    assert (len(whole.sizes), whole.reason) == (0, "its PhysicalOffset is not where it lies")


def test_zeros_and_other_bytes_are_no_records() -> None:
    assert len(whole_records(memoryview(bytes(500)), 0).sizes) == 0
    assert whole_records(memoryview(bytes(500)), 0).reason == "its TotalSize is 0"
    assert whole_records(memoryview(b""), 0).reason == ""
    assert whole_records(memoryview(b"\0\0\0\x80"), 0).reason == ""


@given(st.lists(st.integers(0, 60), min_size=3, max_size=8), st.data())
def test_records_that_lie_apart_are_checked_each_at_its_place(bodies: list[int], data: st.DataObject) -> None:
    raw = log_of(bodies)
    sizes = np.array([size for size, _ in one_by_one(raw)], np.int64)
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, len(bodies) - 1), min_size=1))))
    starts = starts_of(sizes)
    assert whole_at(memoryview(raw), POSITION, starts[wanted], sizes[wanted]) == len(wanted)
    damaged = data.draw(st.integers(0, len(bodies) - 1))
    raw[int(starts[damaged]) + data.draw(st.integers(0, int(sizes[damaged]) - 1))] ^= 0x21
    expected = int(np.searchsorted(wanted, damaged)) if damaged in wanted else len(wanted)
    assert whole_at(memoryview(raw), POSITION, starts[wanted], sizes[wanted]) == expected
    assert whole_at(memoryview(raw), POSITION, starts[wanted[:1]], np.array([98])) == 0
