from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cluster_view import listed
from deliveries import Deliveries
from group_machine import crash
from member_process import Member
from processes import running_stack
from structlog.testing import capture_logs
from two_brokers import two_brokers

from holdmq.client import (
    Admin,
    Consumer,
    Message,
    Producer,
    SendResult,
    SharedConsumer,
    SharedMessage,
    TopicQueue,
)
from holdmq.client import settling as module
from holdmq.client.groups import GroupAdmin
from holdmq.errors import RemoteError, TransportError, UsageError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupPauseRequest, GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.move_headers import SendBackRequest
from holdmq.wire.offset_headers import OffsetGetRequest, OffsetGetResponse, OffsetRow
from holdmq.wire.topic_headers import TopicGrowRequest

StackMaker = Callable[..., Any]
STOPS = 3


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with running_stack(tmp_path_factory.mktemp("groups"), "registry", "broker") as stack:
        yield [stack.registry]


@pytest.fixture
def group(topic: str) -> str:
    """A group that no other test has."""
    return f"g-{topic}"


@pytest.fixture
async def producer(registries: list[str]) -> AsyncIterator[Producer]:
    async with Producer(registries) as producer:
        yield producer


async def until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def traffic(
    producer: Producer, topic: str, queues: int, interval_s: float = 0.005
) -> AsyncIterator[list[bytes]]:
    """Messages to every queue, one after the other, as long as the block lasts; what was acknowledged."""
    sent: list[bytes] = []
    is_over = False

    async def send() -> None:
        number = 0
        while not is_over:
            batch = [Message(topic, b"%d/%d" % (number, queue_id)) for queue_id in range(queues)]
            names = [TopicQueue(topic, "broker-0", queue_id) for queue_id in range(queues)]
            await asyncio.gather(*(producer.send(m, queue=q) for m, q in zip(batch, names, strict=True)))
            sent.extend(message.body for message in batch)
            number += 1
            await asyncio.sleep(interval_s)

    sending = asyncio.create_task(send())
    try:
        yield sent
    finally:
        is_over = True
        await sending


async def begin(registries: list[str], producer: Producer, topic: str) -> SendResult:
    """Store a first message, and come back when there is a topic for who starts now."""
    queue = TopicQueue(topic, "broker-0", 0)
    result = await producer.send(Message(topic, b"the topic's first"), queue=queue)
    await listed(registries, topic, 4)
    return result


async def spread(producer: Producer, topic: str, count: int, size_bytes: int = 1) -> None:
    """So many messages to each of four queues."""
    for queue_id in range(4):
        queue = TopicQueue(topic, "broker-0", queue_id)
        await producer.send_batch([Message(topic, os.urandom(size_bytes)) for _ in range(count)], queue=queue)


def queues_of(consumer: Consumer, topic: str) -> list[TopicQueue]:
    return [queue for queue in consumer.positions() if queue.topic == topic]


