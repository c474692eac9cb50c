"""Copies of a log are its bytes, at the same places; what is damaged or does not follow is not taken."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from log_copies import CopyOfLog, founded, joined, refusal

from broker.app.metric_help import STORE
from holdmq.errors import (
    Code,
    CorruptRecordError,
    FewReplicasError,
    HoldMQError,
    NotLeaderError,
    StoreFullError,
    StoreReadOnlyError,
    UsageError,
)
from storage.api.queues import QueueRead, ReadStatus
from storage.log import appends
from storage.log.replicated import copying


def fill(leader: CopyOfLog, seed: int, batches: int = 40) -> None:
    chance = Random(seed)
    for _ in range(batches):
        leader.now_s += 1
        leader.append(chance.randrange(3), chance.randrange(1, 5), body=b"x" * chance.choice((5, 100, 300)))
        if chance.random() < 0.4:
            leader.settle()
    leader.settle()


def assert_equal(leader: CopyOfLog, copy: CopyOfLog) -> None:
    assert copy.segments() == leader.segments()
    for queue_id in range(3):
        assert copy.store.bounds("devices", queue_id) == leader.store.bounds("devices", queue_id)
        assert copy.queue_bytes(queue_id) == leader.queue_bytes(queue_id) != b""


def refused(copy: CopyOfLog, data: bytes | bytearray) -> Exception:
    """Why a copy does not take these bytes for the log's beginning."""
    return refusal(lambda: copy.log.append_copied(memoryview(data), 0, copy.copied.append))


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("segment_bytes", [2048, 4096, 16384])
@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_a_copy_has_the_same_segments_whatever_its_own_size(
    flush: str, segment_bytes: int, max_bytes: int
) -> None:
    leader = founded(flush=flush)
    copy = joined(leader, flush=flush, segment_bytes=segment_bytes)
    for seed in range(3):
        fill(leader, seed)
        copy.follow(leader, max_bytes)
        leader.confirm()
        copy.confirm()
        copy.flush_step()
    assert leader.errors == [None] * 120
    assert set(copy.copied) == {None}
    assert len(leader.segments()) > 10
    assert_equal(leader, copy)
    copy.restart()
    assert_equal(leader, copy)


def test_a_copy_of_a_copy_that_leads_goes_on_in_its_segments() -> None:
    first = founded()
    second = joined(first, segment_bytes=8192)
    third = joined(first, segment_bytes=2048)
    fill(first, 1)
    for copy in (second, third):
        copy.follow(first)
        copy.confirm()
    second.lead(3)
    fill(second, 2)
    for copy in (first, third):
        if copy is first:
            first.log.end_leading()
        copy.follow(second)
        copy.confirm()
    second.confirm()
    assert_equal(second, third)
    assert first.segments() == second.segments()
    assert [tuple(epoch) for epoch in third.log.epochs] == [tuple(epoch) for epoch in second.log.epochs]


@pytest.mark.parametrize("indexed", range(4))
@pytest.mark.parametrize("cut", range(4))
def test_readers_of_the_epoch_before_go_on_where_a_new_leader_has_what_they_saw(
    indexed: int, cut: int
) -> None:
    leader = founded()
    copy = joined(leader)
    for count in range(4):
        if count == 4 - cut:
            copy.follow(leader)  # the old leader goes on alone
        leader.append(0, 2)
        leader.append(1, 1)
        leader.settle()
    if not cut:
        copy.follow(leader)
    copy.lead(3)
    kept = 2 * (4 - cut)
    copy.confirm()
    if indexed:
        copy.flush_step()
    for count in range(5):
        for offset in range(1, 9):
            read = asked(copy, offset)
            if offset > kept:
                assert (read.status, read.next_offset) == (ReadStatus.AHEAD, kept), offset
            elif offset == kept + 2 * count:
                assert read.status is ReadStatus.AT_END, offset
            else:
                assert read.status is ReadStatus.FOUND, offset
                assert offset < read.next_offset <= kept + 2 * count
        copy.append(0, 2)
        copy.settle()
        copy.confirm()
        if count < indexed:
            copy.flush_step()


