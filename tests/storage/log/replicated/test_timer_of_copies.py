"""A copy keeps its timers as its leader's log says, and goes on with all of them when it leads."""

from __future__ import annotations

from log_copies import CopyOfLog, founded, joined

from holdmq.record.codec import encode_record
from storage.api.timer import DelayedRecord

HOUR_MS = 3_600_000


def schedule(replica: CopyOfLog, body: bytes, delay_ms: int) -> None:
    record = encode_record(b"later", 0, body, b"", 5)
    due_ms = int(replica.now_s * 1e3) + delay_ms
    replica.store.timer.schedule([DelayedRecord(record, due_ms)], lambda _batch, _error: None)
    replica.settle()


def step(replica: CopyOfLog) -> None:
    """Let timer, retention and all that they append come to an end, on a leader that has no copies."""
    for _ in range(6):
        replica.store.timer.step()
        replica.settle()
        replica.confirm()
        replica.flush_step()


def rolled() -> CopyOfLog:
    """A leader whose log begins behind the first records of its two timers: it has appended both again."""
    leader = founded()
    schedule(leader, b"second", 500 * HOUR_MS)
    schedule(leader, b"first", 450 * HOUR_MS)
    for number in range(60):
        leader.append(number % 2, 3, body=b"x" * 100)
    leader.settle()
    leader.confirm()
    leader.store.retention.keep_for(lambda: ())
    leader.now_s += 400 * 3600
    while not leader.log.first_position:
        step(leader)
    return leader


def begun(leader: CopyOfLog) -> CopyOfLog:
    """A copy that knew nothing before it got all of the leader's log."""
    copy = joined(leader)
    copy.now_s = leader.now_s
    copy.store.timer.step()
    copy.follow(leader)
    copy.confirm()
    copy.store.timer.step()
    return copy


def test_a_copy_that_began_behind_them_has_every_timer_that_was_appended_again() -> None:
    leader = rolled()
    copy = begun(leader)
    copy.lead(3)
    copy.store.timer.step()
    assert copy.store.timer.pending == leader.store.timer.pending == 2
    copy.now_s += 110 * 3600
    step(copy)
    assert copy.store.timer.pending == 0
    assert copy.store.bounds("later", 0) == (0, 2)
    released = copy.queue_bytes(0, "later")
    assert released.index(b"first") < released.index(b"second")


def test_no_segment_of_a_copy_goes_because_it_counted_fewer_timers_than_wait() -> None:
    leader = rolled()
    copy = begun(leader)
    leader.now_s += 60 * 3600
    step(leader)
    assert leader.store.timer.pending == 1, "the one that was scheduled last has left first"
    copy.follow(leader)
    copy.confirm()
    copy.flush_step()
    copy.store.timer.step()
    copy.store.timer._try_checkpoint()
    assert not copy.store.timer.rolling.before_delete(copy.store._segments.table[-1])
    for _ in range(2):
        copy.kill()
        copy.confirm()
        copy.store.timer.step()
        assert copy.store.timer.pending == 1, "a start counts what waits"


def test_past_buckets_of_a_copy_go_when_the_leader_has_emptied_them() -> None:
    leader = founded()
    copy = joined(leader)
    for minutes in range(6):
        schedule(leader, b"late", minutes * 60_000)
    schedule(leader, b"much later", HOUR_MS)
    for _ in range(9):
        for replica in (leader, copy):
            replica.now_s += 60
        leader.store.timer.step()
        leader.settle()
        leader.confirm()
        copy.follow(leader)
        copy.confirm()
        copy.flush_step()
        copy.store.timer.step()
    assert leader.store.bounds("later", 0) == (0, 6)
    assert copy.store.timer.pending == 1
    assert copy.store.numbers()["timer_buckets"] == 1
    copy.kill()
    copy.confirm()
    copy.lead(3)
    copy.now_s += 3600
    for _ in range(3):
        copy.store.timer.step()
        copy.settle()
        copy.confirm()
    assert copy.store.bounds("later", 0) == (0, 7)
