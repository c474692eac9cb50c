"""Topics that grow, shrink, pause and go under real load: nothing is lost, nothing is overtaken."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devices import Fleet
from processes import wait_until

from holdmq.client import Admin, Message, Producer, PullConsumer, TopicQueue
from holdmq.errors import Code, RemoteError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.offset_headers import OffsetReport, OffsetReportRequest
from holdmq.wire.topic_headers import DELETE, HIDE_FROM_CONSUMERS, HIDE_FROM_PRODUCERS

StackMaker = Callable[..., Any]
GUIDE = Path(__file__).parents[2] / "docs" / "topics.md"


async def read_all(consumer: PullConsumer, sent: set[bytes]) -> list[Message]:
    """Read until everything that was sent came. What is lost ends at the test's time limit."""
    got: list[Message] = []
    missing = set(sent)
    while missing:
        new = await consumer.poll()
        got += new
        missing.difference_update(message.body for message in new)
    return got


async def test_a_topic_that_grows_while_it_is_produced_to_and_consumed_loses_nothing(
    holdmq_stack: StackMaker,
) -> None:
    stack = holdmq_stack(services=("registry", "broker"))
    registries = [stack.registry]
    sent: set[bytes] = set()
    is_over = False
    async with (
        Producer(registries) as producer,
        PullConsumer(registries) as consumer,
        Admin(registries) as admin,
    ):
        await admin.create_topic("t", 2)
        await consumer.assign(["t"], "earliest")

        async def device(name: str) -> None:
            number = 0
            while not is_over:
                body = f"{name} {number}".encode()
                await producer.send(Message("t", body), key=name)
                sent.add(body)
                number += 1

        devices = [asyncio.ensure_future(device(f"d{n}")) for n in range(20)]
        reading: list[Message] = []
        for queues in (3, 6, 9):
            await admin.grow_topic("t", queues)
            # The registry hears of it from the broker, in its own time.
            while len((await producer.routes.topic("t")).write_queues) < queues:
                await producer.routes.refresh()
            seen = len(sent)
            while len(sent) < seen + 200:
                reading += await consumer.poll(hold_ms=20)
        is_over = True
        await asyncio.gather(*devices)
        reading += await read_all(consumer, sent - {message.body for message in reading})
    assert {message.queue_id for message in reading} == set(range(9))
    assert len(reading) == len(sent)
    for_each: dict[tuple[bytes, int], list[int]] = defaultdict(list)
    for message in reading:
        name, _, number = message.body.partition(b" ")
        for_each[name, message.queue_id].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in for_each.values())


async def test_queues_are_removed_once_the_group_that_lags_has_come_to_their_end(
    holdmq_stack: StackMaker,
) -> None:
    stack = holdmq_stack(services=("registry", "broker"), **{"broker.hide_grace_s": 1})
    registries = [stack.registry]
    async with Producer(registries) as producer, Admin(registries) as admin:
        await admin.create_topic("t", 3)
        last = TopicQueue("t", "broker-0", 2)
        for number in range(10):
            await producer.send(Message("t", b"%d" % number), queue=last)
        broker = admin.routes.link("broker-0").client  # type: ignore[union-attr]

        async def consumed(offset: int) -> None:
            await broker.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("billing"), 60.0)
            report = OffsetReportRequest("billing", [OffsetReport("t", 2, 0, offset, 0)])
            await broker.call(RequestCode.OFFSET_REPORT, report, 60.0)

        await consumed(4)
        await admin.remove_queues("t", 2, HIDE_FROM_PRODUCERS)
        refused = None
        while refused is None or "old route" in refused:
            with pytest.raises(RemoteError) as caught:
                await admin.remove_queues("t", 2, HIDE_FROM_CONSUMERS)
            assert caught.value.code == Code.TOPIC_IN_USE
            refused = caught.value.remark
            await asyncio.sleep(0.05)
        assert "group 'billing' is 6 messages behind in queue 2" in refused
        await consumed(10)
        await admin.remove_queues("t", 2, HIDE_FROM_CONSUMERS)
        await asyncio.to_thread(stack.restart, "broker")
        await admin.remove_queues("t", 2, DELETE)
        await producer.routes.refresh()
        for number in range(30):
            assert (await producer.send(Message("t", b"after"), key=str(number))).queue.queue_id < 2


def position_of(message: Message) -> int:
    assert message.message_id is not None
    return message.message_id.physical_offset


async def until_metric(stack: Any, service: str, metric: str, least: int) -> None:
    await asyncio.to_thread(wait_until, lambda: stack.metric(service, metric) >= least, metric)


def go_on(fleet: Fleet) -> None:
    wanted = fleet.acknowledged + 200
    wait_until(lambda: fleet.acknowledged > wanted, "devices go on")


