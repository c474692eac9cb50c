"""Properties of a batch: whatever the quick look lets through, the decoder reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.record.batch import check_entries, encode_batch
from holdmq.record.check import check_properties, properties_fault
from holdmq.record.properties import encode_properties

GOOD = [
    b"",
    encode_properties([("TAGS", "a/b"), ("CLIENT_ID", "d1")]),
    encode_properties([("TAGS", "")]),
    encode_properties([("u.k\x01", "v\x02\x00")]),
    encode_properties([("u.note", "a+b#c")]),
    encode_properties([("u.ORIGIN", "mine"), ("DUE", "+5")]),
    encode_properties([("TAGS", "ä/ö")], b"\x26\x00\x01k\x00\x01v"),
]
BAD = {
    "no end": b"TAGS\x01a",
    "no key": b"\x01a\x02",
    "no separator": b"TAGS\x02",
    "two separators": b"a\x01b\x01c\x02",
    "no UTF-8": b"TAGS\x01\xff\x02",
    "a bad escape": b"a\x01\x03z\x02",
    "a wildcard tag": b"TAGS\x01a/#\x02",
    "a plus in the tag": b"TAGS\x01+/a\x02",
    "half an MQTT block": b"a\x01b\x02\x00\x26\x00",
    "an origin that only brokers write": b"TAGS\x01a\x02ORIGIN\x01%TIMER/0/7/1\x02",
    "a target that only brokers write": b"DEST\x01t/0\x02",
    "an MQTT property that PUBLISH has not": b"\x00\x11\x00\x00\x00\x01",
}


def test_what_encoders_make_passes_in_any_company() -> None:
    assert check_properties(GOOD).bad is None
    for one in GOOD:
        assert check_properties([one]).bad is None


@pytest.mark.parametrize("what", BAD)
def test_what_no_reader_could_decode_is_named(what: str) -> None:
    for before in ([], GOOD, [GOOD[1]] * 3):
        found = check_properties([*before, BAD[what], GOOD[1]]).bad
        assert found is not None, what
        assert found.entry == len(before)


def test_a_character_cut_in_two_by_a_record_s_end_is_found() -> None:
    assert check_properties([b"a\x01\xc3\x02", b"b\x01\xa4\x02"]).bad is not None


def test_records_like_the_one_before_give_its_properties_whatever_their_ids() -> None:
    ids = [b"0001", b"0002", b"0\x1f03", b"00\xc3\xa4", b"0005", b"0006"]
    properties = [b"TAGS\x01a/b\x02UNIQ_KEY\x01%b\x02u.k\x01v\x02" % own for own in ids]
    properties += [properties[-1].replace(b"v\x02", b"w\x02"), b"", b"", b"TAGS\x01a\x02", b"TAGS\x01b\x02"]
    raw, sizes = encode_batch(b"t", 0, [b"x"] * len(properties), properties)
    given: list[bytes] = []
    assert check_entries(raw, sizes, [(b"t", 0, len(sizes))], properties=given) is None
    assert given == [properties[i] for i in (0, 0, 2, 3, 3, 3, 6, 7, 7, 9, 10)]


@given(st.lists(st.binary(max_size=12) | st.text("ab\x01\x02\x03", max_size=8).map(str.encode), max_size=5))
def test_the_quick_look_agrees_with_the_slow_one(properties: list[bytes]) -> None:
    faults = [properties_fault(p) for p in properties]
    found = check_properties(properties).bad
    first = next((i for i, fault in enumerate(faults) if fault is not None), None)
    assert (found.entry if found else None) == first
