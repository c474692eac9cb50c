"""Contents as chunks: whole again, bounded, and the same where nothing changed."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import RecordError
from storage.log.state.core.chunks import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    chunks_of,
    decode_chunk,
    encode_chunk,
)


def offsets(groups: int, chance: Random) -> bytes:
    table = {
        f"topic-{n}@group-{n % 97}": {str(q): chance.randrange(10**9) for q in range(4)}
        for n in range(groups)
    }
    return json.dumps(table, sort_keys=True, separators=(",", ":")).encode()


@given(st.binary(max_size=40), st.integers(0, 9_000))
def test_chunks_are_the_content_again_and_within_their_bounds(part: bytes, times: int) -> None:
    content = part * times
    chunks = chunks_of(content)
    assert b"".join(chunk.content for chunk in chunks) == content
    assert all(len(chunk.content) <= CHUNK_BYTES_MAX for chunk in chunks)
    # A run of the longest ones may leave a shorter one before the next cut, as the end does.
    assert all(chunk.content for chunk in chunks)
    assert all(decode_chunk(encode_chunk(chunk.content)) == chunk.content for chunk in chunks)


def test_a_content_of_several_scans_is_cut_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    content = offsets(20_000, Random(1))
    assert len(content) > 1 << 20
    expected = chunks_of(content)
    monkeypatch.setattr("storage.log.state.core.chunks._SCAN_BYTES", 10_007)
    assert chunks_of(content) == expected


def test_one_change_costs_a_chunk_or_two_wherever_it_is() -> None:
    chance = Random(2)
    content = offsets(3_000, chance)
    before = {chunk.id for chunk in chunks_of(content)}
    assert len(before) > 10
    mean = len(content) / len(before)
    assert CHUNK_BYTES_MIN < mean < CHUNK_BYTES_MAX / 2
    for _ in range(20):
        at = chance.randrange(len(content))
        changed = content[:at] + b"0123456789"[: chance.randrange(10)] + content[at + 3 :]
        assert len({chunk.id for chunk in chunks_of(changed)} - before) <= 3


def test_equal_chunks_have_one_name() -> None:
    chunks = chunks_of(bytes(5 * CHUNK_BYTES_MAX))
    assert len({chunk.id for chunk in chunks}) < len(chunks)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\2abc",
        b"\0" + bytes(CHUNK_BYTES_MAX + 1),
        encode_chunk(bytes(9_000))[:-1],
        encode_chunk(bytes(9_000)) + b"x",
        b"\1abc",
    ],
)
def test_what_is_no_chunk_is_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        decode_chunk(value)


def test_a_chunk_that_would_fill_the_memory_is_refused() -> None:
    bomb = encode_chunk(bytes(50 * CHUNK_BYTES_MAX))
    assert len(bomb) < CHUNK_BYTES_MAX
    with pytest.raises(RecordError):
        decode_chunk(bomb)
