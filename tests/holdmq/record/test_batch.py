"""Batches of records: numpy does what the single functions do, and names the first bad entry."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from holdmq.record import tags as record_tags
from holdmq.record.batch import (
    FEW_STAMPS,
    Ints,
    check_entries,
    decode_columns,
    encode_batch,
    stamp,
    starts_of,
    tag_hashes,
    tags,
)
from holdmq.record.codec import (
    NO_HOST,
    VERIFY_ALL,
    TagCache,
    decode_record,
    encode_host,
    encode_properties,
    encode_record,
    prefix_hash,
    tag_hash,
)

HOSTS = (NO_HOST, encode_host("::1", 1883))
TAGS: list[str | None] = [None, "", "42/temp", "42", "a\x01b", "x/y/z"]


def a_batch(count: int) -> tuple[bytearray, Ints]:
    records = []
    for i in range(count):
        tag = TAGS[i % len(TAGS)]
        pairs = ([] if tag is None else [("TAGS", tag)]) + [("CLIENT_ID", f"c{i}")] * (i % 2)
        if i % 5 == 4:
            pairs.reverse()
        properties = encode_properties(pairs, b"\x01\x01" if i % 3 == 0 else None)
        records.append(
            encode_record(b"devices", 3, b"x" * (i * 7 % 50), properties, 1000 + i, HOSTS[i % 4 == 3])
        )
    return bytearray(b"".join(records)), np.array([len(r) for r in records], np.int64)


@pytest.mark.parametrize("count", [1, FEW_STAMPS, FEW_STAMPS + 1, 60])
def test_a_stamped_batch_is_what_every_record_says(count: int) -> None:
    buffer, sizes = a_batch(count)
    starts = starts_of(sizes)
    stamp(memoryview(buffer), starts, sizes, np.arange(70, 70 + count), 1 << 40, 555, b"storeid!")
    columns = decode_columns(buffer, starts, sizes)
    for i, start in enumerate(starts.tolist()):
        record = decode_record(buffer, start, VERIFY_ALL)
        assert (record.queue_offset, record.physical_offset) == (70 + i, (1 << 40) + start)
        assert (record.store_ms, record.store_host) == (555, b"storeid!")
        got = (columns.queue_offset[i], columns.physical_offset[i], columns.born_ms[i], columns.store_ms[i])
        assert got == (70 + i, (1 << 40) + start, 1000 + i, 555)
        body = int(columns.body_start[i])
        assert buffer[body : body + int(columns.body_size[i])] == record.body
        topic = int(columns.topic_start[i])
        assert buffer[topic : topic + int(columns.topic_size[i])] == b"devices"
        at = int(columns.properties_start[i])
        assert buffer[at : at + int(columns.properties_size[i])] == record.properties


@pytest.mark.parametrize("count", [1, FEW_STAMPS, 60])
@pytest.mark.parametrize("key_levels", [1, 2])
def test_hashes_and_tags_of_a_batch_are_those_of_its_records(count: int, key_levels: int) -> None:
    buffer, sizes = a_batch(count)
    starts = starts_of(sizes)
    expected = [TAGS[i % len(TAGS)] for i in range(count)]
    raw = [None if tag is None else tag.encode() for tag in expected]
    assert tags(buffer, starts, sizes) == raw
    hashes = tag_hashes(buffer, starts, sizes, key_levels)
    wanted = [tag_hash(tag, key_levels) for tag in raw]
    assert (wanted == [0] * count) if hashes is None else (hashes.tolist() == wanted)


def test_tags_that_all_stand_first_take_the_quick_way_to_the_same_hashes() -> None:
    buffer, sizes = encode_batch(b"t", 0, [b"b"] * 40, [f"TAGS\x01{i}/x\x02".encode() for i in range(40)])
    hashes = tag_hashes(buffer, starts_of(sizes), sizes)
    assert hashes is not None
    assert hashes.tolist() == [tag_hash(f"{i}/x".encode()) for i in range(40)]


def test_a_batch_without_tags_has_no_hashes() -> None:
    for count in (2, 40):
        buffer, sizes = encode_batch(b"t", 0, [b"b"] * count, b"CLIENT_ID\x01TAGS\x02" * (count == 2))
        assert tag_hashes(buffer, starts_of(sizes), sizes) is None


def test_halves_of_a_hash_serve_exact_and_prefix_filters() -> None:
    high = 0xFFFFFFFF_00000000
    assert (
        tag_hash(b"42/temp") & high
        == tag_hash(b"42/hum") & high
        == tag_hash(b"42") & high
        == prefix_hash(b"42")
    )
    assert tag_hash(b"42/temp") != tag_hash(b"42/hum")
    assert tag_hash(b"a/b/c", 2) & high == prefix_hash(b"a/b", 2) == prefix_hash(b"a/b/c", 2)
    assert tag_hash(b"a/b/c", 2) & high != tag_hash(b"a/x/c", 2) & high
    assert tag_hash(None) == 0
    assert tag_hash(b"") != 0


def test_a_hash_of_zero_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_tags, "xxh3_64_intdigest", lambda _: 0)
    assert tag_hash(b"x") == 1


@pytest.mark.interpreted
def test_the_tag_cache_starts_over_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_tags, "TAG_CACHE_MAX", 3)
    cache = TagCache(1)
    for i in range(4):
        assert cache.hash(b"t%d" % i) == tag_hash(b"t%d" % i)
    assert len(cache) == 1


# What PRODUCE refuses


def set_u32(at: int, value: int) -> Callable[[bytearray, int, int], None]:
    def change(buffer: bytearray, start: int, _size: int) -> None:
        buffer[start + at : start + at + 4] = value.to_bytes(4, "big")

    return change


def set_at_end(back: int, value: int) -> Callable[[bytearray, int, int], None]:
    def change(buffer: bytearray, start: int, size: int) -> None:
        buffer[start + size - back : start + size - back + 4] = value.to_bytes(4, "big")

    return change


DAMAGES = [
    (set_u32(0, 99), "TotalSize is not its size"),
    (set_at_end(4, 7), "not repeated at its end"),
    (set_u32(4, 0x484D5130), "MagicCode"),
    (set_u32(12, 4), "QueueId is not 3"),
    (set_u32(20, 1), "stamped already"),
    (set_u32(32, 1), "stamped already"),
    (set_u32(36, 0x420), "SysFlag"),
    (set_u32(36, 0x0), "SysFlag"),
    (set_u32(36, 0x320), "SysFlag"),
    (set_u32(56, 1), "stamped already"),
    (set_u32(68, 1), "stamped already"),
    (set_at_end(8, 1), "stamped already"),
    (set_u32(84, 0xFFFFFFFF), "BodyLength"),
    (set_u32(84, 1), "does not fit|topic"),
    (set_u32(8, 0), "BodyCRC"),
    (set_u32(16, 9), "BodyCRC"),
]


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_the_first_bad_entry_of_a_produce_is_named(
    count: int, damage: Callable[[bytearray, int, int], None], reason: str
) -> None:
    raw, sizes = encode_batch(b"devices", 3, [b"body"] * count, b"TAGS\x01a\x02", 5)
    starts = starts_of(sizes)
    claimed = [(b"devices", 3, count)]
    assert check_entries(raw, sizes, claimed) is None
    entry = count // 2
    buffer = bytearray(raw)
    damage(buffer, int(starts[entry]), int(sizes[entry]))
    bad = check_entries(buffer, sizes, claimed)
    assert bad is not None
    assert bad.entry == entry
    assert re.search(reason, bad.reason)


def test_every_flipped_byte_of_a_produce_is_refused() -> None:
    for count in (2, FEW_STAMPS + 2):
        raw, sizes = encode_batch(b"devices", 3, [b"body"] * count, b"TAGS\x01a\x02", 5)
        for at in range(int(sizes[0]), int(sizes[0] * 2)):
            buffer = bytearray(raw)
            buffer[at] ^= 0x11
            bad = check_entries(buffer, sizes, [(b"devices", 3, count)])
            assert bad is not None, f"byte {at} of {count}"
            assert bad.entry == 1


@pytest.mark.parametrize(
    ("claimed", "entry", "reason"),
    [
        ([(b"devices", 3, 4), (b"devicez", 3, 6)], 4, "topic is not 'devicez'"),
        ([(b"device", 3, 10)], 0, "topic is not 'device'"),
        ([(b"devices", 3, 4), (b"devices", 2, 6)], 4, "QueueId is not 2"),
        ([(b"devices", 3, 9)], 0, "count 9 records"),
        ([(b"d" * 120, 3, 10)], 0, "topic is not"),
    ],
)
def test_records_that_are_not_their_runs_are_refused(
    claimed: list[tuple[bytes, int, int]], entry: int, reason: str
) -> None:
    raw, sizes = encode_batch(b"devices", 3, [b"body"] * 10, b"", 5)
    bad = check_entries(raw, sizes, claimed)
    assert bad is not None
    assert bad.entry == entry
    assert reason in bad.reason


def test_sizes_out_of_range_are_refused_before_they_are_used() -> None:
    raw, sizes = encode_batch(b"t", 0, [b"body"] * 2, b"", 5)
    for size in (0, -5, 98, 1 << 40):
        wrong = sizes.copy()
        wrong[1] = size
        bad = check_entries(raw, wrong, [(b"t", 0, 2)])
        assert bad is not None
        assert bad.entry == 1
    bad = check_entries(raw + b"?", sizes, [(b"t", 0, 2)])
    assert bad is not None
    assert "add up" in bad.reason
    bad = check_entries(raw, sizes, [(b"t", 0, 2)], record_max_bytes=100)
    assert bad is not None
    assert "99 to 100 are allowed" in bad.reason
    assert check_entries(b"", np.array([], np.int64), []) is None
