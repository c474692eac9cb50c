"""Catching up through foreign messages: a search that gives what reading all entries gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.api.queues import HashFilter, ReadStatus
from storage.log.core.sidecar import RUN_ENTRIES

MakeDriver = Callable[..., Any]
RUNS = 2


@pytest.fixture
def store(driver: MakeDriver) -> Any:
    """Two complete runs and a bit, every 50,000th record with another tag, opened again."""
    d = driver(segment_size_bytes=64 << 20, tail_cache_bytes=64 << 20).open()
    # Where this takes long a checkpoint covers runs before the end: none is built for all that.
    d.store.sidecars._executor = None
    part = 8192
    for first in range(0, RUNS * RUN_ENTRIES + part, part):
        tags = [
            b"TAGS\x01%s\x02" % (b"rare" if i % 50_000 == 7 else b"t%d" % (i % 900))
            for i in range(first, first + part)
        ]
        raw, sizes = encode_batch(b"devices", 0, [b"x"] * part, tags, 5)
        d.store.append(
            Batch(memoryview(bytearray(raw)), sizes, [BatchRun("devices", 0, part)]),
            lambda _batch, error: d.results.append(error),
        )
    assert set(d.wait(RUNS * 8 + 1)) == {None}
    d.wait_indexed()
    d.store.close()
    return d.open()


def wait_built(d: Any, count: int) -> None:
    until = time.monotonic() + 40
    while d.store.numbers()["sidecars_built_total"] < count:
        d.store.sidecars.upkeep(d.store._checkpoint.position)
        assert time.monotonic() < until
        time.sleep(0.005)


def wanted_of(tag: bytes) -> HashFilter:
    from holdmq.record.codec import tag_hash

    return HashFilter([tag_hash(tag)])


def sidecar_paths(d: Any) -> list[Any]:
    return sorted((d.directory / "consumequeue" / "devices" / "0").glob("*.hash"))


def test_a_search_gives_what_all_entries_give(store: Any) -> None:
    d = store
    plain = {
        tag: d.queue_bytes("devices", 0, wanted_of(tag), cold=True) for tag in (b"rare", b"t5", b"nobody")
    }
    wait_built(d, RUNS)
    assert len(sidecar_paths(d)) == RUNS
    before = d.store.numbers()["sidecar_searches_total"]
    for tag, expected in plain.items():
        assert d.queue_bytes("devices", 0, wanted_of(tag), cold=True) == expected
        assert d.queue_bytes("devices", 0, wanted_of(tag), cold=True, max_bytes=1) == expected
    assert plain[b"rare"]
    assert plain[b"t5"]
    assert not plain[b"nobody"]
    assert d.store.numbers()["sidecar_searches_total"] > before


def test_foreign_runs_are_passed_without_reading_their_entries(store: Any) -> None:
    d = store
    read = d.store.read_queue_cold("devices", 0, 0, 5, 1000, 10, wanted_of(b"nobody"))
    assert read.next_offset == RUN_ENTRIES  # nothing is known of the run yet
    d.store.read_queue_cold("devices", 0, 0, RUN_ENTRIES, 1000, 10, wanted_of(b"nobody"))
    wait_built(d, RUNS)
    read = d.store.read_queue_cold("devices", 0, 0, 5, 1000, 10, wanted_of(b"nobody"))
    assert (read.status, read.count, read.next_offset) == (ReadStatus.FOUND, 0, RUNS * RUN_ENTRIES)
    read = d.store.read_queue_cold("devices", 0, 0, 8, 1 << 20, 1, wanted_of(b"rare"))
    assert (read.count, read.next_offset) == (1, RUN_ENTRIES)


def test_a_missing_or_damaged_sidecar_is_built_again(store: Any) -> None:
    d = store
    whole = d.queue_bytes("devices", 0, wanted_of(b"rare"), cold=True)
    wait_built(d, RUNS)
    first, second = sidecar_paths(d)
    right = first.read_bytes()
    with first.open("r+b") as file:
        file.seek(30)
        file.write(b"\xff\xff")
    assert d.queue_bytes("devices", 0, wanted_of(b"rare"), cold=True) == whole
    assert d.store.numbers()["sidecars_damaged_total"] == 1
    wait_built(d, RUNS + 1)
    assert first.read_bytes() == right
    d.store.close()
    second.unlink()
    d.open()
    assert d.queue_bytes("devices", 0, wanted_of(b"rare"), cold=True) == whole
    wait_built(d, 1)
    assert second.exists()


def test_a_run_is_built_when_a_checkpoint_covers_it_and_not_before(driver: MakeDriver) -> None:
    d = driver(segment_size_bytes=64 << 20, tail_cache_bytes=64 << 20).open()
    # Built here and as this test says, not by the flusher and as the checkpoint of its last turn says.
    d.store.sidecars._executor = None
    d.store.sidecars.upkeep = lambda _checkpoint: None
    d.append(RUN_ENTRIES)
    d.wait(1)
    d.wait_indexed()
    assert list(d.store._files.completed) in ([(("devices", 0), 0)], [])
    d.store.sidecars._checkpoint = 0
    assert not d.store.sidecars.build(("devices", 0), 0)
    d.store.sidecars._checkpoint = d.store.confirmed_position
    assert d.store.sidecars.build(("devices", 0), 0)


def test_retention_takes_sidecars_with_their_entries(store: Any) -> None:
    d = store
    d.queue_bytes("devices", 0, wanted_of(b"rare"), cold=True)
    wait_built(d, RUNS)
    files = d.store._files
    files._trim_sidecars(("devices", 0), RUN_ENTRIES - 1)
    assert len(sidecar_paths(d)) == 2
    files._trim_sidecars(("devices", 0), RUN_ENTRIES)
    assert len(sidecar_paths(d)) == 1
