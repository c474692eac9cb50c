"""Which chunks stay in memory."""

from __future__ import annotations

import numpy as np

from storage.log.reading.core.chunks import ADD_BELOW, DROP_ABOVE, IDLE_S, ChunkCache, RecordChunk


def chunk(position: int, size: int = 1000) -> RecordChunk:
    one = np.array([0], np.int64)
    return RecordChunk(0, position, memoryview(bytes(size)), one, np.array([size], np.int64), one)


def cache(chunks: int) -> ChunkCache:
    """Room for so many chunks of 1,000 bytes."""
    return ChunkCache(chunks * chunk(0).size_bytes)


def test_a_chunk_is_found_by_every_position_in_it() -> None:
    kept = cache(3)
    assert kept.add(chunk(1000), 0)
    assert kept.add(chunk(3000), 0)
    found = [kept.get(position, 0) for position in (999, 1000, 1999, 2000, 3500, 4000)]
    assert [None if one is None else one.position for one in found] == [None, 1000, 1000, None, 3000, None]
    assert (kept.hits, kept.misses) == (3, 3)
    assert kept.following(1000) == 3000
    assert kept.following(3000) == -1


def test_the_least_recently_used_goes_when_the_bound_is_reached() -> None:
    kept = cache(3)
    for position in (0, 1000, 2000):
        kept.add(chunk(position), 0)
    kept.get(0, 1)
    assert kept.add(chunk(3000), 2)
    assert kept.get(1000, 3) is None
    assert kept.get(0, 3) is not None
    assert (len(kept), kept.dropped, kept.size_bytes) == (3, 1, kept.max_bytes)


def test_chunks_never_overlap() -> None:
    kept = cache(5)
    kept.add(chunk(1000), 0)
    assert not kept.add(chunk(500), 0)
    assert not kept.add(chunk(1500), 0)
    assert not kept.add(chunk(1000), 0)
    assert kept.add(chunk(2000), 0)
    assert kept.add(chunk(0), 0)


def test_idle_chunks_go_when_memory_is_wanted_and_only_then() -> None:
    kept = cache(5)
    kept.add(chunk(0), 0)
    kept.add(chunk(1000), 0)
    kept.used_share = DROP_ABOVE - 0.01
    kept.drop_idle(100)
    assert len(kept) == 2
    kept.used_share = DROP_ABOVE
    kept.get(0, 100)
    kept.drop_idle(100 + IDLE_S - 0.1)
    assert kept.get(1000, 100) is None
    assert len(kept) == 1
    kept.drop_idle(100 + IDLE_S)
    assert len(kept) == kept.size_bytes == 0


def test_nothing_new_stays_when_memory_is_short() -> None:
    kept = cache(5)
    kept.add(chunk(0), 0)
    kept.used_share = ADD_BELOW
    assert not kept.takes
    assert not kept.add(chunk(1000), 0)
    assert (len(kept), kept.refused) == (1, 1)
    kept.used_share = ADD_BELOW - 0.01
    assert kept.add(chunk(1000), 0)


def test_what_is_larger_than_the_bound_does_not_stay() -> None:
    kept = cache(2)
    assert not kept.add(chunk(0, 10_000), 0)
    assert not ChunkCache(0).add(chunk(0), 0)
    assert kept.refused == 1


def test_chunks_that_the_log_no_longer_holds_go() -> None:
    kept = cache(5)
    for position in (0, 1000, 2000):
        kept.add(chunk(position), 0)
    kept.drop_below(2000)
    assert len(kept) == 1
    assert kept.get(2000, 0) is not None
