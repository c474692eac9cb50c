from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from holdmq.client import hand_out as module
from holdmq.client.hand_out import LATER_MAX, HandedJob, HandOut
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.rebalance import HeldLease
from holdmq.client.subscriptions import TagFilter
from holdmq.message import TopicQueue
from holdmq.record.codec import encode_record
from holdmq.record.properties import encode_properties


def records(*tags: str | None, topic: str = "t", first: int = 0, **properties: str) -> memoryview:
    parts = []
    for offset, tag in enumerate(tags, first):
        pairs = [*properties.items(), *([("TAGS", tag)] if tag is not None else [])]
        record = bytearray(
            encode_record(topic.encode(), 0, b"%d" % offset, encode_properties(pairs), 1, bytes(8))
        )
        record[20:28] = offset.to_bytes(8, "big")
        parts.append(bytes(record))
    return memoryview(b"".join(parts))


class World:
    """A hand-out with queues that are filled by hand."""

    def __init__(self, is_ordered: bool = False, wanted: str = "*", batch_max: int = 1) -> None:
        self.queues: dict[TopicQueue, ProcessQueue] = {}
        self.room: list[ProcessQueue] = []
        filters = {topic: TagFilter(wanted) for topic in ("t", "%RETRY%g")}
        self.hand_out = HandOut(self.queues, filters, is_ordered, self.room.append, batch_max)

    def queue(
        self, queue_id: int, *tags: str | None, topic: str = "t", expires_at: float = 1e9
    ) -> ProcessQueue:
        queue = TopicQueue(topic, "b", queue_id)
        process = self.queues[queue] = ProcessQueue(queue, 1, 0, 1)
        lease = HeldLease(queue, 0.0)
        lease.expires_at = expires_at
        self.hand_out.add(process, lease)
        if tags:
            process.put(records(*tags, topic=topic), len(tags), len(tags), 1)
            self.hand_out.offer(process)
        return process

    def take(self, now: float = 0.0) -> HandedJob:
        job = self.hand_out.take(now)
        assert job is not None
        return job


def offsets(jobs: list[HandedJob]) -> list[tuple[int, int]]:
    return [(job.process.queue.queue_id, job.taken[0].offset) for job in jobs]


def test_a_job_has_as_many_messages_of_one_queue_as_are_there_up_to_a_bound() -> None:
    world = World(batch_max=3)
    first = world.queue(0, *[None] * 4)
    world.queue(1, None)
    assert world.hand_out.offer(first) == 2
    jobs = [world.take() for _ in range(3)]
    assert [[t.offset for t in job.taken] for job in jobs] == [[0, 1, 2], [0], [3]]
    assert [job.process.queue.queue_id for job in jobs] == [0, 1, 0]
    assert [bytes(message.body) for message in jobs[0].messages] == [b"0", b"1", b"2"]
    assert first.running == 2
    world.hand_out.finished(jobs[0])
    assert (first.floor, first.running) == (3, 1)


def test_a_list_leaves_out_what_no_subscription_wants() -> None:
    world = World(wanted="a", batch_max=2)
    process = world.queue(0, "a", "b", "a", "a")
    assert [t.offset for t in world.take().taken] == [0, 2]
    assert process.unfinished == 2


def test_of_a_list_that_failed_in_part_the_others_are_done_and_it_comes_again_alone() -> None:
    world = World(is_ordered=True, batch_max=3)
    process = world.queue(0, *[None] * 4)
    job = world.take()
    world.hand_out.keep(job, [1, 2])
    world.hand_out.retry(job, 5.0)
    assert process.floor == 1
    assert world.hand_out.offer(process) == 0
    assert world.hand_out.take(4.9) is None
    again = world.take(5.0)
    assert [t.offset for t in again.taken] == [1, 2]
    assert [message.reconsume_times for message in again.messages] == [1, 1]
    world.hand_out.finished(again)
    assert process.floor == 3
    world.hand_out.offer(process)
    assert [t.offset for t in world.take(5.0).taken] == [3]


def test_queues_take_turns() -> None:
    world = World()
    world.queue(0, None, None)
    world.queue(1, None, None)
    assert offsets([world.take() for _ in range(4)]) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert world.hand_out.take(0.0) is None


