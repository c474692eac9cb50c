from __future__ import annotations

import asyncio
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_view import listed
from processes import Stack, running_stack

from holdmq.client import Admin, Message, Producer, PullConsumer, SyncProducer, SyncPullConsumer, TopicQueue
from holdmq.errors import OffsetError, RemoteError, UsageError
from holdmq.record.batch import split_records
from holdmq.record.codec import VERIFY_ALL, decode_record

GUIDE = Path(__file__).parents[2] / "docs" / "sdk.md"
StackMaker = Callable[..., Any]


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with running_stack(tmp_path_factory.mktemp("sdk"), "registry", "broker") as stack:
        yield [stack.registry]


@pytest.fixture
def stack(holdmq_stack: StackMaker) -> Stack:
    """For one test alone, which stops something."""
    return holdmq_stack(services=("registry", "broker"))


async def read(consumer: PullConsumer, count: int) -> list[Message]:
    got: list[Message] = []
    while len(got) < count:
        got += await consumer.poll()
    return got


async def test_what_is_sent_is_read_as_it_was(registries: list[str], topic: str) -> None:
    async with Producer(registries) as producer, PullConsumer(registries) as consumer:
        sent = Message(topic, b"21", "42/temp", ("key",), {"unit": "°C"}, flag=3, client_id="me")
        result = await producer.send(sent)
        await consumer.assign([topic], "earliest")
        (got,) = await read(consumer, 1)
        assert (got.topic, got.tag, got.body, got.keys) == (topic, "42/temp", b"21", ("key",))
        assert (got.properties, got.flag, got.client_id) == ({"unit": "°C"}, 3, "me")
        assert (got.unique_id, got.born_ms) == (sent.unique_id, sent.born_ms)
        assert (got.queue_id, got.queue_offset) == (result.queue.queue_id, result.queue_offset)
        assert got.message_id == result.message_id
        assert got.store_ms > 0


async def test_a_large_batch_is_read_whole_and_in_order(registries: list[str], topic: str) -> None:
    async with Producer(registries) as producer, PullConsumer(registries) as consumer:
        results = await producer.send_batch(
            [Message(topic, b"%d" % i * 20, keys=(f"k{i % 50}",)) for i in range(20_000)]
        )
        assert len(set(results)) == 20_000
        await consumer.assign([topic], "earliest")
        by_queue: dict[int, list[Message]] = defaultdict(list)
        for message in await read(consumer, 20_000):
            by_queue[message.queue_id].append(message)
        for queue_id, messages in by_queue.items():
            assert [m.queue_offset for m in messages] == list(range(len(messages)))
            expected = [i for i, r in enumerate(results) if r.queue.queue_id == queue_id]
            assert [m.body for m in messages] == [b"%d" % i * 20 for i in expected]
        assert len(by_queue) == 4


async def test_a_held_poll_is_woken_by_what_its_filter_wants(registries: list[str], topic: str) -> None:
    async with Producer(registries) as producer, PullConsumer(registries, tag_filter="42/#") as consumer:
        await producer.send(Message(topic, b"before", "42/x"))
        await listed(registries, topic, 4)
        await consumer.assign([topic])
        polling = asyncio.ensure_future(consumer.poll(hold_ms=60_000))
        await producer.send(Message(topic, b"other", "43/x"))
        await asyncio.sleep(0.1)
        assert not polling.done()
        await producer.send(Message(topic, b"mine", "42"))
        assert [m.body for m in await polling] == [b"mine"]


@pytest.mark.parametrize("filters", [{"tags": ["a/b", ""]}, {"tag_filter": "a/+"}, {"tag_filter": "a/b/#"}])
async def test_each_kind_of_filter_gets_exactly_what_it_names(
    registries: list[str], topic: str, filters: dict[str, Any]
) -> None:
    tags = [None, "", "a", "a/b", "a/b/c", "a/c", "b"]
    wanted = {"tags": {"", "a/b"}, "a/+": {"a/b", "a/c"}, "a/b/#": {"a/b", "a/b/c"}}
    expected = wanted[filters.get("tag_filter", "tags")]
    async with Producer(registries) as producer, PullConsumer(registries, **filters) as consumer:
        await producer.send_batch([Message(topic, str(i).encode(), tag) for i, tag in enumerate(tags * 100)])
        await consumer.assign([topic], "earliest")
        got = await read(consumer, 100 * len(expected))
        assert {m.tag for m in got} == expected
        assert len(got) == 100 * len(expected)
        assert await consumer.poll(hold_ms=100) == []


async def test_positions_can_be_saved_and_an_impossible_one_is_told(
    registries: list[str], topic: str
) -> None:
    async with Producer(registries) as producer:
        queue = (await producer.send_batch([Message(topic, str(i).encode()) for i in range(10)]))[0].queue
        async with PullConsumer(registries) as consumer:
            await consumer.assign([queue], 4)
            assert [m.body for m in await read(consumer, 6)] == [str(i).encode() for i in range(4, 10)]
            saved = consumer.positions()[queue]
        await producer.send(Message(topic, b"next"), queue=queue)
        async with PullConsumer(registries) as consumer:
            await consumer.assign([queue], 0)
            await consumer.seek(queue, saved.offset, saved.log_epoch)
            assert [m.body for m in await read(consumer, 1)] == [b"next"]
            await consumer.seek(queue, 500)
            with pytest.raises(OffsetError, match="OFFSET_AHEAD") as caught:
                await consumer.poll(hold_ms=60_000)
            assert caught.value.next_offset == 11