def asked(copy: CopyOfLog, offset: int) -> QueueRead:
    """What a reader is answered that saw everything below `offset` in epoch 2."""
    read = copy.store.read_queue("devices", 0, 2, offset, 1 << 20, 1000)
    return copy.store.read_queue_cold("devices", 0, 2, offset, 1 << 20, 1000) if read is None else read


def test_bytes_that_are_damaged_are_refused_and_fetched_again() -> None:
    leader = founded()
    copy = joined(leader)
    leader.append(0, 3)
    leader.append(1, 2)
    leader.settle()
    given = leader.read(0)
    data = b"".join(given.parts)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x41
        assert isinstance(refused(copy, broken), CorruptRecordError), at
    for size in (0, 1, len(data) // 2, len(data) - 1):
        assert isinstance(refused(copy, data[:size]), CorruptRecordError), size
    assert (copy.log.appended_position, copy.copied) == (0, [])
    copy.follow(leader)
    copy.confirm()
    leader.confirm()
    assert copy.segments() == leader.segments()
    assert copy.store.numbers()["replica_refused_answers_total"] == len(data) + 4


def test_bytes_of_another_place_or_store_or_order_are_refused() -> None:
    leader = founded()
    copy = joined(leader)
    leader.append(0, 1)
    leader.append(0, 1)
    leader.settle()
    one, two = leader.read(0, 1), leader.read(leader.read(0, 1).end, 1)
    assert isinstance(refusal(lambda: copy.log.append_copied(two.parts[0], two.position, print)), UsageError)
    assert isinstance(refusal(lambda: copy.log.append_copied(two.parts[0], 0, print)), CorruptRecordError)
    assert isinstance(refusal(lambda: leader.log.append_copied(two.parts[0], two.end, print)), UsageError)
    stranger = founded()
    stranger.append(0, 1)
    stranger.settle()
    foreign = refusal(lambda: copy.log.append_copied(stranger.read(0).parts[0], 0, print))
    assert "another store's" in str(foreign)
    copy.log.append_copied(one.parts[0], 0, copy.copied.append)
    copy.settle()
    # The same bytes once more, at the place where they would follow: their offset does not.
    assert isinstance(
        refusal(lambda: copy.log.append_copied(one.parts[0], one.end, print)), CorruptRecordError
    )
    assert copy.copied == [None]


def test_offsets_that_leave_a_gap_or_come_again_are_refused() -> None:
    leader = founded()
    other = joined(leader)
    other.lead(3)
    for replica, queue_ids in ((leader, (0, 0)), (other, (1, 0))):
        for queue_id in queue_ids:
            replica.append(queue_id, 1)
        replica.settle()
    copy = joined(leader)
    first = leader.read(0, 1)
    copy.log.append_copied(first.parts[0], 0, copy.copied.append)
    # At its place, of this store, undamaged: but the first record of a queue that has one.
    again = other.log.read_bytes_cold(first.end, 1 << 20)
    error = refusal(lambda: copy.log.append_copied(again.parts[0], first.end, print))
    assert "is not the next of devices/0" in str(error)


def test_segments_that_a_copy_made_ahead_at_another_place_go() -> None:
    leader = founded()
    copy = joined(leader, segment_bytes=2048)
    for _ in range(60):
        leader.append(0, 1, body=b"x" * 300)
        leader.settle()
        copy.follow(leader)
        copy.confirm()
        copy.flush_step()
    assert len(leader.segments()) > 3
    assert copy.segments() == leader.segments()
    copy.kill()
    assert copy.segments() == leader.segments()


def test_every_number_of_a_copy_has_a_meaning() -> None:
    assert set(founded().store.numbers()) <= STORE.keys()


def test_a_copy_takes_no_records_of_producers() -> None:
    leader = founded()
    copy = joined(leader)
    copy.append(0, 1)
    copy.deliver()
    assert isinstance(copy.errors[0], NotLeaderError)
    assert not copy.store.state().ok
    leader.append(0, 1)
    leader.log.stop_appends()
    leader.append(0, 1)
    leader.settle()
    leader.confirm()
    assert isinstance(leader.errors[0], NotLeaderError)
    assert leader.errors[1:] == [None]


def test_a_leader_with_too_few_copies_refuses_by_name_and_still_confirms_what_it_had_taken() -> None:
    leader = founded()
    leader.append(0, 1)
    leader.settle()
    leader.log.refuse_appends(FewReplicasError("nobody follows", operation="append"))
    before = leader.log.appended_position
    leader.append(0, 2)
    leader.settle()
    assert [type(error) for error in leader.errors] == [FewReplicasError]
    assert leader.errors[0].code == Code.NOT_ENOUGH_REPLICAS
    assert leader.log.appended_position == before
    assert leader.log.refused_for_copies == 2
    assert "nobody follows" in leader.store.state().reason
    assert leader.store.backlog() == (0, 0.0), "nobody waits behind what cannot be confirmed"
    leader.confirm()
    assert leader.errors[1:] == [None]
    leader.log.take_appends()
    assert leader.store.state().ok
    leader.append(0, 1)
    leader.settle()
    leader.confirm()
    assert leader.errors[2:] == [None]


def test_a_leader_that_begins_takes_records() -> None:
    leader = founded()
    leader.log.refuse_appends(FewReplicasError("nobody follows", operation="append"))
    leader.log.stop_appends()
    leader.log.begin_leading()
    leader.append(0, 1)
    leader.settle()
    leader.confirm()
    assert leader.errors == [None]


def test_a_full_disk_of_a_copy_takes_back_and_goes_on() -> None:
    leader = founded()
    copy = joined(leader)
    fill(leader, 3, 10)
    copy.follow(leader)
    fill(leader, 4)
    before = copy.log.appended_position
    copy.disk.failing = lambda asked, path: (
        errno.ENOSPC if asked == "write" and path.parent.name == "commitlog" else None
    )
    copy.fetch(leader, 700)
    copy.fetch(leader, 700)
    assert copy.log.appended_position > before
    copy.settle()
    assert copy.log.appended_position == copy.log.written_position == before
    assert [type(error) for error in copy.copied[-2:]] == [StoreFullError] * 2
    copy.disk.failing = lambda _asked, _path: None
    copy.follow(leader)
    leader.confirm()
    copy.confirm()
    assert_equal(leader, copy)


def test_a_disk_that_is_full_behind_a_blank_leaves_the_blank_in_its_segment() -> None:
    leader = founded()
    copy = joined(leader, segment_bytes=2048)
    fill(leader, 12)
    start = leader.store._segments.table[1].start
    while leader.read(copy.log.appended_position, 1).end < start:
        copy.fetch(leader, 1)
        copy.settle()
    asked_for = 0

    def failing(asked: str, _path: Path) -> int | None:
        nonlocal asked_for
        asked_for += asked == "preallocate"
        # The next segment is made as large as those here, and then as its leader's.
        return errno.ENOSPC if asked == "preallocate" and asked_for > 1 else None

    copy.disk.failing = failing
    copy.fetch(leader)
    copy.fetch(leader)
    copy.settle()
    assert asked_for > 1
    assert copy.log.appended_position == copy.log.written_position < start
    copy.disk.failing = lambda _asked, _path: None
    copy.follow(leader)
    leader.confirm()
    copy.confirm()
    assert_equal(leader, copy)


@pytest.mark.parametrize("bound", ["index", "confirmed"])
def test_what_a_copy_holds_in_memory_is_bounded_and_it_goes_on_when_there_is_room(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = founded()
    copy = joined(leader)
    fill(leader, 13, 20)
    leader.confirm()
    if bound == "index":
        monkeypatch.setattr(appends, "INDEX_LAG_MAX_BYTES", 5000)
        copy.disk.failing = lambda asked, path: (
            errno.ENOSPC if asked == "create" and path.parent.parent.parent.name == "consumequeue" else None
        )
    else:
        monkeypatch.setattr(copying, "UNCONFIRMED_MAX_BYTES", 3000)

    def take() -> HoldMQError | None:
        try:
            while copy.fetch(leader, 500):
                copy.settle()
                if bound == "index":
                    copy.confirm()
        except StoreFullError as error:
            return error
        return None

    error = take()
    assert error is not None
    assert error.retriable
    assert copy.store.numbers()["replica_waits_total"] == 1
    held = copy.store.numbers()["tail_bytes"] + copy.store.numbers()["pending_bytes"]
    assert held < 15_000
    assert take() is not None
    copy.disk.failing = lambda _asked, _path: None
    while take() is not None:
        copy.confirm()
        copy.flush_step()
    copy.confirm()
    assert_equal(leader, copy)


def test_a_failed_disk_of_a_copy_is_told_and_final() -> None:
    leader = founded()
    copy = joined(leader)
    leader.append(0, 1)
    leader.settle()
    copy.disk.failing = lambda asked, path: (
        errno.EIO if asked == "write" and path.parent.name == "commitlog" else None
    )
    copy.fetch(leader)
    copy.settle()
    assert isinstance(copy.copied[0], StoreReadOnlyError)
    assert isinstance(copy.log.failure, StoreReadOnlyError)
    assert isinstance(
        refusal(lambda: copy.log.append_copied(leader.read(0).parts[0], 0, print)), StoreReadOnlyError
    )


def test_what_a_leader_takes_back_no_copy_has_seen() -> None:
    leader = founded()
    copy = joined(leader)
    fill(leader, 5, 12)
    end = leader.log.written_position
    leader.errors.clear()
    leader.disk.failing = lambda asked, path: (
        errno.ENOSPC if asked == "write" and path.parent.name == "commitlog" else None
    )
    for _ in range(4):
        leader.append(0, 2)
    copy.follow(leader, 700)
    leader.settle()
    copy.follow(leader, 700)
    assert copy.log.written_position == end == leader.log.appended_position
    assert [type(error) for error in leader.errors] == [StoreFullError] * 4
    leader.disk.failing = lambda _asked, _path: None
    fill(leader, 6, 12)
    copy.follow(leader, 700)
    leader.confirm()
    copy.confirm()
    assert leader.errors[4:] == [None] * 24, "what was written before is confirmed as well"
    assert_equal(leader, copy)


def test_a_leader_that_was_deposed_follows_after_a_cut_and_a_rebuild_finds_the_same() -> None:
    old = founded()
    new = joined(old)
    fill(old, 7)
    new.follow(old)
    new.confirm()
    old.confirm()
    old.flush_step()
    common = old.log.written_position
    old.errors.clear()
    fill(old, 8, 15)
    old.log.end_leading()
    assert len(old.errors) == 15
    assert all(error is not None and error.retriable for error in old.errors)
    new.lead(3)
    fill(new, 9)
    old.cut(common, 2)
    assert old.log.written_position == common
    old.follow(new)
    new.confirm()
    old.confirm()
    assert_equal(new, old)
    old.flush_step()
    old.restart()
    assert_equal(new, old)
    for topic in old.disk.list(Path("/store/consumequeue")):
        for queue_id in old.disk.list(Path("/store/consumequeue") / topic):
            for name in old.disk.list(Path("/store/consumequeue") / topic / queue_id):
                old.disk.unlink(Path("/store/consumequeue") / topic / queue_id / name)
    old.restart()
    assert_equal(new, old)


def test_queues_go_on_where_the_leader_was_though_nothing_of_them_is_left() -> None:
    leader = founded()
    leader.append(7, 5)
    fill(leader, 10)
    leader.confirm()
    leader.flush_step()
    ends = dict(leader.log.queue_ends())
    assert ends["devices", 7] == 5
    leader.store.retention.before_delete.clear()
    while leader.store.first_position < 8192:
        leader.store._segments.drop_oldest()
    copy = joined(leader)
    assert copy.log.first_position == leader.log.first_position > 0
    fill(leader, 11, 5)
    copy.follow(leader)
    copy.confirm()
    copy.flush_step()
    copy.kill()
    copy.follow(leader)
    copy.lead(3)
    copy.append(7, 1)
    copy.settle()
    copy.confirm()
    assert copy.errors == [None]
    assert copy.store.bounds("devices", 7) == (5, 6)
    leader.confirm()
    for queue_id in range(3):
        assert copy.store.bounds("devices", queue_id)[1] == leader.store.bounds("devices", queue_id)[1]
