"""A third broker joins two that run, or was away: it has by itself what every broker is to have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from command_line import Cli, runner
from mqtt_client import MqttClient
from processes import Stack, wait_until
from two_brokers import Cluster, third_broker, two_brokers

from holdmq.client import Admin, Consumer, Message, Producer, SharedConsumer
from holdmq.client.groups import GroupAdmin
from holdmq.errors import RemoteError
from holdmq.mqtt import PubAck, Publish
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.topic_headers import TopicDeleteRequest

ALL = {"broker-0", "broker-1", "broker-2"}
BOTH = {"broker-0", "broker-1"}


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[Cluster]:
    yield from two_brokers(tmp_path)


@pytest.fixture
def third(cluster: Cluster, tmp_path: Any) -> Iterator[Stack]:
    yield from third_broker(cluster, tmp_path)


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return runner(cluster.first)


def at_brokers(cli: Cli, topic: str) -> dict[str, dict[str, Any]]:
    """A topic's settings by broker."""
    listed = cli("topic", "list", "--search", topic, "--json")
    assert listed.returncode == 0, listed.stderr
    return {row["broker"]: row for row in json.loads(listed.stdout) if row["topic"] == topic}


def groups_of(cli: Cli, group: str) -> list[dict[str, Any]]:
    """A group's settings at each broker that has it."""
    rows: list[dict[str, Any]] = json.loads(run(cli, "group", "list", "--search", group, "--json"))
    return rows


def is_used(stack: Stack) -> bool:
    """Whether a broker has got messages."""
    return stack.metric("broker", "holdmq_broker_produce_batches_total") > 0


def turns(stack: Stack, count: int = 2) -> None:
    """Wait until a broker has looked at what others have so many times more."""
    name = "holdmq_broker_spread_turns_total"
    goal = stack.metric("broker", name) + count
    wait_until(lambda: stack.metric("broker", name) >= goal, "it has looked")


