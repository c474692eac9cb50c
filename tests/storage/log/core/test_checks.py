"""Records from disk: the loop over them judges as the passes over all of them do."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdmq.record import encode_host, encode_record
from holdmq.record_batch import decode_offsets, stamp, starts_of
from storage.log.core.scan import CHECK_BYTES, checked_records, whole_records

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


def assert_alike(raw: bytearray) -> None:
    whole = whole_records(memoryview(raw), POSITION)
    checked = checked_records(memoryview(raw), POSITION)
    assert checked.sizes.tolist() == whole.sizes.tolist()
    expected = decode_offsets(raw, starts_of(whole.sizes))[0].tolist() if len(whole.sizes) else []
    assert checked.queue_offsets.tolist() == expected
    assert bool(checked.reason) == bool(whole.reason)


def test_every_flipped_byte_ends_what_is_whole_where_the_passes_end_it() -> None:
    raw = log_of([30, 0, 17, 30])
    assert len(checked_records(memoryview(raw), POSITION).sizes) == 4
    for at in range(len(raw)):
        raw[at] ^= 0x41
        assert_alike(raw)
        checked = checked_records(memoryview(raw), POSITION)
        assert len(checked.sizes) < 4
        raw[at] ^= 0x41


def test_every_cut_leaves_the_records_before_it() -> None:
    raw = log_of([5, 40, 0])
    for end in range(len(raw) + 1):
        whole = whole_records(memoryview(raw)[:end], POSITION)
        assert checked_records(memoryview(raw)[:end], POSITION).sizes.tolist() == whole.sizes.tolist()


@given(st.lists(st.one_of(st.integers(0, 200), st.integers(0, 3 * CHECK_BYTES)), min_size=1, max_size=20))
def test_records_of_any_size_are_checked_through_the_bounds_of_parts(bodies: list[int]) -> None:
    assert_alike(log_of(bodies))
    checked = checked_records(memoryview(log_of(bodies)), POSITION)
    assert (len(checked.sizes), checked.reason) == (len(bodies), "")


def test_records_at_another_place_are_not_whole() -> None:
    checked = checked_records(memoryview(log_of([1, 2])), POSITION + 1)
    assert (len(checked.sizes), checked.reason) == (0, "its PhysicalOffset is not where it lies")


def test_zeros_and_other_bytes_are_no_records() -> None:
    assert len(checked_records(memoryview(bytes(500)), 0).sizes) == 0
    assert checked_records(memoryview(bytes(500)), 0).reason == "its TotalSize is 0"
    assert checked_records(memoryview(b""), 0).reason == ""
    assert checked_records(memoryview(b"\0\0\0\x80"), 0).reason == ""
