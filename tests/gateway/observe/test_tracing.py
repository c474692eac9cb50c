"""What a worker tells its parent of a client that is traced."""

from __future__ import annotations

import contextlib
import json
import math
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gateway.observe import tracing
from gateway.worker.parent_socket import MESSAGE_MAX_BYTES
from holdmq.mqtt import MQTT_5, Disconnect, Properties, Publish

Start = Callable[..., Awaitable[Any]]


class Parent:
    """The parent's end of a worker's socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        end.setblocking(False)
        self.lines: list[dict[str, Any]] = []
        self.left_out = 0

    def say(self, **command: object) -> None:
        self.end.send(json.dumps(command).encode())

    def read(self) -> list[dict[str, Any]]:
        while True:
            try:
                message = json.loads(self.end.recv(1 << 16))
            except BlockingIOError:
                return self.lines
            if "trace" in message:
                self.lines += message["lines"]
                self.left_out += message.get("left_out", 0)

    def packets(self) -> list[tuple[str, str]]:
        return [(line["direction"], line["packet"]) for line in self.read() if "packet" in line]


@pytest.fixture
def parent() -> Iterator[tuple[Parent, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    yield Parent(ours), theirs
    ours.close()
    theirs.close()


@pytest.fixture
def traced(parent: tuple[Parent, socket.socket], start_worker: Start) -> Callable[..., Awaitable[Any]]:
    async def start(topic: str | None = None, seconds: float = 60.0, client: str = "c1") -> Any:
        running = await start_worker(report=parent[1])
        parent[0].say(trace=1, client=client, topic=topic, seconds=seconds)
        await running.until(lambda: running.worker.tracing.is_on)
        return running

    return start


async def test_packets_of_the_client_are_told_both_ways_in_their_order(traced: Start, parent: Any) -> None:
    running = await traced()
    client, other = await running.client("c1", MQTT_5), await running.client("c2")
    await client.subscribe("a/#")
    other.send(Publish("a/b", b"from another", 1, packet_id=1))
    await client.next()
    client.send(Disconnect())
    await running.until(lambda: any("event" in line for line in parent[0].read()))
    assert parent[0].packets() == [
        ("in", "CONNECT"),
        ("out", "CONNACK"),
        ("in", "SUBSCRIBE"),
        ("out", "SUBACK"),
        ("out", "PUBLISH"),
        ("in", "DISCONNECT"),
    ]
    closed = next(line for line in parent[0].lines if "event" in line)
    assert closed["why"] == "client disconnected"
    assert all(line["at_ms"] and line["worker"] == 0 for line in parent[0].lines)


async def test_a_client_that_is_there_already_is_traced_from_now_on(traced: Start, parent: Any) -> None:
    running = await traced(client="other")
    client = await running.client("c1")
    parent[0].say(trace=2, client="c1", topic=None, seconds=60)
    await running.until(lambda: len(running.worker.tracing) == 2)
    client.send(Publish("a/b", b"x", 1, packet_id=1))
    await client.acked(1)
    await running.until(lambda: parent[0].packets() == [("in", "PUBLISH"), ("out", "PUBACK")])
    assert parent[0].lines[0]["event"] == "is connected here"


async def test_with_a_topic_only_publishes_on_it_are_told(traced: Start, parent: Any) -> None:
    running = await traced("a/+/temp")
    client = await running.client("c1")
    client.send(*(Publish(topic, b"x", 1, packet_id=n) for n, topic in enumerate(["a/1/temp", "a/1/hum"], 1)))
    await client.acked(2)
    await running.until(parent[0].packets)
    assert [line["topic"] for line in parent[0].lines] == ["a/1/temp"]


async def test_a_trace_ends_by_itself_or_when_told_and_then_costs_nothing(traced: Start, parent: Any) -> None:
    running = await traced(seconds=60.0)
    (trace,) = running.worker.tracing._traces.values()
    now = running.worker.now()
    assert now < trace.until <= now + 60
    trace.until = now
    await running.until(lambda: not running.worker.tracing.is_on)
    assert running.worker.tracing._context.traced is None
    parent[0].say(trace=2, client="c1", topic=None, seconds=60)
    await running.until(lambda: running.worker.tracing.is_on)
    parent[0].say(untrace=2)
    await running.until(lambda: not running.worker.tracing.is_on)
    parent[0].say(untrace=3)
    await running.client("c1")
    assert parent[0].packets() == []


async def test_past_so_many_a_second_only_the_number_of_packets_is_told(
    traced: Start, parent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "LINES_PER_S", 3)
    running = await traced()
    traces = running.worker.tracing
    traces._second_ends = math.inf  # when the test says so
    client = await running.client("c1")
    client.send(*(Publish("a/b", b"x", 1, packet_id=n) for n in range(1, 51)))
    await client.acked(50)
    # CONNECT, CONNACK, each PUBLISH, and one line for each write of acknowledgements.
    await running.until(lambda: len(parent[0].read()) + parent[0].left_out >= 53)
    assert len(parent[0].lines) == 3
    traces._second_ends = 0.0
    await running.until(lambda: traces._second_ends)
    client.send(Publish("a/b", b"x", 1, packet_id=51))
    await client.acked(1)
    await running.until(lambda: parent[0].packets()[3:] == [("in", "PUBLISH"), ("out", "PUBACK")])


async def test_of_a_packet_that_is_too_long_to_be_told_the_kind_is(traced: Start, parent: Any) -> None:
    running = await traced()
    client = await running.client("c1", MQTT_5)
    long = Properties(user_properties=(("a", "x" * 30_000), ("b", "y" * 30_000)))
    client.send(Publish("a/b", b"x", 1, packet_id=1, properties=long))
    # Each is a thousand characters, and twelve thousand in JSON.
    client.send(*(Publish("\U0001f4e1" * 1000, b"x", 1, packet_id=n) for n in range(2, 8)))
    await client.acked(7)
    await running.until(lambda: parent[0].packets().count(("in", "PUBLISH")) == 7)
    first, *others = [line for line in parent[0].lines if line.get("packet") == "PUBLISH"]
    assert first["too_long_bytes"] > 60_000
    assert "properties" not in first
    assert {line["topic"] for line in others} == {"\U0001f4e1" * 1000}
    assert parent[0].left_out == 0


async def test_what_is_too_long_for_the_parent_is_not_told(traced: Start, parent: Any) -> None:
    running = await traced()
    assert not running.worker.parent.tell({"trace": 1, "lines": ["x" * MESSAGE_MAX_BYTES]})
    assert running.worker.parent.tell({"trace": 1, "lines": [], "left_out": 1})
    parent[0].read()
    assert (parent[0].lines, parent[0].left_out) == ([], 1)


async def test_a_parent_that_does_not_read_blocks_nobody(traced: Start, parent: Any) -> None:
    running = await traced()
    client = await running.client("c1")
    with contextlib.suppress(BlockingIOError):
        while True:
            parent[1].send(b"{}" * 1000)
    client.send(Publish("a/b", b"x", 1, packet_id=1))
    assert await client.acked(1) == [1]
    (trace,) = running.worker.tracing._traces.values()
    await running.until(lambda: trace.left_out)


async def test_bans_come_and_go_as_the_parent_says(traced: Start, parent: Any) -> None:
    running = await traced(client="other")
    row = {"principal": "c1", "address": "7f000001", "left_s": 60, "connects": 9}
    parent[0].say(ban=row)
    await running.until(lambda: len(running.worker.gate.bans))
    assert (await running.client("c1", MQTT_5, refused=True)).connack.reason_code == 0x8A
    parent[0].say(unban=None)
    await running.until(lambda: not running.worker.gate.bans)
    await running.client("c1")