async def test_devices_move_to_other_queues_without_losing_their_connection(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(**{"gateway.workers": 1})
    fleet = Fleet(stack.mqtt_port, devices=12, window=2, topic="devices/{i}")
    fleet.start()
    try:
        wait_until(lambda: fleet.acknowledged > 300, "devices publish")
        async with Admin([stack.registry]) as admin:
            await admin.remove_queues("devices", 1, HIDE_FROM_PRODUCERS)
            ends: list[int] = []

            async def hidden_ends() -> list[int]:
                bounds = await admin.queue_bounds(["devices"])
                return [bound.end_offset for queue, bound in sorted(bounds.items()) if queue.queue_id]

            # The gateway learns of it by its next refresh or at once by a held one; then nothing comes there.
            while True:
                before = await hidden_ends()
                await asyncio.to_thread(go_on, fleet)
                ends = await hidden_ends()
                if ends == before:
                    break
    finally:
        fleet.stop()
    assert fleet.error is None
    # What was in flight on a connection that was cut would never have been acknowledged.
    assert all(len(device.acknowledged) == device.sent for device in fleet.devices)
    async with PullConsumer([stack.registry]) as consumer:
        await consumer.assign(["devices"], "earliest")
        sent = {f"{d.name}:{number}".encode() for d in fleet.devices for number in d.acknowledged}
        got = await read_all(consumer, sent)
    assert len(got) == len({message.body for message in got})
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for message in sorted(got, key=position_of):
        name, _, number = message.body.partition(b":")
        numbers[name].append(int(number))
    assert all(found == sorted(found) for found in numbers.values())


async def test_what_a_paused_topic_kept_reaches_mqtt_subscribers_at_resume(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(**{"gateway.workers": 1})
    async with Producer([stack.registry]) as producer, Admin([stack.registry]) as admin:
        for topic in ("p", "q"):
            await admin.create_topic(topic, 1)
        process = await asyncio.create_subprocess_exec(
            "stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(stack.mqtt_port),
            "-d", "-q", "1", "-t", "#", "-C", "7", "-F", "got %p",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        got: list[bytes] = []
        try:
            while not (await process.stdout.readline()).startswith(b"Subscribed"):
                pass

            async def receive(count: int) -> None:
                assert process.stdout is not None
                while len(got) < count:
                    line = await process.stdout.readline()
                    assert line, f"mosquitto_sub ended after {got}"
                    print(line)
                    if line.startswith(b"got "):
                        got.append(line[4:].strip())

            async def send(topic: str, body: bytes) -> None:
                await producer.send(Message(topic, body, "a", client_id="me"))

            await send("p", b"p0")
            await receive(1)
            await admin.pause_topic("p")
            for body in (b"p1", b"p2", b"p3"):
                await send("p", body)
            await send("q", b"q1")
            await receive(2)
            assert got == [b"p0", b"q1"]
            await admin.pause_topic("p", False)
            await send("p", b"p4")
            await send("q", b"q2")
            await receive(7)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # it ignores SIGTERM at times
            await process.wait()
    assert [body for body in got if body.startswith(b"p")] == [b"p0", b"p1", b"p2", b"p3", b"p4"]


async def test_a_subscriber_that_lags_misses_nothing_of_what_a_paused_topic_kept(
    holdmq_stack: StackMaker,
) -> None:
    stack = holdmq_stack(**{"gateway.workers": 1, "gateway.inflight_max": 2})
    async with Admin([stack.registry]) as admin:
        for topic in ("p", "q"):
            await admin.create_topic(topic, 1)
        process = await asyncio.create_subprocess_exec(
            "stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(stack.mqtt_port),
            "-d", "-q", "1", "-t", "#", "-F", "got %p",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        seen: dict[bytes, None] = {}
        try:
            while not (await process.stdout.readline()).startswith(b"Subscribed"):
                pass

            async def send(topic: str, first: int, count: int) -> set[bytes]:
                bodies = [b"%s%d" % (topic.encode(), number) for number in range(first, first + count)]
                publishing = await asyncio.create_subprocess_exec(
                    "mosquitto_pub", "-h", "127.0.0.1", "-p", str(stack.mqtt_port),
                    "-q", "1", "-t", f"{topic}/a", "-l", stdin=asyncio.subprocess.PIPE,
                )  # fmt: skip
                await publishing.communicate(b"\n".join(bodies) + b"\n")
                assert publishing.returncode == 0
                return set(bodies)

            async def receive(wanted: set[bytes]) -> None:
                assert process.stdout is not None
                while not wanted <= seen.keys():
                    line = (await process.stdout.readline()).strip()
                    if line.startswith(b"got "):
                        seen.setdefault(line[4:])

            # With a window of two, whatever comes in a batch makes the session lag.
            wanted = await send("p", 0, 50)
            await receive(wanted)
            await admin.pause_topic("p")
            kept = await send("p", 50, 100)
            await receive(await send("q", 0, 50))
            assert not kept & seen.keys()
            process.send_signal(signal.SIGSTOP)
            wanted |= kept | await send("q", 50, 100)
            await until_metric(stack, "gateway", "holdmq_gateway_lagging_sessions", 1)
            await admin.pause_topic("p", False)
            await until_metric(stack, "broker", "holdmq_broker_read_late_messages_total", 100)
            process.send_signal(signal.SIGCONT)
            wanted |= await send("p", 150, 50) | await send("q", 150, 50)
            await receive(wanted)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # it ignores SIGTERM at times
            await process.wait()
    for topic in (b"p", b"q"):
        numbers = [int(body[1:]) for body in seen if body.startswith(topic)]
        assert numbers == list(range(200))


async def test_mqtt_is_told_that_a_topic_may_not_be_written(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(**{"gateway.workers": 1})
    async with Admin([stack.registry]) as admin:
        await admin.create_topic("closed", 1, perm=4)
        await admin.create_topic("memory", 1, kind="temporary")
    for topic, reason in (("closed", b"Not authorized"), ("memory", b"Topic Name invalid")):
        publishing = await asyncio.create_subprocess_exec(
            "mosquitto_pub", "-V", "mqttv5", "-h", "127.0.0.1", "-p", str(stack.mqtt_port),
            "-q", "1", "-t", f"{topic}/a", "-m", "x",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await publishing.communicate()
        assert reason.lower() in said.lower()


def test_the_guide_s_example_runs(holdmq_stack: StackMaker, capsys: pytest.CaptureFixture[str]) -> None:
    stack = holdmq_stack(services=("registry", "broker"), **{"broker.hide_grace_s": 0})
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    code = code.replace("127.0.0.1:9876", stack.registry)
    exec(compile(code, GUIDE.name, "exec"), {"__name__": "__main__"})
    shown = re.findall(r"^# prints: (.*)$", code, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == shown
