"""Queues are given up by records of the log: whoever has the log has given them up, whenever a crash came."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cut_log import cut_log, record_starts
from kept_store import KeptStore, MakeKept, killed
from sim_disk import SimDisk
from stepped_store import Stepped

from holdmq.errors import StorageError, StoreFullError
from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun, sizes_of
from storage.api.queues import ReadStatus
from storage.log.retention import deletions
from storage.log.retention.core.deleted import DELETED_TOPIC


def delete(kept: KeptStore, topic: str) -> StorageError | None:
    """Delete queue 0 of a topic; why not."""
    ended = threading.Event()
    errors: list[StorageError | None] = []

    def done(error: StorageError | None) -> None:
        errors.append(error)
        ended.set()

    kept.post(lambda: kept.store.delete_queue(topic, 0, done))
    assert ended.wait(40)
    return errors[0]


def wait(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2_000):
        if holds():
            return
        pause.wait(0.02)
    raise AssertionError("it does not come")


def announce(kept: KeptStore) -> None:
    ended = threading.Event()
    errors: list[StorageError | None] = []

    def done(error: StorageError | None) -> None:
        errors.append(error)
        ended.set()

    kept.post(lambda: kept.store.announce_deletions(done))
    assert ended.wait(40)
    assert errors == [None]


def test_a_deleted_queue_is_empty_goes_on_and_stays_deleted(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.append("t", 5)
    assert delete(kept, "t") is None
    assert kept.store.bounds("t", 0) == (5, 5)
    kept.append("t", 2)
    assert kept.store.bounds("t", 0) == (5, 7)
    kept.close()
    again = make_kept()
    assert again.store.bounds("t", 0) == (5, 7)
    assert again.store.read_queue_cold("t", 0, 0, 3, 1 << 20, 10).status is ReadStatus.BEHIND
    assert again.store.numbers()["tombstones"] == 1


def test_the_log_alone_says_so_at_every_place_where_it_may_end(make_kept: MakeKept, tmp_path: Path) -> None:
    kept = make_kept()
    kept.append("t", 3)
    kept.append("u", 3)
    assert delete(kept, "t") is None
    deleted_at = kept.store.confirmed_position
    kept.append("t", 2)
    assert delete(kept, "u") is None
    kept.append("u", 1)
    assert delete(kept, "t") is None
    ends = kept.store.confirmed_position
    kept.close()
    for number, cut in enumerate(record_starts(kept.directory)):
        left = killed(kept, tmp_path / f"cut-{number}")
        for name in ("consumequeue", "tables", "timer", "keyindex"):
            shutil.rmtree(left / name, ignore_errors=True)
        cut_log(left, cut)
        again = make_kept(left)
        first, following = again.store.bounds("t", 0)
        assert first == (5 if cut == ends else 3 if cut >= deleted_at else 0)
        read = again.store.read_queue_cold("t", 0, 0, first, 1 << 20, 10)
        assert read.count == following - first
        again.close()


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_crash_before_it_was_noted_here_leaves_it_to_the_next_start(
    make_kept: MakeKept, tmp_path: Path, is_checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = make_kept()
    kept.append("t", 3)
    wait(lambda: kept.store.flusher.indexed >= kept.store.confirmed_position)
    monkeypatch.setattr("storage.log.retention.retention.Retention._delete_queues", lambda *_: None)
    kept.post(lambda: kept.store.delete_queue("t", 0, lambda _: None))
    kept.append("u", 1)
    assert kept.store.bounds("t", 0) == (3, 3), "readers see it empty at once"
    if is_checkpointed:
        kept.store.retention.wanted_checkpoint = kept.store.confirmed_position
        kept.store.flusher.wake.set()
        wait(lambda: kept.store._checkpoint.position >= kept.store.confirmed_position)
        kept.close()
    left = killed(kept, tmp_path / "killed")
    assert make_kept(left).store.bounds("t", 0) == (3, 3)


def test_what_was_deleted_before_the_log_had_the_state_is_said_again(
    make_kept: MakeKept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "ANNOUNCED_MAX", 2)
    kept = make_kept()
    kept.store._deletions = None  # as a store that has files
    for topic in "abcde":
        kept.append(topic, 2)
        assert delete(kept, topic) is None
    kept.append("f", 2)
    kept.close()
    again = make_kept()
    announce(again)
    again.append("a", 1)
    again.close()
    left = killed(again, tmp_path / "copy")
    for name in ("consumequeue", "tables", "timer", "keyindex"):
        shutil.rmtree(left / name, ignore_errors=True)
    cut_log(left, record_starts(left)[-1])
    copy = make_kept(left)
    assert copy.store.bounds("a", 0) == (2, 3)
    assert {copy.store.bounds(topic, 0) for topic in "bcde"} == {(2, 2)}
    assert copy.store.bounds("f", 0) == (0, 2)


def test_what_the_log_refuses_is_told_and_nothing_is_gone(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.append("t", 3)
    refusal = StoreFullError("full", operation="append")
    append = kept.store._deletions._append  # type: ignore[union-attr]
    kept.store._deletions._append = lambda batch, done: done(batch, refusal)  # type: ignore[union-attr]
    assert delete(kept, "t") is refusal
    assert kept.store.bounds("t", 0) == (0, 3)
    kept.store._deletions._append = append  # type: ignore[union-attr]
    assert delete(kept, "t") is None
    assert delete(kept, "nobody wrote it") is None


def test_a_record_of_it_that_cannot_be_read_is_passed_over(make_kept: MakeKept) -> None:
    kept = make_kept()
    kept.append("t", 3)
    record = encode_record(DELETED_TOPIC.encode(), 0, b"?", b"", 5)
    batch = Batch(memoryview(bytearray(record)), sizes_of([record]), [BatchRun(DELETED_TOPIC, 0, 1)])
    ended = threading.Event()
    kept.post(lambda: kept.store.append_state(batch, lambda *_: ended.set()))
    assert ended.wait(40)
    assert delete(kept, "t") is None
    kept.close()
    assert make_kept().store.bounds("t", 0) == (3, 3)


def test_a_log_that_has_such_records_is_read_as_they_say_by_a_store_with_files() -> None:
    disk = SimDisk()
    stepped = Stepped(disk)
    stepped.append(0, 3)
    store = stepped.store
    batch = deletions.deletions_batch([deletions.DeletedQueue("devices", 0, 3)], 5)
    store.append(batch, lambda *_: None)
    while store.writer.step():
        pass
    stepped.deliver()
    stepped.append(0, 1)
    again = Stepped(disk.after_kill())
    assert again.store.bounds("devices", 0) == (3, 4)
