"""Tag hashes by table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.record.batch import encode_batch, starts_of, tag_hashes
from holdmq.record.tag_table import TAG_BYTES_MAX, TagTable

ESCAPED = st.binary(max_size=TAG_BYTES_MAX + 9).map(lambda raw: bytes(b | 0x20 for b in raw))


def properties_of(tag: bytes | None, rest: bytes = b"") -> bytes:
    return rest if tag is None else b"TAGS\x01" + tag + b"\x02" + rest


@given(st.lists(st.lists(ESCAPED, min_size=1, max_size=40), max_size=3), st.integers(1, 3))
def test_it_gives_what_tag_hashes_gives_the_second_time_too(tags: list[list[bytes]], levels: int) -> None:
    table = TagTable(levels)
    for some in [*tags, *tags]:
        raw, sizes = encode_batch(b"t", 0, [b"x"] * len(some), [properties_of(tag) for tag in some])
        wanted = tag_hashes(raw, starts_of(sizes), sizes, levels)
        found = table.hashes(raw, starts_of(sizes), sizes)
        assert wanted is not None
        assert found is not None
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "properties",
    [
        [b""] * 20,
        [b"KEYS\x01k\x02TAGS\x01a\x02"] * 20,
        [properties_of(b"a"), b""] * 10,
        [properties_of(b"")] * 20,
    ],
)
def test_records_without_a_tag_in_front_give_the_same_too(properties: list[bytes]) -> None:
    raw, sizes = encode_batch(b"t", 0, [b"x"] * 20, properties)
    wanted = tag_hashes(raw, starts_of(sizes), sizes)
    found = TagTable(1).hashes(raw, starts_of(sizes), sizes)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert found.tolist() == wanted.tolist()


def test_more_tags_than_slots_push_each_other_out_and_stay_right() -> None:
    table = TagTable(1)
    for first in range(0, 90_000, 3_000):
        some = [b"device-%d/temp" % i for i in range(first, first + 3_000)]
        raw, sizes = encode_batch(b"t", 0, [b""] * len(some), [properties_of(tag) for tag in some])
        wanted = tag_hashes(raw, starts_of(sizes), sizes)
        found = table.hashes(raw, starts_of(sizes), sizes)
        assert wanted is not None
        assert found is not None
        assert (found == wanted).all()