async def test_raw_records_are_whole_and_verify(registries: list[str], topic: str) -> None:
    async with Producer(registries) as producer, PullConsumer(registries) as consumer:
        await producer.send_batch([Message(topic, bytes(i)) for i in range(100)])
        await consumer.assign([topic], "earliest")
        parts = await consumer.poll_raw()
        while not parts:  # the registry may hear of the topic after the producer did
            parts = await consumer.poll_raw()
        (part,) = parts
        assert part.messages == len(split_records(part.records)) == 100
        at = 0
        for _ in range(100):
            at += decode_record(part.records, at, VERIFY_ALL).total_size
        assert at == len(part.records)


async def test_kill_9_of_the_broker_loses_nothing_that_was_acknowledged(
    stack: Stack,
) -> None:
    registries = [stack.registry]
    async with Producer(registries) as producer:
        results: dict[bytes, Any] = {}
        is_over = False

        async def device(name: str) -> None:
            i = 0
            while not is_over:
                body = f"{name} {i}".encode()
                results[body] = await producer.send(Message("t", body), key=name, timeout_s=200.0)
                i += 1

        devices = [asyncio.ensure_future(device(f"d{n}")) for n in range(20)]
        for _ in range(3):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(stack.restart, "broker", signal.SIGKILL)
        while len(results) <= 100:
            await asyncio.sleep(0.05)
        is_over = True
        await asyncio.gather(*devices)
    async with PullConsumer(registries) as consumer:
        await consumer.assign(["t"], "earliest")
        log: dict[tuple[int, int], bytes] = {}
        # Not until as many are there: a batch may be there twice. What is lost ends at the test's time limit.
        while not results.keys() <= set(log.values()):
            for m in await consumer.poll():
                log[(m.queue_id, m.queue_offset)] = m.body
    assert len(results) > 100
    for body, result in results.items():
        if result.queue_offset >= 0:
            assert log[(result.queue.queue_id, result.queue_offset)] == body
    assert set(results) <= set(log.values())
    seen: dict[bytes, int] = {}
    for _, body in sorted(log.items()):
        name, _, number = body.partition(b" ")
        if int(number) == seen.get(name, -1) + 1:
            seen[name] = int(number)
        else:
            # A batch whose answer the crash took may be there twice, never out of order.
            assert int(number) <= seen[name]


async def test_the_cluster_is_shown(registries: list[str], topic: str) -> None:
    async with Producer(registries, client_id="me") as producer, Admin(registries) as admin:
        await producer.send_batch([Message(topic, b"x") for _ in range(7)])
        await admin.create_topic("made", 2)
        await admin.create_topic("made", 2)
        with pytest.raises(RemoteError, match="TOPIC_EXISTS"):
            await admin.create_topic("made", 3)
        with pytest.raises(UsageError):
            await admin.create_topic("%SESSION")
        views = {view.topic: view for view in await admin.topics()}
        assert (views[topic].messages_in, views[topic].messages_stored, views[topic].queues) == (7, 7, 4)
        assert views["made"].queues == 2
        bounds = await admin.queue_bounds([topic])
        assert sum(b.end_offset - b.first_offset for b in bounds.values()) == 7
        assert set(bounds) == {TopicQueue(topic, "broker-0", i) for i in range(4)}
        status = (await admin.broker_status())["broker-0"]
        assert not isinstance(status, Exception)
        assert status.writable
        connections = (await admin.connections())["broker-0"]
        assert not isinstance(connections, Exception)
        assert {row.client_id for row in connections} >= {"me"}
        assert [row.broker for row in (await admin.cluster()).brokers] == ["broker-0"]


def test_the_blocking_classes_do_the_same(registries: list[str], topic: str) -> None:
    with SyncProducer(registries) as producer, SyncPullConsumer(registries, tags=["a"]) as consumer:
        producer.send_batch([Message(topic, b"1", "a"), Message(topic, b"2", "b")])
        consumer.assign([topic], "earliest")
        assert [m.body for m in consumer.poll(hold_ms=60_000)] == [b"1"]
        sent_ms = time.time_ns() // 1_000_000
        producer.send(Message(topic, b"3", "a"), delay_ms=200)
        producer.send_batch([Message(topic, b"4", "a")], delay_level=1)
        later: dict[bytes, int] = {}
        while len(later) < 2:
            later |= {m.body: m.store_ms - sent_ms for m in consumer.poll(hold_ms=60_000)}
        assert later.keys() == {b"3", b"4"}
        assert later[b"3"] >= 200
        assert later[b"4"] >= 1000


def test_life_goes_on_without_the_registry(stack: Stack) -> None:
    registries = [stack.registry]
    with SyncProducer(registries) as producer, SyncPullConsumer(registries) as consumer:
        producer.send(Message("t", b"1"))
        consumer.assign(["t"], "earliest")
        assert [m.body for m in consumer.poll(hold_ms=60_000)] == [b"1"]
        stack.stop("registry")
        producer.send(Message("t", b"2"))
        producer.send(Message("fresh", b"3"))
        assert [m.body for m in consumer.poll(hold_ms=60_000)] == [b"2"]


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(examples())))
def test_the_guide_s_examples_run(stack: Stack, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = examples()[number].replace("127.0.0.1:9876", f"127.0.0.1:{stack.registry_port}")
    exec(compile(code, f"{GUIDE.name} example {number}", "exec"), {"__name__": "__main__"})
    shown = re.findall(r"^# prints: (.*)$", code, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == shown