def test_an_ordered_queue_has_one_message_out_at_a_time() -> None:
    world = World(is_ordered=True)
    first = world.queue(0, None, None)
    world.queue(1, None)
    jobs = [world.take(), world.take()]
    assert offsets(jobs) == [(0, 0), (1, 0)]
    assert world.hand_out.offer(first) == 0
    assert world.hand_out.take(0.0) is None
    world.hand_out.finished(jobs[0])
    assert world.hand_out.offer(first) == 1
    assert offsets([world.take()]) == [(0, 1)]


def test_a_failed_message_of_an_ordered_queue_goes_first_after_its_pause() -> None:
    world = World(is_ordered=True)
    process = world.queue(0, None, None)
    job = world.take()
    world.hand_out.retry(job, 5.0)
    world.hand_out.offer(process)
    assert world.hand_out.next_retry() == 5.0
    assert world.hand_out.take(4.9) is None
    again = world.take(5.0)
    assert (again, again.first.reconsume_times, again.failures) == (job, 1, 1)
    world.hand_out.finished(again)
    world.hand_out.offer(process)
    assert offsets([world.take(5.0)]) == [(0, 1)]


def test_an_ordered_queue_that_comes_back_waits_for_what_is_still_out() -> None:
    world = World(is_ordered=True)
    world.queue(0, None, None)
    old = world.take()
    back = world.queue(0, None, None)
    assert world.hand_out.take(0.0) is None
    world.hand_out.finished(old)
    assert world.hand_out.offer(back) == 1
    assert world.take().process is back


@pytest.mark.parametrize("why", ["expired", "stopped", "lost", "paused broker", "paused"])
def test_what_may_not_be_handed_out_is_not(why: str) -> None:
    world = World()
    process = world.queue(0, None, expires_at=10.0)
    if why == "stopped":
        process.is_stopped = True
    elif why == "lost":
        del world.queues[process.queue]
    elif why == "paused broker":
        world.hand_out.paused_brokers.add("b")
    elif why == "paused":
        world.hand_out.is_paused = True
    assert world.hand_out.take(10.0 if why == "expired" else 9.9) is None
    assert process.floor == 0


def test_a_retry_of_a_paused_queue_does_not_hold_up_another() -> None:
    world = World()
    world.queue(0, None)
    other = world.queue(1, None)
    jobs = [world.take(), world.take()]
    for job in jobs:
        world.hand_out.retry(job, 1.0)
    world.queues[jobs[0].process.queue].is_stopped = True
    assert world.take(1.0).process is other


def test_retries_of_a_stopped_queue_are_forgotten_and_its_floor_stays() -> None:
    world = World()
    process = world.queue(0, None, None)
    job = world.take()
    world.hand_out.retry(job, 1.0)
    process.is_stopped = True
    world.hand_out.forget(process)
    assert world.hand_out.later == 0
    assert (process.running, process.floor) == (0, 0)


def test_too_many_failed_messages_stop_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LATER_MAX == 1_000
    monkeypatch.setattr(module, "LATER_MAX", 2)
    world = World()
    world.queue(0, None, None, None)
    for _ in range(2):
        world.hand_out.retry(world.take(), 1.0)
    assert world.hand_out.take(0.5) is None
    assert world.take(1.0).failures == 1
    assert world.take(1.0).taken[0].offset in (1, 2)


def test_what_no_subscription_wants_is_finished_unseen_and_in_bounded_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_MAX", 2)
    world = World(wanted="a")
    process = world.queue(0, "b", None, "b", "a")
    assert world.hand_out.take(0.0) is None
    assert process.floor == 2
    assert world.take().taken[0].offset == 3
    assert world.hand_out.filtered == 3
    assert world.room


def test_a_retry_has_the_topic_it_was_sent_to() -> None:
    world = World()
    process = world.queue(0, topic="%RETRY%g")
    process.put(records(None, topic="%RETRY%g", REAL_TOPIC="meters"), 1, 1, 1)
    world.hand_out.offer(process)
    assert world.take().first.topic == "meters"


def test_a_record_that_cannot_be_decoded_is_said_and_passed() -> None:
    world = World()
    process = world.queue(0)
    broken = bytearray(records(None, None))
    broken[4] ^= 0xFF
    process.put(memoryview(broken), 2, 2, 1)
    world.hand_out.offer(process)
    with capture_logs() as logs:
        assert world.take().taken[0].offset == 1
    assert world.hand_out.undecodable == 1
    assert (logs[0]["event"], logs[0]["offset"]) == ("a record cannot be decoded", 0)
