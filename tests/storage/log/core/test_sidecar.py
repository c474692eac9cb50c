"""Sidecars: what a search finds, and that damage is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdmq.record.batch import Hashes
from storage.api.queues import HashFilter
from storage.log.core.sidecar import BLOCK_ENTRIES, RUN_ENTRIES, SIZE, encode, search

FIRST = 3 * RUN_ENTRIES


def run(seed: int, tags: int) -> Hashes:
    """Hashes of a run with so many different tags; one of them is 0."""
    chosen = np.random.default_rng(seed)
    values = chosen.integers(0, 2**64, tags, np.uint64)
    values[0] = 0
    return values[chosen.integers(0, tags, RUN_ENTRIES)]


def find(raw: bytes, wanted: HashFilter, matches_max: int = 4 * RUN_ENTRIES) -> list[int] | None:
    found = search(lambda at, size: raw[at : at + size], FIRST, wanted.ranges(), matches_max)
    return None if found is None else found.tolist()


@pytest.mark.parametrize("tags", [1, 2, 100, 60_000])
def test_a_search_finds_what_the_filter_passes(tags: int) -> None:
    hashes = run(tags, tags)
    raw = encode(FIRST, hashes)
    assert len(raw) == SIZE
    some = [int(value) for value in np.unique(hashes)[:: max(1, tags // 7)]]
    for wanted in (
        HashFilter(some),
        HashFilter(prefixes=[value >> 32 for value in some]),
        HashFilter(some[:1], [some[-1] >> 32, 12345]),
        HashFilter([some[0] ^ 1]),
        HashFilter(),
    ):
        assert find(raw, wanted) == np.flatnonzero(wanted.mask(hashes)).tolist()


def test_equal_hashes_over_many_blocks_are_all_found() -> None:
    hashes = np.full(RUN_ENTRIES, 7, np.uint64)
    hashes[:5] = 3
    hashes[5 : 5 + 3 * BLOCK_ENTRIES] = 5
    raw = encode(FIRST, hashes)
    assert find(raw, HashFilter([5])) == list(range(5, 5 + 3 * BLOCK_ENTRIES))
    assert find(raw, HashFilter([3])) == [0, 1, 2, 3, 4]


def test_more_matches_than_the_bound_are_no_search() -> None:
    hashes = run(1, 4)
    raw = encode(FIRST, hashes)
    one = HashFilter([int(hashes[0])])
    count = int((hashes == hashes[0]).sum())
    assert find(raw, one, count - 1) is None
    assert len(find(raw, one, count) or []) == count


@settings(max_examples=300)
@given(st.integers(0, SIZE - 1), st.integers(1, 255), st.integers(0, RUN_ENTRIES - 1))
def test_damage_is_an_error_or_does_not_matter(at: int, flip: int, entry: int) -> None:
    damaged = bytearray(RAW)
    damaged[at] ^= flip
    wanted = HashFilter([int(HASHES[entry])])
    try:
        found = find(bytes(damaged), wanted)
    except ValueError:
        return
    assert found == np.flatnonzero(wanted.mask(HASHES)).tolist()


def test_one_of_another_run_or_cut_short_is_an_error() -> None:
    wanted = [(1, 1)]
    with pytest.raises(ValueError, match="another run"):
        search(lambda at, size: RAW[at : at + size], FIRST + RUN_ENTRIES, wanted, 10)
    with pytest.raises(ValueError, match="shorter"):
        search(lambda at, size: RAW[:100][at : at + size], FIRST, wanted, 10)
    with pytest.raises(ValueError, match="block"):
        search(lambda at, size: RAW[: SIZE // 2][at : at + size], FIRST, [(2**64 - 1, 2**64 - 1)], 10)


HASHES = run(5, 30_000)
RAW = encode(FIRST, HASHES)


def test_hashes_that_differ_in_their_lowest_bits_only_are_found_one_by_one() -> None:
    hashes = np.full(RUN_ENTRIES, 7 << 32, np.uint64) + np.arange(RUN_ENTRIES, dtype=np.uint64)[
        ::-1
    ] % np.uint64(3)
    raw = encode(FIRST, hashes)
    for low in range(3):
        wanted = (7 << 32) + low
        found = search(lambda at, size: raw[at : at + size], FIRST, [(wanted, wanted)], RUN_ENTRIES)
        assert found is not None
        assert found.tolist() == np.flatnonzero(hashes == np.uint64(wanted)).tolist()