def run(cli: Cli, *arguments: str) -> str:
    done = cli(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def delete_at(stack: Stack, topic: str) -> None:
    """Delete a topic at one broker alone, as for one that the others were not told of yet."""
    client = Client(f"127.0.0.1:{stack.broker_port}", "admin", "test")
    try:
        # One that has heard of it already has no message in it, and deletes it by itself.
        with contextlib.suppress(RemoteError):
            await client.call(RequestCode.TOPIC_DELETE, TopicDeleteRequest(topic, True))
    finally:
        await client.close()


def test_a_broker_that_joins_gets_topics_groups_and_quotas_with_their_settings(
    cluster: Cluster, third: Stack, cli: Cli
) -> None:
    run(cli, "topic", "create", "orders", "--queues", "3", "--retention", "2h", "--perm", "rw",
        "--first-group", "beginning")  # fmt: skip
    run(cli, "topic", "create", "stays", "--spread", "fixed")
    run(cli, "topic", "create", "ledger", "--order")
    run(cli, "topic", "create", "held")
    run(cli, "topic", "pause", "held")
    run(cli, "group", "create", "billing", "--retry-max-times", "3")
    run(cli, "quota", "set", "tenant:acme", "--topics", "9")

    third.start("broker")
    wait_until(lambda: set(at_brokers(cli, "orders")) == ALL, "the topic is everywhere")
    rows = at_brokers(cli, "orders")
    for name in ("write_queues", "read_queues", "perm", "retention_ms", "first_group", "spread"):
        assert len({row[name] for row in rows.values()}) == 1, name
    assert rows["broker-2"]["write_queues"] == 3
    assert rows["broker-2"]["spread"] == "all"
    assert at_brokers(cli, "held")["broker-2"]["is_paused"]
    assert {row["retry_max_times"] for row in groups_of(cli, "billing")} == {3}
    assert len(groups_of(cli, "billing")) == 3
    wait_until(lambda: not json.loads(run(cli, "quota", "show", "tenant:acme", "--json"))["lacking"],
               "all have the quota")  # fmt: skip
    turns(third)
    assert set(at_brokers(cli, "stays")) == BOTH
    assert at_brokers(cli, "stays")["broker-0"]["spread"] == "fixed"
    assert set(at_brokers(cli, "ledger")) == BOTH, "keys of an ordered topic do not move"
    assert third.metric("broker", "holdmq_broker_spread_topics_taken_total") == 2
    assert "taken over from another broker" in third.log("broker")

    run(cli, "topic", "update", "stays", "--spread", "all")
    wait_until(lambda: set(at_brokers(cli, "stays")) == ALL, "it is spread now")
    assert cli("topic", "update", "ledger", "--spread", "all").returncode != 0


async def test_a_group_reads_all_that_is_sent_while_a_broker_joins(
    cluster: Cluster, third: Stack, cli: Cli
) -> None:
    got: Counter[str] = Counter()
    sent: list[str] = []
    at: set[str] = set()
    async with Admin(cluster.registries) as admin:
        await admin.create_topic("orders", 2)
    async with GroupAdmin(cluster.registries) as groups:
        await groups.update("billing", retry_max_times=5)

    def handle(message: Message) -> None:
        got[message.body.decode()] += 1

    async with (
        Consumer(cluster.registries, "billing", handle, ["orders"], start="earliest"),
        Consumer(cluster.registries, "billing", handle, ["orders"], start="latest", client_id="second"),
        Producer(cluster.registries) as producer,
    ):

        async def send() -> None:
            while len(at) < 3 or len(sent) < 3_000:
                number = str(len(sent))
                sent.append(number)
                result = await producer.send(Message("orders", number.encode(), keys=(number,)))
                at.add(result.queue.broker)

        sending = asyncio.gather(*(send() for _ in range(8)))
        while len(sent) < 300:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(third.start, "broker")
        async with asyncio.timeout(60):
            await sending
            while len(got) < len(sent):
                await asyncio.sleep(0.05)
    assert at == ALL
    assert set(got) == set(sent)
    async with GroupAdmin(cluster.registries) as groups:
        view = (await groups.groups(["billing"]))["billing"]
        assert {row.retry_max_times for row in view.rows.values()} == {5}
        assert set(view.rows) == ALL


def test_subscribers_get_all_that_devices_publish_while_a_broker_joins(
    cluster: Cluster, third: Stack, cli: Cli
) -> None:
    cluster.first.start("gateway")
    port = cluster.first.mqtt_port
    run(cli, "topic", "create", "state")
    readers = [MqttClient(port, f"reader-{number}", clean=True, expiry_s=600) for number in range(4)]
    for reader in readers:
        reader.subscribe("state/#")
    offline = readers.pop()
    offline.close()
    sent: set[bytes] = set()

    def publish(number: int) -> None:
        """Devices that come and go, so that their keys are spread over all brokers that there are."""
        round_ = 0
        while round_ < 30 or not goes_on.is_set():
            device = MqttClient(port, f"device-{number}-{round_}", clean=True, expiry_s=0)
            for count in range(5):
                body = f"{number}-{round_}-{count}".encode()
                device.send(Publish(f"state/{number}", body, 1, packet_id=1 + count))
                device.wait_for(PubAck)
                sent.add(body)
            device.close()
            round_ += 1

    def receive(client: MqttClient) -> set[bytes]:
        got: set[bytes] = set()
        quiet = 0
        while not done.is_set() or (not got >= sent and quiet < 60):
            try:
                message = client.wait_for(Publish, 1.0)
            except TimeoutError:
                quiet += 1
                continue
            quiet = 0
            got.add(bytes(message.payload))
            client.send(PubAck(message.packet_id or 0))
        return got

    goes_on, done = threading.Event(), threading.Event()
    with ThreadPoolExecutor(8) as threads:
        receiving = [threads.submit(receive, reader) for reader in readers]
        publishing = [threads.submit(publish, number) for number in range(3)]
        third.start("broker")
        wait_until(lambda: set(at_brokers(cli, "state")) == ALL, "joined")
        wait_until(lambda: is_used(third), "devices use it")
        goes_on.set()
        for each in publishing:
            each.result()
        done.set()
        for got in receiving:
            assert got.result() >= sent
        back = MqttClient(port, "reader-3", clean=False, expiry_s=600)
        assert receive(back) >= sent, "who was away"


def test_what_was_deleted_or_made_while_a_broker_was_away(cluster: Cluster, third: Stack, cli: Cli) -> None:
    for topic in ("goes", "used", "again", "stays"):
        run(cli, "topic", "create", topic)
    run(cli, "group", "create", "gone", "--retry-max-times", "3")
    run(cli, "quota", "set", "user:ada", "--connections", "3")
    third.start("broker")
    wait_until(lambda: all(set(at_brokers(cli, t)) == ALL for t in ("goes", "used", "again")), "joined")

    async def use() -> None:
        async with Producer([cluster.first.registry]) as producer:
            for number in range(60):
                await producer.send(Message("used", b"x", keys=(str(number),)))

    asyncio.run(use())
    third.stop("broker")
    for topic in ("goes", "used", "again"):
        run(cli, "topic", "delete", topic, "--force", "--yes")
    run(cli, "group", "delete", "gone", "--yes")
    run(cli, "quota", "remove", "user:ada")
    run(cli, "topic", "create", "again", "--queues", "6")
    run(cli, "topic", "create", "new", "--queues", "5")
    third.start("broker")
    wait_until(lambda: set(at_brokers(cli, "new")) == ALL, "made while it was away")
    wait_until(lambda: not at_brokers(cli, "goes"), "deleted while it was away, and empty")
    turns(third)
    turns(cluster.first)
    assert not at_brokers(cli, "goes")
    assert set(at_brokers(cli, "used")) == {"broker-2"}, "it has messages: a person decides"
    assert "delete it again" in third.log("broker")
    assert third.metric("broker", "holdmq_broker_spread_deleted_elsewhere") == 1
    assert {row["write_queues"] for row in at_brokers(cli, "again").values()} == {4, 6}, "its own stays"
    assert not groups_of(cli, "gone")
    assert "ada" not in run(cli, "quota", "list")
    run(cli, "topic", "delete", "used", "--force", "--yes")
    turns(cluster.first)
    turns(third)
    assert not at_brokers(cli, "used")
    run(cli, "topic", "create", "used")
    third.restart("broker", signal.SIGKILL)
    turns(third)
    assert set(at_brokers(cli, "used")) == ALL


async def test_a_topic_that_is_deleted_while_a_broker_joins_does_not_come_back(
    cluster: Cluster, third: Stack, cli: Cli
) -> None:
    names = [f"t{number}" for number in range(40)]
    async with Admin(cluster.registries) as admin:
        for name in names:
            await admin.create_topic(name, 1)
    third.start("broker", wait=False)
    # One broker after the other, and never the third: it may have any of them from the one that still has it.
    for stack in (cluster.first, cluster.second):
        for name in names[::2]:
            await delete_at(stack, name)
            await asyncio.sleep(0.02)
    await asyncio.to_thread(third.wait_ready, "broker")
    for stack in (third, cluster.first, cluster.second, third):
        await asyncio.to_thread(turns, stack)
    async with Admin(cluster.registries) as admin:
        found = {view.topic: set(view.rows) for view in await admin.topics()}
    assert found == dict.fromkeys(names[1::2], ALL)


def test_a_peer_that_is_away_is_asked_when_it_is_back(cluster: Cluster, third: Stack, cli: Cli) -> None:
    run(cli, "topic", "create", "orders")
    for stack in (cluster.first, cluster.second):
        stack.stop("broker", signal.SIGKILL)
    third.start("broker")
    cluster.second.start("broker")
    wait_until(lambda: set(at_brokers(cli, "orders")) == {"broker-1", "broker-2"}, "taken over")
    cluster.first.start("broker")
    wait_until(lambda: set(at_brokers(cli, "orders")) == ALL, "everywhere")


@pytest.mark.parametrize("mode", ["clustering", "shared"])
async def test_a_group_that_is_away_while_a_broker_joins_gets_what_that_one_has(
    cluster: Cluster, third: Stack, mode: str
) -> None:
    got: set[str] = set()
    async with Admin(cluster.registries) as admin:
        await admin.create_topic("orders", 2)

        def handle(message: Message) -> None:
            got.add(message.body.decode())

        def member() -> Consumer | SharedConsumer:
            if mode == "shared":
                return SharedConsumer(cluster.registries, "billing", ["orders"], handle)
            return Consumer(cluster.registries, "billing", handle, ["orders"])

        async def send(first: int, at: set[str]) -> set[str]:
            """Send until all these brokers have some."""
            sent: set[str] = set()
            used: set[str] = set()
            async with Producer(cluster.registries) as producer:
                while not used >= at or len(sent) < 40:
                    body = f"{first}-{len(sent)}"
                    result = await producer.send(Message("orders", body.encode(), keys=(body,)))
                    sent.add(body)
                    used.add(result.queue.broker)
            return sent

        async def until_got(wanted: set[str]) -> None:
            async with asyncio.timeout(40):
                while not got >= wanted:
                    await asyncio.sleep(0.02)

        async with member():
            sent = await send(1, BOTH)
            await until_got(sent)
        await asyncio.to_thread(third.start, "broker")
        async with asyncio.timeout(40):
            while set((await admin.topics(names=["orders"]))[0].rows) != ALL:
                await asyncio.sleep(0.05)
        sent |= await send(2, ALL)
        async with member():
            await until_got(sent)
