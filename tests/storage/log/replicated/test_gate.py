"""Nothing is visible, indexed, or below a checkpoint that is not confirmed; a start confirms nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from log_copies import SEGMENT_BYTES, CopyOfLog, founded, joined, refusal

from holdmq.errors import ShardLostError, StorageError, UsageError
from holdmq.record.batch import encode_batch
from storage.api.timer import DelayedRecord
from storage.log.replicated import replaying


def visible(replica: CopyOfLog) -> tuple[int, int, int, int]:
    store = replica.store
    replica.flush_step()
    tail = store.tail(store.confirmed_position)
    assert tail is not None
    assert len(tail) == 0
    assert store.flusher.indexed <= store.confirmed_position
    assert store.index.keys.position <= store.confirmed_position
    assert store.timer.follower.end <= store.confirmed_position
    return (
        store.confirmed_position,
        store.bounds("devices", 0)[1],
        store._checkpoint.position,
        len(replica.errors),
    )


def test_batches_become_visible_up_to_the_limit_and_then_their_appenders_are_told() -> None:
    leader = founded()
    ends = []
    for _ in range(5):
        leader.append(0, 2)
        leader.settle()
        ends.append(leader.log.written_position)
    assert visible(leader) == (0, 0, 0, 0)
    assert leader.store.read_queue("devices", 0, 0, 0, 1 << 20, 10).next_offset == 0  # type: ignore[union-attr]
    leader.confirm(ends[1])
    assert visible(leader) == (ends[1], 4, ends[1], 2)
    leader.confirm(ends[0])
    leader.confirm(ends[3] - 1)
    assert visible(leader) == (ends[2], 6, ends[2], 3)
    leader.confirm(1 << 40)
    assert visible(leader) == (ends[4], 10, ends[4], 5)
    leader.append(0, 1)
    leader.settle()
    assert leader.errors == [None] * 6, "a limit holds for what comes later, too"


def test_nothing_is_confirmed_that_is_not_written_here() -> None:
    leader = founded(flush="sync")
    leader.append(0, 1)
    leader.log.confirm_to(1 << 40)
    leader.deliver()
    assert leader.store.bounds("devices", 0) == (0, 0)
    leader.settle()
    assert leader.store.bounds("devices", 0) == (0, 1)


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1 << 20])
def test_a_start_leaves_what_follows_the_checkpoint_unconfirmed(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "READ_BYTES", chunk_bytes)
    leader = founded()
    ends = []
    for number in range(30):
        leader.append(number % 2, 2, body=b"x" * 100)
        leader.append(2 + number, 1)
        leader.settle()
        ends.append(leader.log.written_position)
        if number == 9:
            leader.confirm()
            leader.flush_step()
    leader.confirm(ends[19])
    leader.kill()
    log = leader.log
    assert (log.confirmed_position, log.written_position) == (ends[9], ends[29])
    assert log.appended_position == ends[29]
    assert [tuple(epoch) for epoch in log.epochs] == [(1, 0), (2, 0)], "epochs do not rise by themselves"
    assert leader.store.bounds("devices", 0) == (0, 10)
    assert leader.store.bounds("devices", 25) == (0, 0)
    leader.confirm(ends[12])
    assert leader.store.bounds("devices", 0)[1] == 14
    assert log.confirmed_position == ends[12]
    leader.lead(3)
    new = leader.append(0, 1)
    assert new.runs[0].base_offset == 30, "offsets go on behind what is not confirmed"
    leader.settle()
    assert leader.store.bounds("devices", 0)[1] == 14
    leader.confirm(ends[29])
    assert leader.store.bounds("devices", 0)[1] == 30
    assert leader.store.bounds("devices", 31) == (0, 1)
    leader.confirm()
    assert leader.store.bounds("devices", 0)[1] == 31
    leader.flush_step()
    assert leader.store._checkpoint.position == log.written_position
    first = leader.queue_bytes(0)
    leader.restart()
    assert leader.log.confirmed_position == leader.log.written_position
    assert leader.queue_bytes(0) == first


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_what_a_start_found_is_confirmed_by_whole_records(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "READ_BYTES", chunk_bytes)
    leader = founded()
    ends = []
    for _ in range(60):
        leader.now_s += 1
        leader.append(0, 1, body=b"x" * 100)
        leader.settle()
        ends.append(leader.log.written_position)
    assert ends[-1] > SEGMENT_BYTES
    leader.kill()
    shown = 0
    for limit in range(0, ends[-1] + 40, 37):
        leader.confirm(limit)
        shown = sum(end <= limit for end in ends)
        assert leader.store.bounds("devices", 0)[1] == shown
        assert leader.log.confirmed_position == (ends[shown - 1] if shown else 0)
        if limit % 5 == 0:
            # A checkpoint wherever that was: the next start goes on from it.
            leader.flush_step()
            leader.kill()
            assert leader.log.written_position == ends[-1]
    assert shown == 60
    assert leader.log.failure is None


def test_a_checkpoint_amid_what_a_start_found_lets_the_next_start_go_on_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaying, "READ_BYTES", 500)
    leader = founded()
    for _ in range(30):
        leader.now_s += 1
        leader.append(0, 1, body=b"x" * 100)
    leader.settle()
    end = leader.log.written_position
    leader.kill()
    leader.log.confirm_to(end)
    checkpoints = set()
    while leader.posted:
        leader.posted.popleft()()
        leader.now_s += 11
        leader.store.flusher.step()
        checkpoints.add(leader.store._checkpoint.position)
        again = CopyOfLog(leader.disk.copy())
        assert again.log.written_position == end, "no whole record is cut"
    assert len(checkpoints) > 5


def test_what_a_start_found_becomes_visible_before_what_comes_after_it() -> None:
    leader = founded()
    for _ in range(5):
        leader.append(0, 1)
    leader.settle()
    found = leader.log.written_position
    leader.kill()
    leader.lead(3)
    seen: list[int] = []
    leader.store.subscribe(lambda batches: seen.extend(batch.position for batch in batches))
    leader.append(0, 1)
    leader.settle()
    leader.confirm()
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, found)
    assert leader.store.bounds("devices", 0) == (0, 6)
    assert len(leader.queue_bytes(0)) == leader.log.written_position


def test_a_clean_close_confirms_nothing_either() -> None:
    leader = founded()
    leader.append(0, 2)
    leader.settle()
    end = leader.log.written_position
    leader.restart()
    assert (leader.log.confirmed_position, leader.log.written_position) == (0, end)
    assert leader.log.is_whole
    leader.confirm()
    assert leader.store.bounds("devices", 0) == (0, 2)


def test_a_failed_fsync_makes_the_outcome_unknown_and_the_copy_distrusted() -> None:
    leader = founded(flush="sync")
    copy = joined(leader, flush="sync")
    leader.append(0, 1)
    leader.disk.failing = lambda asked, path: (
        errno.EIO if asked == "sync" and path.parent.name == "commitlog" else None
    )
    while leader.store.writer.step():
        pass
    written = leader.log.written_position
    leader.deliver()
    assert written == 0
    assert leader.log.written_position > leader.log.durable_position == 0, "copies may have it at once"
    assert isinstance(leader.errors[0], ShardLostError)
    assert leader.log.failure is not None
    assert not leader.log.is_whole
    copy.follow(leader)
    assert copy.log.durable_position == leader.log.written_position
    leader.disk.failing = lambda _asked, _path: None
    leader.kill()
    assert not leader.log.is_whole


def test_the_bytes_of_a_leader_reach_copies_before_its_own_fsync() -> None:
    leader = founded(flush="sync")
    moves: list[tuple[int, int]] = []
    leader.log.watch(lambda: moves.append((leader.log.written_position, leader.log.durable_position)))
    leader.append(0, 1)
    leader.settle()
    end = leader.log.written_position
    assert moves[0] == (end, 0)
    assert moves[-1] == (end, end)


def test_an_epoch_begins_at_the_logs_end_and_only_above_the_last() -> None:
    leader = founded()
    leader.append(0, 1)
    assert isinstance(refusal(lambda: leader.log.begin_epoch(3, print)), UsageError), "not all is written"
    leader.settle()
    end = leader.log.written_position
    assert isinstance(refusal(lambda: leader.log.begin_epoch(2, print)), StorageError)
    leader.begin_epoch(5)
    leader.kill()
    assert [tuple(epoch) for epoch in leader.log.epochs] == [(1, 0), (2, 0), (5, end)]


def test_raw_reads_end_at_epochs_segments_and_what_is_written() -> None:
    leader = founded()
    for number in range(20):
        if number == 10:
            leader.settle()
            leader.begin_epoch(3)
        leader.append(0, 3, body=b"x" * 100)
    leader.settle()
    for is_cold in (False, True):
        position, stops = 0, []
        while position < leader.log.written_position:
            given = leader.log.read_bytes_cold(position, 1 << 20) if is_cold else leader.read(position)
            stops.append(given.end)
            position = given.end
        assert leader.log.epochs[-1].start in stops
        assert {segment.start for segment in leader.store._segments.table[1:]} - {0} <= set(stops)
    assert leader.read(position).parts == ()


def test_the_timer_of_a_copy_waits_for_its_leader_and_releases_once_it_leads() -> None:
    leader = founded()
    copy = joined(leader)
    schedule(leader, 2_000)
    schedule(leader, 60_000)
    copy.follow(leader)
    leader.confirm()
    copy.confirm()
    for replica in (leader, copy):
        replica.now_s += 5
        tick(replica)
    assert leader.log.appended_position > copy.log.appended_position, "the leader released one"
    assert copy.store.timer.pending == 2
    copy.follow(leader)
    leader.confirm()
    copy.confirm()
    tick(copy)
    assert copy.store.timer.pending == 1
    assert copy.store.bounds("later", 0) == (0, 1)
    copy.lead(3)
    copy.now_s += 100
    tick(copy)
    copy.settle()
    copy.confirm()
    tick(copy)
    assert copy.store.bounds("later", 0) == (0, 2)
    assert copy.store.timer.pending == 0


def tick(replica: CopyOfLog) -> None:
    for _ in range(3):
        replica.store.timer.step()
        replica.settle()


def schedule(replica: CopyOfLog, delay_ms: int) -> None:
    raw, _ = encode_batch(b"later", 0, [b"later"], b"", 5)
    due_ms = int(replica.now_s * 1e3) + delay_ms
    replica.store.timer.schedule([DelayedRecord(bytes(raw), due_ms)], lambda _batch, _error: None)
    replica.settle()


def test_a_copy_drops_segments_only_as_its_leader_does() -> None:
    leader = founded()
    copy = joined(leader)
    for number in range(60):
        leader.append(number % 2, 3, body=b"x" * 100)
    leader.settle()
    copy.follow(leader)
    leader.confirm()
    copy.confirm()
    copy.now_s += 400 * 3600
    for _ in range(4):
        copy.flush_step()
    assert copy.log.first_position == 0
    names = sorted(leader.segments())
    copy.log.drop_below(int(names[3]) + 1)
    for _ in range(8):
        copy.flush_step()
        copy.store.timer.step()
    assert copy.log.first_position == int(names[3])
    assert copy.store.bounds("devices", 0)[0] > 0
    copy.kill()
    assert copy.log.first_position == int(names[3])
    assert (Path("/store/commitlog") / names[0]).name not in copy.disk.list(Path("/store/commitlog"))
