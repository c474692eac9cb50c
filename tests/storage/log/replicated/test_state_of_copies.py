"""A copy of a log has its leader's state files, indexes topics as they say, and gives up its queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept_store import KeptStore, MakeKept, killed

from holdmq.errors import StorageError
from holdmq.files.disk import RealDisk
from holdmq.record.batch import encode_batch, tag_hashes
from storage.api.queues import HashFilter
from storage.api.replication import LogStart, ReplicatedLog
from storage.log.replicated.closed import ClosedLogDirectory

MIB = 1 << 20


def log_of(kept: KeptStore) -> ReplicatedLog:
    assert kept.store.replicated is not None
    return kept.store.replicated


def noted(kept: KeptStore, begin: Callable[[Any], object]) -> None:
    """Let something be noted durably."""
    ended = threading.Event()
    errors: list[StorageError | None] = []

    def done(error: StorageError | None) -> None:
        errors.append(error)
        ended.set()

    kept.on_loop(lambda: begin(done))
    assert ended.wait(40)
    assert errors == [None]


def confirm(kept: KeptStore) -> None:
    log = log_of(kept)
    kept.on_loop(lambda: log.confirm_to(log.durable_position))


def confirms_by_itself(kept: KeptStore) -> None:
    """As a leader that has no copies in its set."""
    log = log_of(kept)
    kept.on_loop(lambda: log.watch(lambda: log.confirm_to(log.durable_position)))


def lead(kept: KeptStore, epoch: int) -> None:
    noted(kept, lambda done: log_of(kept).begin_epoch(epoch, done))
    kept.on_loop(log_of(kept).begin_leading)


def founded(make_kept: MakeKept, directory: Path) -> KeptStore:
    leader = make_kept(directory, is_replicated=True)
    noted(leader, lambda done: log_of(leader).trust(True, done))
    lead(leader, 2)
    return leader


def joined(make_kept: MakeKept, leader: KeptStore, directory: Path) -> KeptStore:
    log = log_of(leader)
    epochs = [epoch for epoch in log.epochs if epoch.start <= log.first_position]
    closed = ClosedLogDirectory(RealDisk(), directory, "b1", MIB)
    closed.start_over(LogStart(log.store_id, log.first_position, epochs, leader.on_loop(log.queue_ends)))
    return make_kept(directory, is_replicated=True)


def follow(copy: KeptStore, leader: KeptStore, max_bytes: int = MIB) -> None:
    """Fetch all that the leader has written."""
    mine, its = log_of(copy), log_of(leader)
    while mine.appended_position < its.written_position:
        following = [epoch for epoch in its.epochs if epoch.epoch > mine.epochs[-1].epoch]
        if following and following[0].start <= mine.appended_position:
            wait(lambda: mine.written_position == mine.appended_position)
            number = following[0].epoch
            noted(copy, lambda done: mine.begin_epoch(number, done))  # noqa: B023
            continue
        position = mine.appended_position
        given = leader.on_loop(lambda: its.read_bytes(position, max_bytes))  # noqa: B023
        given = given or its.read_bytes_cold(position, max_bytes)
        data = memoryview(b"".join(given.parts))
        copy.on_loop(lambda: mine.append_copied(data, position, lambda _: None))  # noqa: B023
    wait(lambda: mine.durable_position == its.written_position)


def wait(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(4_000):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("it does not come")


def files(kept: KeptStore) -> dict[str, bytes | None]:
    return {name: kept.files.content(name) for name in kept.files.names()}


def found_by_prefix(kept: KeptStore, tag: bytes) -> int:
    """How many messages a reader gets whose filter is for two levels of the tag."""
    raw, sizes = encode_batch(b"deep", 0, [b""], b"TAGS\x01" + tag + b"\x02", 5)
    hashes = tag_hashes(memoryview(raw), sizes * 0, sizes, 2)
    assert hashes is not None
    wanted = HashFilter(prefixes=[int(hashes[0]) >> 32])
    store = kept.store
    first, end = store.bounds("deep", 0)
    count, offset = 0, first
    while offset < end:
        at = offset
        read = kept.on_loop(lambda: store.read_queue("deep", 0, 0, at, MIB, 1000, wanted))  # noqa: B023
        read = read or store.read_queue_cold("deep", 0, 0, at, MIB, 1000, wanted)
        count += read.count
        offset = read.next_offset
    return count


@pytest.mark.parametrize("max_bytes", [1, MIB])
def test_a_copy_has_the_files_and_indexes_by_them_what_comes_in_the_same_bytes(
    make_kept: MakeKept, tmp_path: Path, max_bytes: int
) -> None:
    leader = founded(make_kept, tmp_path / "leader")
    copy = joined(make_kept, leader, tmp_path / "copy")
    confirms_by_itself(leader)
    leader.save("levels.json", {"deep": 2}, 1)
    leader.append("deep", 5, b"42/temp/x")
    leader.append("deep", 5, b"42/wind/x")
    follow(copy, leader, max_bytes)
    assert copy.store.bounds("deep", 0) == (0, 0), "nobody sees what is not confirmed"
    confirm(copy)
    assert files(copy) == files(leader) != {}
    assert copy.levels == {"deep": 2}
    assert found_by_prefix(copy, b"42/temp/x") == 5


def test_a_copy_that_was_killed_before_it_was_confirmed_indexes_so_too(
    make_kept: MakeKept, tmp_path: Path
) -> None:
    leader = founded(make_kept, tmp_path / "leader")
    copy = joined(make_kept, leader, tmp_path / "copy")
    confirms_by_itself(leader)
    leader.save("levels.json", {"deep": 2}, 1)
    leader.append("deep", 5, b"42/temp/x")
    follow(copy, leader)
    again = make_kept(killed(copy, tmp_path / "killed"), is_replicated=True)
    assert log_of(again).confirmed_position == 0
    assert again.levels == {"deep": 2}
    confirm(again)
    wait(lambda: again.store.confirmed_position == leader.store.confirmed_position)
    assert files(again) == files(leader)
    assert found_by_prefix(again, b"42/temp/x") == 5


def test_who_led_before_knows_what_it_had_not_confirmed_and_a_copy_that_leads_goes_on(
    make_kept: MakeKept, tmp_path: Path
) -> None:
    first = founded(make_kept, tmp_path / "first")
    second = joined(make_kept, first, tmp_path / "second")
    saving = threading.Thread(target=_save_unanswered, args=(first,))
    saving.start()
    wait(lambda: log_of(first).written_position > 0)
    follow(second, first)
    first.on_loop(log_of(first).end_leading)
    saving.join()
    assert first.version("levels.json") == 0 or first.levels == {"deep": 2}
    confirm(second)
    lead(second, 3)
    confirms_by_itself(second)
    assert second.levels == {"deep": 2}
    second.append("deep", 5, b"42/temp/x")
    second.save("levels.json", {"deep": 2, "other": 3}, 2)
    follow(first, second)
    confirm(first)
    assert files(first) == files(second)
    assert first.levels == {"deep": 2, "other": 3}
    assert found_by_prefix(first, b"42/temp/x") == 5
    first.close()
    again = make_kept(tmp_path / "first", is_replicated=True)
    confirm(again)
    assert files(again) == files(second)


def _save_unanswered(kept: KeptStore) -> None:
    with pytest.raises(StorageError):
        kept.save("levels.json", {"deep": 2}, 1)


def test_a_copy_gives_up_the_queues_that_its_leader_does(make_kept: MakeKept, tmp_path: Path) -> None:
    leader = founded(make_kept, tmp_path / "leader")
    copy = joined(make_kept, leader, tmp_path / "copy")
    confirms_by_itself(leader)
    leader.append("t", 5)
    leader.append("u", 2)
    ended = threading.Event()
    leader.post(lambda: leader.store.delete_queue("t", 0, lambda _: ended.set()))
    assert ended.wait(40)
    leader.append("t", 2)
    follow(copy, leader)
    confirm(copy)
    for kept in (copy, leader):
        assert kept.store.bounds("t", 0) == (5, 7)
        assert kept.store.bounds("u", 0) == (0, 2)
    wait(lambda: copy.store.numbers()["tombstones"] == 1)
    copy.close()
    again = make_kept(tmp_path / "copy", is_replicated=True)
    confirm(again)
    assert again.store.bounds("t", 0) == (5, 7)
