"""Headers, chains, and the keys that a batch holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdmq.record.batch import encode_batch
from holdmq.record.codec import encode_properties
from holdmq.record.properties import KEY, UNIQUE
from storage.api.batches import Batch, BatchRun
from storage.core.keys import hash_of, keys_in
from storage.log.index.core.hash_index import KEYS, SLOT, IndexHeader, add_to_slots, keys_of, link


def test_a_header_survives_packing_and_no_flipped_byte() -> None:
    header = IndexHeader(8, 3, 1 << 40, 1 << 41, 1_700_000_000_000)
    raw = bytearray(header.pack())
    assert len(raw) == 40
    assert IndexHeader.unpack(raw) == header
    for at in range(40):
        raw[at] ^= 1
        assert IndexHeader.unpack(raw) is None
        raw[at] ^= 1
    assert IndexHeader.unpack(raw[:39]) is None


def test_keys_are_found_where_pairs_begin_and_nowhere_else() -> None:
    pairs = [
        ("TAGS", "KEYS"),
        ("KEYS", "a"),
        ("u.x", "KEYS\x01no\x02KEYS"),
        ("UNIQ_KEY", "u1"),
        ("KEYS", "b\x01"),
    ]
    raw = encode_properties(pairs, mqtt=b"KEYS\x01mqtt\x02")
    assert keys_in(raw) == [(KEY, b"a"), (KEY, b"b\x03A"), (UNIQUE, b"u1")]
    assert keys_in(b"XKEYS\x01a\x02") == []
    assert keys_in(b"KEYS\x01a") == []


def test_a_batch_gives_an_entry_per_different_key_of_each_record() -> None:
    properties = [
        encode_properties([("KEYS", "a"), ("KEYS", "a"), ("UNIQ_KEY", "1")]),
        b"",
        encode_properties([("KEYS", "b")]),
    ]
    raw, sizes = encode_batch(b"devices", 0, [b""] * 3, properties, 5)
    batch = Batch(memoryview(raw), sizes, [BatchRun("devices", 0, 2), BatchRun("other", 0, 1)], 1000, 77)
    starts = batch.starts.tolist()
    assert keys_of(batch).tolist() == [
        (hash_of(KEY, b"devices", b"a"), 1000, 77),
        (hash_of(UNIQUE, b"devices", b"1"), 1000, 77),
        (hash_of(KEY, b"other", b"b"), 1000 + starts[2], 77),
    ]


PAIRS = st.lists(st.tuples(st.sampled_from(["KEYS", "UNIQ_KEY", "u.k", "TAGS"]), st.text(max_size=3)))
MQTT = st.sampled_from([None, b"", b"\x02UNIQ_KEY\x01m\x02", b"\x02KEYS\x01m\x02"])


@given(st.lists(st.tuples(PAIRS, MQTT), max_size=6))
def test_the_quick_way_of_ids_gives_what_all_keys_give(
    records: list[tuple[list[tuple[str, str]], bytes | None]],
) -> None:
    properties = [encode_properties(pairs, mqtt) for pairs, mqtt in records]
    assert_keys_of_all(properties)


def assert_keys_of_all(properties: list[bytes]) -> None:
    raw, sizes = encode_batch(b"t", 0, [b"body"] * len(properties), properties, 5)
    batch = Batch(memoryview(raw), sizes, [BatchRun("t", 0, len(properties))], 1000, 77)
    starts = batch.starts.tolist()
    assert keys_of(batch).tolist() == [
        (hash_of(marker, b"t", value), 1000 + start, 77)
        for start, one in zip(starts, properties, strict=True)
        for marker, value in dict.fromkeys(keys_in(one))
    ]


IDS = st.sampled_from(["0001", "0002", "ä", "ä1", "\x7f0", "1\x02", "1", "123456789", "12345678ü"])
TAGS = st.sampled_from(["a", "b", "KEYS", "longer/tag"])


@given(st.lists(st.tuples(TAGS, IDS, TAGS), min_size=2, max_size=8))
def test_records_that_differ_in_more_than_the_id_are_told_apart(rows: list[tuple[str, str, str]]) -> None:
    assert_keys_of_all([encode_properties([("TAGS", a), ("UNIQ_KEY", i), ("u.b", b)]) for a, i, b in rows])


def test_hashes_of_ids_that_follow_each_other_are_spread() -> None:
    ids = [b"%016x-%010x" % (producer, count) for producer in (7, 1 << 62) for count in range(20_000)]
    hashes = np.array([hash_of(UNIQUE, b"devices", one) for one in ids])
    # Of 40,000 random numbers of 32 bits about 0.2 pairs are equal.
    assert len(np.unique(hashes)) >= len(ids) - 5
    of_slots = np.bincount(hashes % 4096, minlength=4096)
    assert 8 < of_slots.var() < 12, "as random numbers would be: the mean is 9.8"


def test_entries_of_one_slot_are_chained_newest_first() -> None:
    slots = np.zeros(4, np.uint32)
    number = 1
    for hashes in ([1, 5, 2], [9, 1], [3]):
        made = link(np.array([(h, h, 1000) for h in hashes], KEYS), number, 0, slots)
        add_to_slots(slots, made, number)
        if number == 1:
            assert made["before"].tolist() == [0, 1, 0]
        number += len(hashes)
    assert slots.tolist() == [0, 5, 3, 6]
    assert slots.astype(SLOT).tobytes()[4:8] == b"\0\0\0\x05"
    assert link(np.array([(13, 0, 2500)], KEYS), 7, 1000, slots)[0].tolist() == (13, 0, 1, 5)
