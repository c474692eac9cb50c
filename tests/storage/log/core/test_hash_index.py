"""Headers, chains, and the keys that a batch holds."""

from __future__ import annotations

import numpy as np

from holdmq.record import encode_properties
from holdmq.record_batch import encode_batch
from storage.log.core.hash_index import (
    KEY,
    SLOT,
    UNIQUE,
    Entry,
    Header,
    add_to_slots,
    entries_of,
    hash_of,
    keys_in,
    link,
)
from storage.store import Batch, Run


def test_a_header_survives_packing_and_no_flipped_byte() -> None:
    header = Header(8, 3, 1 << 40, 1 << 41, 1_700_000_000_000)
    raw = bytearray(header.pack())
    assert len(raw) == 40
    assert Header.unpack(raw) == header
    for at in range(40):
        raw[at] ^= 1
        assert Header.unpack(raw) is None
        raw[at] ^= 1
    assert Header.unpack(raw[:39]) is None


def test_keys_are_found_where_pairs_begin_and_nowhere_else() -> None:
    pairs = [
        ("TAGS", "KEYS"),
        ("KEYS", "a"),
        ("u.x", "KEYS\x01no\x02KEYS"),
        ("UNIQ_KEY", "u1"),
        ("KEYS", "b\x01"),
    ]
    raw = encode_properties(pairs, mqtt=b"KEYS\x01mqtt\x02")
    padded = b"KEYS\x01x\x02" + raw + b"KEYS\x01y\x02"
    assert keys_in(padded, 7, 7 + len(raw)) == [(KEY, b"a"), (KEY, b"b\x03A"), (UNIQUE, b"u1")]
    assert keys_in(b"XKEYS\x01a\x02", 0, 9) == []
    assert keys_in(b"KEYS\x01a", 0, 6) == []


def test_a_batch_gives_an_entry_per_different_key_of_each_record() -> None:
    properties = [
        encode_properties([("KEYS", "a"), ("KEYS", "a"), ("UNIQ_KEY", "1")]),
        b"",
        encode_properties([("KEYS", "b")]),
    ]
    raw, sizes = encode_batch(b"devices", 0, [b""] * 3, properties, 5)
    batch = Batch(memoryview(raw), sizes, [Run("devices", 0, 2), Run("other", 0, 1)], 1000, 77)
    starts = batch.starts.tolist()
    assert list(entries_of(batch)) == [
        Entry(hash_of(KEY, b"devices", b"a"), 1000, 77),
        Entry(hash_of(UNIQUE, b"devices", b"1"), 1000, 77),
        Entry(hash_of(KEY, b"other", b"b"), 1000 + starts[2], 77),
    ]


def test_entries_of_one_slot_are_chained_newest_first() -> None:
    slots = np.zeros(4, np.uint32)
    number = 1
    for hashes in ([1, 5, 2], [9, 1], [3]):
        made = link([Entry(h, h, 1000) for h in hashes], number, 0, slots)
        add_to_slots(slots, made, number)
        if number == 1:
            assert made["before"].tolist() == [0, 1, 0]
        number += len(hashes)
    assert slots.tolist() == [0, 5, 3, 6]
    assert slots.astype(SLOT).tobytes()[4:8] == b"\0\0\0\x05"
    assert link([Entry(13, 0, 2500)], 7, 1000, slots)[0].tolist() == (13, 0, 1, 5)
