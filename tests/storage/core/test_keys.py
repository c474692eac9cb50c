"""Hashes of keys for an index: the loop that compares neighbours says what each record says by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from holdmq.record.codec import decode_record, encode_properties, encode_record
from holdmq.record.properties import UNIQUE
from storage.core.keys import add_hashes, hash_of, keys_in

TOPIC = b"t"

ids = st.one_of(
    st.integers(0, 0x20F).map(lambda count: f"00c0ffee-{count:06x}"),
    st.text(st.sampled_from("ab\0\x01\x02\x03é"), max_size=4),
)
properties = st.one_of(
    ids.map(lambda own: [("UNIQ_KEY", own)]),
    st.tuples(ids, st.sampled_from("xy")).map(lambda own: [("TAGS", own[1]), ("UNIQ_KEY", own[0])]),
    st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "u.KEYS"]), ids), max_size=3),
)
records = st.builds(
    lambda own, body, mqtt: encode_record(TOPIC, 0, body, encode_properties(own, mqtt=mqtt), 1),
    properties,
    st.binary(max_size=40),
    st.sampled_from([b"", b"", b"\x01\x00"]),
)


def hashes(made: list[bytes], id_cut: int, span_bytes: int) -> list[tuple[int, int]]:
    """What `add_hashes` writes of records behind a first one that is another run's."""
    found = BytesWriter()
    before = encode_record(b"other", 0, b"", b"UNIQ_KEY\x0100c0ffee-000000\x02", 1)
    data = b"".join([before, *made])
    assert add_hashes(TOPIC, data, len(before), len(made), found, id_cut, span_bytes) == len(data)
    rows = np.frombuffer(found.getvalue(), "<i8").reshape(-1, 2)
    return [(int(hash_) & 0xFFFFFFFF, int(start) - len(before)) for hash_, start in rows]


def own_keys(record: bytes) -> list[tuple[bytes, bytes]]:
    return list(dict.fromkeys(keys_in(decode_record(record).properties)))


@given(st.lists(records, max_size=12))
def test_every_key_of_every_record_is_noted_at_its_start(made: list[bytes]) -> None:
    starts = [sum(map(len, made[:index])) for index in range(len(made))]
    assert hashes(made, 0, 0) == [
        (hash_of(marker, TOPIC, value), start)
        for start, record in zip(starts, made, strict=True)
        for marker, value in own_keys(record)
    ]


@given(st.lists(records, max_size=12), st.integers(1, 3), st.sampled_from([0, 300, 1 << 20]))
def test_a_cut_id_is_found_within_the_span_from_what_was_noted(
    made: list[bytes], id_cut: int, span_bytes: int
) -> None:
    noted = hashes(made, id_cut, span_bytes)
    start = 0
    for record in made:
        end = start + len(record)
        for marker, value in own_keys(record):
            stem = value[: max(0, len(value) - id_cut)] if marker == UNIQUE else value
            wanted = hash_of(marker, TOPIC, stem)
            assert any(
                hash_ == wanted
                and (at == start or (marker == UNIQUE and at < start and end - at <= span_bytes))
                for hash_, at in noted
            )
        start = end


@pytest.mark.parametrize(
    ("before", "then"),
    [
        (b"UNIQ_KEY\x01aa012\x02TAGS\x01a\x02", b"UNIQ_KEY\x01aa013\x02KEYS\x01a\x02"),
        (b"UNIQ_KEY\x01aa012\x02", b"UNIQ_KEY\x01aa\x02k\x01\x02"),
        (b"UNIQ_KEY\x01aa012\x02", b"UNIQ_KEY\x01aa\x02\0\0\0"),
        (b"UNIQ_KEY\x01aa012\x02", b"UNIQ_KEY\x01aa01\x02"),
        (b"UNIQ_KEY\x01aa012\x02", b"UNIQ_KEY\x01ab012\x02"),
        (b"TAGS\x01a\x02UNIQ_KEY\x01aa012\x02", b"TAGS\x01b\x02UNIQ_KEY\x01aa012\x02"),
    ],
)
def test_what_looks_like_its_neighbour_but_is_not_is_noted_by_itself(before: bytes, then: bytes) -> None:
    made = [encode_record(TOPIC, 0, b"", own, 1) for own in (before, then, before)]
    each = [hashes([record], 3, 0)[0][0] for record in made]
    keys = [value for _, value in own_keys(made[1])]
    found = [hash_ for hash_, _ in hashes(made, 3, 0)]
    assert found[0] == found[-1] == each[0] == each[2]
    assert found[1:-1] == [hash_ for hash_, _ in hashes([made[1]], 3, 0)]
    assert len(found) == 2 + len(keys)


def test_neighbours_of_one_producer_share_what_is_noted_as_far_as_the_span_reaches() -> None:
    made = [
        encode_record(TOPIC, 0, bytes(100), b"TAGS\x01a\x02UNIQ_KEY\x0100c0ffee-%010x\x02" % count, 1)
        for count in range(0xF8, 0x108)
    ]
    size = len(made[0])
    stems = [hash_of(UNIQUE, TOPIC, b"00c0ffee-%08x" % n) for n in (0, 1)]
    assert hashes(made, 2, 1 << 20) == [(stems[0], 0), (stems[1], 8 * size)]
    assert hashes(made, 2, 3 * size) == [
        *((stems[0], n * size) for n in (0, 3, 6)),
        *((stems[1], n * size) for n in (8, 11, 14)),
    ]