async def test_a_message_sent_after_the_start_is_handled(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    got: asyncio.Queue[Message] = asyncio.Queue()
    await begin(registries, producer, topic)
    async with Consumer(registries, group, got.put, [topic]) as consumer:
        await producer.send(Message(topic, b"after"))
        assert (await got.get()).body == b"after"
        assert len(consumer.positions()) == 4


async def test_where_a_group_begins_in_a_topic_that_it_waited_for_is_written_down(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    """Else the next member takes its own start for the group's first, and what waits is passed over."""
    got: asyncio.Queue[Message] = asyncio.Queue()
    async with Consumer(registries, group, got.put, [topic], report_s=3600) as consumer:
        await producer.send(Message(topic, b"the topic's first"))
        assert (await got.get()).body == b"the topic's first"
        await until(lambda: len(queues_of(consumer, topic)) == 4, "it has its queues")
        link = producer.routes.link("broker-0")
        reply = await link.client.call(RequestCode.OFFSET_GET, OffsetGetRequest(group, [topic]), 60.0)
        assert [row.offset for row in rows(OffsetRow, reply.header(OffsetGetResponse).offsets)] == [0] * 4


@pytest.mark.parametrize("ordered", [False, True])
async def test_24_queues_are_shared_evenly_and_never_consumed_by_two(
    registries: list[str], producer: Producer, topic: str, group: str, ordered: bool
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 24)
    deliveries = Deliveries()
    members = [
        Consumer(registries, group, deliveries.handler(f"m{i}", 0.03), [topic], ordered=ordered)
        for i in range(3)
    ]

    def shares(*counts: int) -> Callable[[], bool]:
        return lambda: tuple(len(queues_of(m, topic)) for m in members[: len(counts)]) == counts

    await members[0].start()
    async with traffic(producer, topic, 24, 0.05) as sent:
        await until(shares(24), "one member has all queues")
        await members[1].start()
        await until(shares(12, 12), "two members have half each")
        await members[2].start()
        await until(shares(8, 8, 8), "three members have a third each")
        count = len(deliveries.all)
        await until(lambda: len(deliveries.all) > count + 500, "all are at work")
    await until(lambda: deliveries.bodies() >= set(sent), "everything is delivered")
    for member in members:
        await member.close()
    assert deliveries.shared_queues() == []
    assert {d.member for d in deliveries.all} == {"m0", "m1", "m2"}
    if ordered:
        assert deliveries.disorder() == []
        assert len(deliveries.all) == len(sent)


@pytest.fixture
def start_member(
    registries: list[str], topic: str, group: str, tmp_path: Path
) -> Iterator[Callable[..., Member]]:
    """Starts members as processes; what is left of them is killed with the test."""
    started: list[Member] = []

    def start(name: str, **settings: object) -> Member:
        texts = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        member = Member(tmp_path, name, registries[0], group, topic, *texts)
        started.append(member)
        member.wait_started()
        return member

    yield start
    for member in started:
        if member.process.poll() is None:
            member.end(signal.SIGKILL)


def all_of(members: list[Member]) -> Deliveries:
    found = Deliveries()
    for member in members:
        found.all += member.deliveries()
    return found


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_a_killed_member_had_goes_to_the_others_at_once(
    registries: list[str],
    producer: Producer,
    topic: str,
    start_member: Callable[..., Member],
    ordered: bool,
) -> None:
    await begin(registries, producer, topic)
    members = [
        await asyncio.to_thread(start_member, f"m{i}", pause_s=0.002, ordered=ordered) for i in range(3)
    ]
    async with traffic(producer, topic, 4) as sent:
        await until(lambda: all(m.deliveries() for m in members), "all three are at work")
        members[1].end(signal.SIGKILL)
        count = len(all_of([members[0], members[2]]).all)
        await until(
            lambda: {d.place[2] for d in all_of([members[0], members[2]]).all[count:]} == {0, 1, 2, 3},
            "the others consume every queue",
        )
    await until(lambda: all_of(members).bodies() >= set(sent), "everything is delivered")
    for member in (members[0], members[2]):
        assert member.end() == 0
    assert all_of(members).shared_queues() == []
    if ordered:
        assert all_of(members).disorder(may_go_back=True) == []


async def test_a_member_that_stood_still_too_long_hands_out_nothing_that_it_had(
    holdmq_stack: StackMaker, tmp_path: Path
) -> None:
    stack = holdmq_stack(services=("registry", "broker"), **{"broker.queue_lease_s": 2})
    registry = f"127.0.0.1:{stack.registry_port}"
    members = [Member(tmp_path, f"m{i}", registry, "g", "t", "pause_s=0.01") for i in range(2)]
    try:
        async with Producer([registry]) as producer:
            await producer.send(Message("t", b"the topic's first"))
            for member in members:
                await asyncio.to_thread(member.wait_started)
            async with traffic(producer, "t", 4) as sent:
                await until(lambda: all(m.deliveries() for m in members), "both are at work")
                for _ in range(STOPS):
                    members[0].process.send_signal(signal.SIGSTOP)
                    stopped_at = time.monotonic()
                    await until(
                        lambda at=stopped_at: (
                            {d.place[2] for d in members[1].deliveries() if d.began > at} == {0, 1, 2, 3}
                        ),
                        "the other consumes every queue",
                    )
                    members[0].process.send_signal(signal.SIGCONT)
                    count = len(members[0].deliveries())
                    await until(lambda n=count: len(members[0].deliveries()) > n + 20, "it is at work again")
            await until(lambda: all_of(members).bodies() >= set(sent), "everything is delivered")
    finally:
        for member in members:
            member.end()
    overlaps = all_of(members).shared_queues()
    # What it had in its handlers when it was stopped took as long as it stood still; nothing began later but
    # the one message that it may have taken when it was stopped, on the way to its handler.
    short = [pair for pair in overlaps if max(d.ended - d.began for d in pair) < 0.3]
    assert len({d for pair in short for d in pair if d.member == "m0"}) <= STOPS


async def test_an_ordered_queue_waits_for_its_failed_message_and_the_others_do_not(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    await begin(registries, producer, topic)
    handled: list[tuple[int, int, int]] = []

    def others_are_done() -> bool:
        return sum(queue_id != 1 for queue_id, _, _ in handled) == 9

    async def handle(message: Message) -> bool:
        handled.append((message.queue_id, message.queue_offset, message.reconsume_times))
        if message.queue_id != 1 or message.queue_offset != first + 1:
            return True
        # However often it fails meanwhile: who waited for it would never be done.
        return message.reconsume_times >= 3 and others_are_done()

    async with Consumer(registries, group, handle, [topic], ordered=True, suspend_s=0.2) as consumer:
        await until(lambda: len(queues_of(consumer, topic)) == 4, "it has its queues")
        first = {q.queue_id: p.offset for q, p in consumer.positions().items()}[1]
        await spread(producer, topic, 3)
        await until(lambda: consumer.numbers()["handled_total"] == 12, "everything is handled")
        failed = consumer.numbers()["failed_total"]
    assert failed >= 3
    in_first_queue = [(offset - first, times) for queue_id, offset, times in handled if queue_id == 1]
    assert in_first_queue == [(0, 0), *((1, times) for times in range(failed + 1)), (2, 0)]


async def test_queues_that_are_added_are_read_from_their_beginning(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    deliveries = Deliveries()
    await begin(registries, producer, topic)
    async with Consumer(registries, group, deliveries.handler("m"), [topic]) as consumer:
        link = producer.routes.link("broker-0")
        await link.client.call(RequestCode.TOPIC_GROW, TopicGrowRequest(topic, 6), 60.0)
        # The producer may know of them long before the consumer does.
        await producer.routes.refresh()
        await until(lambda: len(producer.routes.get(topic).write_queues) == 6, "the route has six queues")
        sent = [b"%d" % i for i in range(6)]
        for i, body in enumerate(sent):
            await producer.send(Message(topic, body), queue=TopicQueue(topic, "broker-0", i))
        consumer.routes.refresh_soon()
        await until(lambda: deliveries.bodies() >= set(sent), "everything is delivered")
        assert len(queues_of(consumer, topic)) == 6


async def test_a_group_begins_where_it_was_and_first_where_it_is_told(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    await producer.send_batch([Message(topic, b"%d" % i) for i in range(8)])
    await listed(registries, topic, 4)
    for start, expected in (("earliest", {b"%d" % i for i in range(8)}), ("latest", set())):
        deliveries = Deliveries()
        consumer = Consumer(registries, f"{group}-{start}", deliveries.handler("m"), [topic], start=start)
        with capture_logs() as logs:
            await consumer.start()
            await until(lambda: deliveries.bodies() >= expected, "the old ones are delivered")  # noqa: B023
            await consumer.close()
        (said,) = [entry for entry in logs if entry["event"] == "first start of a group in a topic"]
        assert (said["start"], said["topic"], said["group"]) == (start, topic, f"{group}-{start}")
        await producer.send(Message(topic, b"between"))
        other = Deliveries()
        async with Consumer(registries, f"{group}-{start}", other.handler("m"), [topic], start="earliest"):
            await until(lambda: other.all, "what came between is delivered")  # noqa: B023
        assert other.bodies() == {b"between"} if start == "latest" else b"between" in other.bodies()
        assert len(deliveries.all) == len(expected)


async def test_only_the_first_group_of_a_topic_that_says_so_gets_what_was_before_it(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    before = {b"%d" % i for i in range(8)}
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 4, first_group="beginning")
        await producer.send_batch([Message(topic, body) for body in sorted(before)])
        await listed(registries, topic, 4)
        first, second = Deliveries(), Deliveries()
        async with Consumer(registries, group, first.handler("m"), [topic]):
            await until(lambda: first.bodies() == before, "the first group gets all")
            async with Consumer(registries, f"{group}-2", second.handler("m"), [topic]):
                await producer.send(Message(topic, b"after"))
                await until(lambda: b"after" in second.bodies(), "the second one gets what comes")
        assert second.bodies() == {b"after"}
        (view,) = [view for view in await admin.topics() if view.topic == topic]
        assert [row.first_reader for row in view.rows.values()] == [group]
        async with GroupAdmin(registries) as groups:
            await groups.delete(group)  # it stays the first when it is gone
        async with SharedConsumer(registries, f"{group}-3", [topic]) as third:
            await producer.send(Message(topic, b"later"))
            assert {message.body for message in await third.pull(hold_ms=10_000)} == {b"later"}


@pytest.mark.parametrize("start", [None, "latest"])
async def test_a_shared_group_is_the_first_too_and_one_that_says_where_it_begins_uses_that_up(
    registries: list[str], producer: Producer, topic: str, group: str, start: Any
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 4)
        await admin.update_topic(topic, first_group="beginning")
    await producer.send(Message(topic, b"before"))
    await listed(registries, topic, 4)
    async with SharedConsumer(registries, group, [topic], start=start) as consumer:
        if start is None:
            assert [message.body for message in await consumer.pull(hold_ms=10_000)] == [b"before"]
        await producer.send(Message(topic, b"after"))
        assert [message.body for message in await consumer.pull(hold_ms=10_000)] == [b"after"]
    deliveries = Deliveries()
    async with Consumer(registries, f"{group}-2", deliveries.handler("m"), [topic]):
        await producer.send(Message(topic, b"last"))
        await until(lambda: deliveries.all, "what comes is delivered")
    assert deliveries.bodies() == {b"last"}


async def test_every_member_of_a_broadcast_group_that_is_the_first_gets_what_was_before(
    registries: list[str], producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 4, first_group="beginning")
    await producer.send(Message(topic, b"before"))
    await listed(registries, topic, 4)
    for name, own_group, expected in (
        ("east", group, {b"before", b"east"}),
        ("west", group, {b"before", b"east", b"west"}),
        ("late", f"{group}-2", {b"late"}),
    ):
        got = Deliveries()
        async with Consumer(
            registries,
            own_group,
            got.handler("m"),
            [topic],
            mode="broadcast",
            client_id=name,
            offsets_directory=tmp_path,
        ):
            await producer.send(Message(topic, name.encode()))
            await until(lambda: got.bodies() >= expected, "all is delivered")  # noqa: B023
        assert got.bodies() == expected


async def test_groups_that_begin_together_agree_at_all_brokers_and_after_a_restart_which_was_the_first(
    tmp_path: Path, topic: str
) -> None:
    with contextlib.contextmanager(two_brokers)(tmp_path) as cluster:
        registries = [cluster.first.registry]
        bodies = {b"%d" % i for i in range(24)}
        async with Admin(registries) as admin, Producer(registries) as producer:
            await admin.create_topic(topic, 4, first_group="beginning")
            await listed(registries, topic, 8)
            await producer.send_batch([Message(topic, body, keys=(body.decode(),)) for body in bodies])
            got = {name: Deliveries() for name in ("one", "two", "three")}
            consumers = [
                Consumer(registries, name, found.handler("m"), [topic]) for name, found in got.items()
            ]
            await asyncio.gather(*(consumer.start() for consumer in consumers))
            await until(lambda: any(found.bodies() == bodies for found in got.values()), "one has all")
            (first,) = [name for name, found in got.items() if found.all]
            await asyncio.gather(*(consumer.close() for consumer in consumers))
        for stack in (cluster.first, cluster.second):
            stack.restart("broker", signal.SIGKILL)
        await listed(registries, topic, 8)
        async with Admin(registries) as admin:
            (view,) = [view for view in await admin.topics() if view.topic == topic]
            assert [row.first_reader for row in view.rows.values()] == [first, first]


async def test_a_seek_moves_the_group_and_a_pause_hands_out_nothing(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    await begin(registries, producer, topic)
    await spread(producer, topic, 10)
    deliveries = Deliveries()
    async with Consumer(registries, group, deliveries.handler("m"), [topic]) as consumer:
        queue = TopicQueue(topic, "broker-0", 2)
        await until(lambda: len(queues_of(consumer, topic)) == 4, "it has its queues")
        await consumer.seek(queue, "earliest")
        await until(lambda: len(deliveries.all) >= 10, "the queue is consumed again")
        assert {d.place[2] for d in deliveries.all} == {2}
        assert sorted(d.offset for d in deliveries.all)[:10] == list(range(10))
        count = len(deliveries.all)
        with pytest.raises(UsageError, match="not this member's"):
            await consumer.seek(TopicQueue(topic, "broker-0", 9), "latest")
        consumer.pause()
        await producer.send_batch([Message(topic, b"later %d" % i) for i in range(4)])
        async with Consumer(
            registries, f"other-{topic}", deliveries.handler("other"), [topic], start="earliest"
        ):
            await until(lambda: b"later 3" in deliveries.bodies("other"), "another group has seen them")
        assert len([d for d in deliveries.all if d.member == "m"]) == count
        consumer.resume()
        later = {b"later %d" % i for i in range(4)}
        await until(lambda: later <= deliveries.bodies("m"), "they are handled after all")


async def test_a_paused_group_gets_nothing_until_it_is_resumed(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    await begin(registries, producer, topic)
    deliveries = Deliveries()
    async with Consumer(registries, group, deliveries.handler("m"), [topic]) as consumer:
        call = producer.routes.link("broker-0").client.call
        await call(RequestCode.GROUP_PAUSE, GroupPauseRequest(group, True), 60.0)
        await until(lambda: consumer._hand_out.paused_brokers == {"broker-0"}, "the member knows")
        await producer.send(Message(topic, b"while paused"))
        async with Consumer(
            registries, f"other-{topic}", deliveries.handler("other"), [topic], start="earliest"
        ):
            await until(lambda: b"while paused" in deliveries.bodies("other"), "another group gets it")
        assert deliveries.bodies("m") == set()
        await call(RequestCode.GROUP_PAUSE, GroupPauseRequest(group, False), 60.0)
        await until(lambda: deliveries.bodies("m") == {b"while paused"}, "it is handled after all")


async def test_life_goes_on_without_any_registry(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    registries = [stack.registry]
    deliveries = Deliveries()

    def share(consumer: Consumer) -> int:
        return len(queues_of(consumer, "t"))

    async with Producer(registries) as producer:
        await producer.send(Message("t", b"the topic's first"))
        async with (
            Consumer(registries, "g", deliveries.handler("a"), ["t"]) as first,
            Consumer(registries, "g", deliveries.handler("b"), ["t"]) as second,
        ):
            await until(lambda: share(first) == share(second) == 2, "both have their share")
            await asyncio.to_thread(stack.stop, "registry")
            async with traffic(producer, "t", 4) as sent:
                await until(lambda: len(sent) > 50, "messages are sent")
                await asyncio.to_thread(stack.stop, "broker", signal.SIGKILL)
                stack.start("broker", wait=False)  # without a registry it is not ready, and serves
                count = len(sent)
                await until(lambda: len(sent) > count + 50, "messages are sent again")
            await until(lambda: deliveries.bodies() >= set(sent), "everything is delivered")
            await second.close()
            await until(lambda: share(first) == 4, "who stays has all queues")


async def test_a_slow_handler_leaves_a_bounded_amount_in_hand(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    await begin(registries, producer, topic)
    await spread(producer, topic, 200, 10_000)
    gate = asyncio.Event()

    async def handle(_: Message) -> None:
        await gate.wait()

    bound = 1 << 20
    async with Consumer(
        registries, group, handle, [topic], start="earliest", buffer_max_bytes=bound, concurrency=5
    ) as consumer:
        try:
            await until(lambda: consumer.numbers()["bytes_waiting"] > bound // 4, "the buffer fills")
            while consumer._pulls._held.get("broker-0"):  # until nothing is asked for any more
                assert consumer.numbers()["bytes_waiting"] <= bound
                await asyncio.sleep(0.01)
            assert consumer.numbers()["bytes_waiting"] <= bound
            assert consumer.numbers()["handlers_running"] == 5
        finally:
            gate.set()
        await until(lambda: consumer.numbers()["handled_total"] == 801, "everything is handled")


async def test_a_failed_message_comes_again_to_its_group_only_and_the_others_pass_it(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    await begin(registries, producer, topic)
    seen: list[tuple[bytes, str, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.body, message.topic, message.reconsume_times))
        if message.body == b"bad":
            raise ValueError("as told")

    other = Deliveries()
    async with (
        Consumer(registries, group, handle, {topic: "a"}) as consumer,
        Consumer(registries, f"other-{topic}", other.handler("other"), [topic]),
    ):
        settings = GroupUpdateRequest(group, retry_max_times=2, delay_levels_ms=[100, 300])
        await producer.routes.link("broker-0").client.call(RequestCode.GROUP_UPDATE, settings, 60.0)
        await producer.send(Message(topic, b"bad", "a"))
        await producer.send(Message(topic, b"good", "a"))
        await until(lambda: consumer.numbers()["sent_back_total"] == 3, "it failed three times")
        await producer.send(Message(topic, b"last", "a"))
        await until(lambda: b"last" in {body for body, _, _ in seen}, "others are handled")
        await until(lambda: b"last" in other.bodies(), "the other group has everything")
    assert [entry for entry in seen if entry[0] == b"bad"] == [(b"bad", topic, i) for i in range(3)]
    assert len(seen) == 5
    assert sorted(d.body for d in other.all) == [b"bad", b"good", b"last"]


async def test_a_message_that_cannot_be_sent_back_is_tried_again_where_it_is(
    registries: list[str], producer: Producer, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_BACK_AGAIN_S", 0.05)
    await begin(registries, producer, topic)
    attempts: list[int] = []

    async def handle(message: Message) -> bool:
        attempts.append(message.reconsume_times)
        return len(attempts) == 4

    async with Consumer(registries, group, handle, [topic]) as consumer:
        monkeypatch.setattr(module, "SendBackRequest", lambda _group, sent: SendBackRequest("unknown", sent))
        sent = await producer.send(Message(topic, b"x"))
        await until(lambda: consumer.numbers()["handled_total"] == 1, "it succeeds at last")
        assert attempts == [0, 1, 2, 3]
        assert consumer.positions()[sent.queue].offset == sent.queue_offset + 1


async def test_who_cannot_be_a_member_is_told_at_once_and_leaves_nothing_behind(
    registries: list[str], producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    await begin(registries, producer, topic)
    deliveries = Deliveries()
    handler = deliveries.handler("m")
    async with Consumer(registries, group, handler, [topic]):
        other = Consumer(registries, group, handler, [topic], mode="broadcast", offsets_directory=tmp_path)
        with pytest.raises(RemoteError, match="MODE_CONFLICT"):
            await other.start()
        with pytest.raises(UsageError, match="started once"):
            await other.start()
    with pytest.raises(UsageError, match="strategy <lambda> failed: list index out of range"):
        await Consumer(
            registries, "h", handler, [topic], strategy=lambda queues, _: {"x": [queues[99]]}
        ).start()
    with pytest.raises(TransportError, match="no registry answer"):
        await Consumer(["127.0.0.1:1"], group, handler, [topic]).start(timeout_s=1)


def test_settings_that_cannot_be_are_refused() -> None:
    def make(group: str = "g", topics: object = ("t",), **settings: object) -> Consumer:
        return Consumer(["h:1"], group, print, topics, **settings)  # type: ignore[arg-type]

    for settings, problem in (
        ({"group": "a b"}, "group name"),
        ({"topics": ["%SYS"]}, "system topic"),
        ({"topics": {"t": "a/#/b"}}, "filter"),
        ({"mode": "shared"}, "has its own consumer"),
        ({"start": 5}, "start 5"),
        ({"concurrency": 0}, "below 1"),
        ({"strategy": "fair"}, "average"),
    ):
        with pytest.raises(UsageError, match=problem):
            make(**settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not started"):
        make().numbers()


async def test_what_a_handler_had_when_its_member_crashed_is_delivered_again(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    first = await begin(registries, producer, topic)
    handled: set[bytes] = set()

    async def handle(message: Message) -> None:
        if message.body == b"stuck":
            await asyncio.Event().wait()
        handled.add(message.body)

    consumer = Consumer(registries, group, handle, [topic])
    await consumer.start()
    for body in (b"done", b"stuck", b"passed it"):
        await producer.send(Message(topic, body), queue=first.queue)
    await until(lambda: handled == {b"done", b"passed it"}, "what came later passes what is stuck")
    await consumer._progress.report(consumer._queues)
    assert consumer.positions()[first.queue].offset == first.queue_offset + 2
    await crash(consumer)
    deliveries = Deliveries()
    async with Consumer(registries, group, deliveries.handler("m"), [topic]):
        await until(lambda: b"passed it" in deliveries.bodies(), "the next member goes on")
    assert [d.body for d in deliveries.all] == [b"stuck", b"passed it"]


async def test_a_handler_of_lists_gets_what_is_there_and_says_which_failed(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 1)
    for number in range(25):
        await producer.send(Message(topic, b"%d" % number))
    lists: list[list[int]] = []
    failing = {3, 17}

    async def handle(messages: list[Message]) -> list[Message]:
        numbers = [int(message.body) for message in messages]
        lists.append(numbers)
        failed = [message for message in messages if int(message.body) in failing]
        failing.difference_update(numbers)
        return failed

    async with (
        Admin(registries) as admin,
        Consumer(
            registries, group, handle, [topic], start="earliest", batch_max=10, concurrency=1
        ) as consumer,
    ):
        await until(lambda: sum(map(len, lists)) >= 25, "all came")
        await until(lambda: consumer.numbers()["sent_back_total"] == 2, "two are sent back")
        await until(lambda: min(p.offset for p in consumer.positions().values()) >= 0, "positions")
    assert max(map(len, lists)) == 10
    assert sorted(number for one in lists for number in one) == list(range(25))
    assert all(one == sorted(one) for one in lists)


async def test_an_ordered_list_that_fails_in_part_comes_again_from_there_on(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    async with Admin(registries) as admin:
        await admin.create_topic(topic, 1)
    for number in range(12):
        await producer.send(Message(topic, b"%d" % number))
    done: list[int] = []
    failures = 0

    def handle(messages: list[Message]) -> list[Message] | bool:
        nonlocal failures
        numbers = [int(message.body) for message in messages]
        if 5 in numbers and not failures:
            failures += 1
            done.extend(number for number in numbers if number < 5)
            return [message for message in messages if int(message.body) == 5]
        done.extend(numbers)
        return True

    async with Consumer(
        registries, group, handle, [topic], start="earliest", ordered=True, batch_max=8, suspend_s=0.05
    ):
        await until(lambda: len(done) >= 12, "all are done")
    assert failures == 1
    assert done == list(range(12))


@pytest.mark.parametrize("mode", ["clustering", "broadcast"])
async def test_a_groups_first_start_may_be_at_a_time(
    registries: list[str], producer: Producer, topic: str, group: str, mode: Any, tmp_path: Path
) -> None:
    for number in range(5):
        await producer.send(Message(topic, b"before %d" % number))
    await asyncio.sleep(0.05)
    then = datetime.now(UTC)
    await asyncio.sleep(0.05)
    for number in range(5):
        await producer.send(Message(topic, b"after %d" % number))
    deliveries = Deliveries()
    settings: dict[str, Any] = {
        "mode": mode,
        "start": then,
        "client_id": group,
        "offsets_directory": tmp_path,
    }
    async with Consumer(registries, group, deliveries.handler("a"), [topic], **settings):
        await until(lambda: len(deliveries.all) >= 5, "what came after")
    settings["start"] = then - timedelta(days=1)
    async with Consumer(registries, group, deliveries.handler("a"), [topic], **settings):
        await producer.send(Message(topic, b"later"))
        await until(lambda: b"later" in deliveries.bodies(), "it goes on where it was")
    wanted = {b"after %d" % number for number in range(5)} | {b"later"}
    assert deliveries.bodies() == wanted
    assert len(deliveries.all) == len(wanted)


def test_a_start_that_is_no_place_is_refused(registries: list[str]) -> None:
    for start in (datetime(2026, 1, 1), "yesterday"):  # noqa: DTZ001 - without a zone on purpose
        with pytest.raises(UsageError, match="start"):
            Consumer(registries, "g", lambda _: None, ["t"], start=start)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="shared"):
        SharedConsumer(registries, "g", ["t"], start=datetime.now(UTC))  # type: ignore[arg-type]
    for batch_max in (0, 1001):
        with pytest.raises(UsageError, match="batch_max"):
            Consumer(registries, "g", lambda _: None, ["t"], batch_max=batch_max)


async def test_a_shared_groups_handler_of_lists_says_which_failed(
    registries: list[str], producer: Producer, topic: str, group: str
) -> None:
    for number in range(30):
        await producer.send(Message(topic, b"%d" % number))
    got: list[list[int]] = []
    failing = {4, 9}

    async def handle(messages: list[SharedMessage]) -> list[SharedMessage]:
        got.append([int(message.body) for message in messages])
        failed = [message for message in messages if int(message.body) in failing]
        failing.difference_update(int(message.body) for message in failed)
        return failed

    async with SharedConsumer(registries, group, [topic], handle, start="earliest", batch_max=8) as consumer:
        await until(lambda: consumer.numbers()["acknowledged_total"] >= 30, "all are acknowledged")
        numbers = consumer.numbers()
    assert numbers["failed_total"] == 2
    assert max(map(len, got)) > 1
    flat = [number for one in got for number in one]
    assert sorted(set(flat)) == list(range(30))
    assert len(flat) == 32
