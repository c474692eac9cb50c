"""Machine rooms: members take the queues of brokers in their room, and all members those of empty rooms."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from command_line import flags_of, run_here
from processes import wait_until
from two_brokers import Cluster, two_brokers

from holdmq.client import (
    Admin,
    Consumer,
    GroupAdmin,
    GroupPullConsumer,
    Message,
    Producer,
    SyncConsumer,
    SyncGroupPullConsumer,
    TopicQueue,
)
from holdmq.client.queue_member import QueueMember
from holdmq.errors import UsageError

QUEUES = 3
EAST = {"broker": "broker-0", "room": "east"}
WEST = {"broker": "broker-1", "room": "west.1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = two_brokers(tmp_path_factory.mktemp("rooms"))
    cluster = next(made)
    for row in (EAST, WEST):
        stack = cluster.stack_of(row["broker"])
        stack.set("broker.room", row["room"])
        stack.restart("broker")
    yield cluster
    made.close()


@pytest.fixture
async def queues(cluster: Cluster, topic: str) -> dict[str, set[TopicQueue]]:
    """The topic's queues, by broker."""
    async with Admin(cluster.registries) as admin:
        await admin.create_topic(topic, QUEUES)
    return {b: {TopicQueue(topic, b, n) for n in range(QUEUES)} for b in ("broker-0", "broker-1")}


async def handle(_message: Message) -> None:
    """Take it."""


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.05)


def of(member: QueueMember, topic: str) -> set[TopicQueue]:
    return {queue for queue in member.positions() if queue.topic == topic}


async def test_members_take_the_queues_of_their_room_and_share_those_of_an_empty_one(
    cluster: Cluster, topic: str, queues: dict[str, set[TopicQueue]]
) -> None:
    def member(name: str, room: str, polled: bool = False) -> QueueMember:
        settings = {"client_id": f"{name}-{topic}", "room": room, "strategy": "machine_room"}
        if polled:
            return GroupPullConsumer(cluster.registries, topic, [topic], **settings)  # type: ignore[arg-type]
        return Consumer(cluster.registries, topic, handle, [topic], **settings)  # type: ignore[arg-type]

    async with AsyncExitStack() as everybody:
        first = await everybody.enter_async_context(member("a", "east"))
        # Nobody is in the other room: its queues are read all the same.
        await until(lambda: of(first, topic) == queues["broker-0"] | queues["broker-1"])
        west = member("c", "west.1", polled=True)
        async with west:
            await until(lambda: of(first, topic) == queues["broker-0"])
            await until(lambda: of(west, topic) == queues["broker-1"])
            second = await everybody.enter_async_context(member("b", "east", polled=True))
            await until(lambda: of(first, topic) | of(second, topic) == queues["broker-0"])
            assert len(of(first, topic)) in (1, 2)
            assert of(west, topic) == queues["broker-1"]
            async with GroupAdmin(cluster.registries) as groups:
                listed = (await groups.members(topic))["broker-0"]
                assert {row.client_id: row.room for row in listed} == {
                    f"a-{topic}": "east",
                    f"b-{topic}": "east",
                    f"c-{topic}": "west.1",
                }
        # The room is empty again: everybody takes of it.
        await until(lambda: bool(of(first, topic) & queues["broker-1"]))
        await until(lambda: bool(of(second, topic) & queues["broker-1"]))
        await until(lambda: of(first, topic) | of(second, topic) == queues["broker-0"] | queues["broker-1"])


def test_blocking_members_have_rooms_too(cluster: Cluster, topic: str) -> None:
    wanted: dict[str, set[TopicQueue]] = {}

    async def make() -> None:
        async with Admin(cluster.registries) as admin, Producer(cluster.registries):
            await admin.create_topic(topic, QUEUES)

    asyncio.run(make())
    for broker in ("broker-0", "broker-1"):
        wanted[broker] = {TopicQueue(topic, broker, number) for number in range(QUEUES)}

    def holds(positions: Callable[[], dict[TopicQueue, object]], broker: str) -> Callable[[], bool]:
        return lambda: {queue for queue in positions() if queue.topic == topic} == wanted[broker]

    with (
        SyncConsumer(
            cluster.registries, topic, lambda _: None, [topic], room="east", strategy="machine_room"
        ) as east,
        SyncGroupPullConsumer(
            cluster.registries, topic, [topic], room="west.1", strategy="machine_room"
        ) as west,
    ):
        west.poll(hold_ms=10)
        wait_until(holds(east.positions, "broker-0"), "one room is taken")
        wait_until(holds(west.positions, "broker-1"), "and the other one")


async def test_a_broker_that_moves_to_another_room_takes_its_queues_along(
    cluster: Cluster, topic: str, queues: dict[str, set[TopicQueue]]
) -> None:
    members = [
        Consumer(
            cluster.registries,
            topic,
            handle,
            [topic],
            client_id=f"{room}-{topic}",
            room=room,
            strategy="machine_room",
        )
        for room in ("east", "north")
    ]
    try:
        for member in members:
            await member.start()
        east, north = members
        # Of the west, where nobody is, each has a part.
        await until(lambda: queues["broker-0"] <= of(east, topic) and bool(of(north, topic)))
        cluster.second.set("broker.room", "north")
        await asyncio.to_thread(cluster.second.restart, "broker")
        await until(lambda: of(east, topic) == queues["broker-0"])
        await until(lambda: of(north, topic) == queues["broker-1"])
    finally:
        for member in members:
            await member.close()
        cluster.second.set("broker.room", WEST["room"])
        await asyncio.to_thread(cluster.second.restart, "broker")


def test_a_name_that_is_no_room_is_refused(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="machine room 'no room' must be 1 to 64 letters"):
        GroupPullConsumer(cluster.registries, "g", ["t"], room="no room")


def test_the_command_line_lists_brokers_with_their_rooms(cluster: Cluster) -> None:
    done = run_here("cluster", "brokers", "--json", *flags_of(cluster.first))
    listed = json.loads(done.stdout)
    assert [{name: row[name] for name in EAST} for row in listed] == [EAST, WEST]
    assert all(row["cluster"] == "holdmq" and row["address"] for row in listed)
