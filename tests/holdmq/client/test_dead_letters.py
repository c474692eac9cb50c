"""Dead letters from the SDK and the command line, over two brokers in processes of their own."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
from command_line import Cli, run_here, run_process

from holdmq.client import DeadLetters, Message, Producer, PullConsumer, RouteTable, TopicQueue
from holdmq.client.dead_letters import DeadLetterCount, ReadLetter, Resent
from holdmq.errors import Code, UsageError
from holdmq.record.origin import Origin
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.move_headers import (
    TO_DEAD_LETTERS,
    SendBackRequest,
    SendBackResponse,
    SendBackResult,
    SentBack,
)

StackMaker = Callable[..., Any]
BROKERS = ("broker-0", "broker-1")


class Cluster(NamedTuple):
    """Two brokers, on each of which group g gave up ten messages of topic t: `<broker> 0`, …"""

    registry_port: int
    registries: list[str]
    letters: DeadLetters


@pytest.fixture
async def cluster(holdmq_stack: StackMaker) -> AsyncIterator[Cluster]:
    stack = holdmq_stack(services=("registry", "broker"))
    holdmq_stack(services=("broker",), **{"registry.port": stack.registry_port, "broker.name": "broker-1"})
    registries = [stack.registry]
    routes = RouteTable(registries, "test")
    routes.start()
    async with Producer(registries, routes=routes) as producer:
        await routes.refresh()
        assert sorted(routes.brokers()) == list(BROKERS)
        for broker in BROKERS:
            await give_up(producer, broker)
        async with DeadLetters(registries) as letters:
            yield Cluster(stack.registry_port, registries, letters)
    await routes.close()


async def give_up(producer: Producer, broker: str) -> None:
    messages = [
        Message("t", f"{broker} {i}".encode(), "a/b", ("k",), {"unit": "°C"}, client_id="me")
        for i in range(10)
    ]
    await producer.routes.ensure_topic("t", timeout_s=30)
    results = await producer.send_batch(messages, queue=TopicQueue("t", broker, 1))
    link = producer.routes.link(broker).client
    await link.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    places = [SentBack("t", 1, result.queue_offset, 3, TO_DEAD_LETTERS) for result in results]
    reply = await link.call(RequestCode.SEND_BACK, SendBackRequest("g", places))
    answers = rows(SendBackResult, reply.header(SendBackResponse).results)
    assert {answer.status for answer in answers} == {Code.OK}


async def read(letters: DeadLetters, after: dict[str, int] | None = None) -> list[ReadLetter]:
    return [letter async for letter in letters.read("g", after)]


async def bodies_of(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with PullConsumer(cluster.registries) as consumer:
        await consumer.assign([topic], "earliest")
        while len(found) < count:
            found += [message.body for message in await consumer.poll()]
    return found


async def test_they_are_counted_and_read_over_all_brokers(cluster: Cluster) -> None:
    assert await cluster.letters.groups() == {"g": DeadLetterCount(20, 0)}
    found = await read(cluster.letters)
    assert [(x.broker, x.offset) for x in found] == [(broker, i) for broker in BROKERS for i in range(10)]
    letter = found[13]
    assert letter.origin == Origin("t", 1, 3, 4)
    assert letter.failed_ms > 0
    message = letter.message
    assert (message.topic, message.tag, message.body) == ("t", "a/b", b"broker-1 3")
    assert (message.keys, message.properties, message.client_id) == (("k",), {"unit": "°C"}, "me")
    assert message.reconsume_times == 3
    later = await read(cluster.letters, {"broker-0": 7, "broker-1": 9})
    assert [(x.broker, x.offset) for x in later] == [("broker-0", 8), ("broker-0", 9)]
    assert [x async for x in cluster.letters.read("nobody")] == []


async def test_all_are_sent_again_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await cluster.letters.resend("g") == Resent(20, 0, [])
    assert await cluster.letters.resend("g") == Resent(0, 20, [])
    assert await cluster.letters.groups() == {"g": DeadLetterCount(20, 20)}
    # What became of them is asked of a few at a time, and known of each.
    monkeypatch.setattr("holdmq.client.dead_letters.RESEND_MAX", 3)
    assert [x.resent is not None for x in await read(cluster.letters)] == [True] * 20
    got = await bodies_of(cluster, "t", 40)
    assert sorted(got) == sorted([f"{b} {i}".encode() for b in BROKERS for i in range(10)] * 2)
    assert await cluster.letters.resend("nobody") == Resent(0, 0, [])


async def test_some_are_sent_to_another_topic_and_what_is_not_there_is_told(cluster: Cluster) -> None:
    async with Producer(cluster.registries) as producer:
        await producer.routes.ensure_topic("other", timeout_s=30)
    wanted = [("broker-1", 2), ("broker-0", 5), ("broker-0", 99)]
    done = await cluster.letters.resend("g", wanted, topic="other", by="ada")
    assert (done.resent, done.repeated) == (2, 0)
    ((broker, failure),) = done.failures
    assert (broker, failure.offset, failure.status) == ("broker-0", 99, Code.MESSAGE_UNKNOWN)
    assert sorted(await bodies_of(cluster, "other", 2)) == [b"broker-0 5", b"broker-1 2"]
    sent = {(x.broker, x.offset): x.resent for x in await read(cluster.letters) if x.resent is not None}
    assert {place: (resent.by, bool(resent.at_ms)) for place, resent in sent.items()} == {
        ("broker-1", 2): ("ada", True),
        ("broker-0", 5): ("ada", True),
    }
    with pytest.raises(UsageError, match="broker-7"):
        await cluster.letters.resend("g", [("broker-7", 0)])
    with pytest.raises(UsageError, match="group name"):
        await cluster.letters.resend("g/x")


async def test_purged_ones_are_gone(cluster: Cluster) -> None:
    assert await cluster.letters.purge("g", {"broker-0": 4}) == 4
    assert [(x.broker, x.offset) for x in await read(cluster.letters)][:2] == [
        ("broker-0", 4),
        ("broker-0", 5),
    ]
    assert await cluster.letters.purge("g") == 16
    assert await cluster.letters.groups() == {}
    assert await read(cluster.letters) == []


def holdmq(cluster: Cluster, *arguments: str, status: int = 0, run: Cli = run_here) -> str:
    done = run("dlq", *arguments, f"--set=registry.port={cluster.registry_port}")
    assert done.returncode == status, done.stderr
    return done.stdout


def test_the_command_line_lists_reads_resends_and_purges(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a broker would refuse of a name is left out: the letters are sent all the same.
    monkeypatch.setenv("LOGNAME", "ada\x1b" + "l" * 200)
    assert json.loads(holdmq(cluster, "list", "--json", run=run_process)) == [
        {"group": "g", "messages": 20, "resent": 0}
    ]
    lines = holdmq(cluster, "read", "g", "--count", "2", "--after", "broker-0/8").splitlines()
    assert [line.split()[0] for line in lines] == ["broker-0/9", "broker-1/0"]
    assert "3 retries  t/a/b (was t/1/0)  broker-1 0" in lines[1]
    shown = json.loads(holdmq(cluster, "read", "g", "--count", "1", "--json"))
    assert (shown["body"], shown["origin"], shown["retries"]) == ("broker-0 0", "t/1/0", 3)
    assert shown["resent"] is None
    assert "1 sent again" in holdmq(cluster, "resend", "g", "broker-1/0")
    (line, waiting) = holdmq(cluster, "read", "g", "--count", "2", "--after", "broker-0/9").splitlines()
    assert re.search(r"\(was t/1/0\)  sent again 20\S+ by adal{125}  broker-1 0", line)
    assert "sent again" not in waiting
    assert "0 sent again, 1 had been before" in holdmq(cluster, "resend", "g", "broker-1/0")
    shown = json.loads(holdmq(cluster, "read", "g", "--count", "1", "--after", "broker-0/9", "--json"))
    assert shown["resent"]["at_ms"] >= shown["failed_ms"]
    assert "19 sent again, 1 had been before" in holdmq(cluster, "resend", "g")
    holdmq(cluster, "resend", "g", "broker-1/77", status=1)
    holdmq(cluster, "resend", "g", "broker-1", status=2)
    assert "│ 20" in holdmq(cluster, "list")
    assert "3 dead letters" in holdmq(cluster, "purge", "g", "--yes", "--until", "broker-1/3")
    assert json.loads(holdmq(cluster, "purge", "g", "--yes", "--json")) == {"purged": 17}
