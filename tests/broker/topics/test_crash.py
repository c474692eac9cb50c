"""A broker that dies at any moment of a removal goes on with it, and loses nothing that was not to go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sim_disk import SimDisk
from stepped_store import Stepped

from broker.readers.readers import TopicReaders
from broker.topics.core.table import NOT_DELETING, TopicTable
from broker.topics.queue_deletion import NoGroups
from broker.topics.requests import NoQuotas, TopicRequests
from holdmq.errors import RemoteError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Connection
from holdmq.rpc.server import Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header
from holdmq.wire.headers import PROTOCOL_VERSION, HelloRequest, HelloResponse, TopicCreateRequest
from holdmq.wire.topic_headers import (
    DELETE,
    HIDE_FROM_CONSUMERS,
    HIDE_FROM_PRODUCERS,
    QueuesRemoveRequest,
    TopicDeleteRequest,
)

QUEUES = 3
RECORDS = 4
TOPIC_JSON = Path("/store/config/topic.json")


def hello(_connection: Connection, _hello: HelloRequest) -> HelloResponse:
    return HelloResponse(PROTOCOL_VERSION, "b1", "test", 0)


class Broker:
    """Topics over a store on a simulated disk, asked by RPC; every write happens in a step of `turn`."""

    def __init__(self, disk: SimDisk) -> None:
        self.stepped = Stepped(disk, 1 << 16)
        self.table = TopicTable(100, QUEUES)
        self.topics = TopicRequests(TOPIC_JSON, self.table, True, TopicReaders(), 0.0, disk)
        self.topics.load()
        self.topics.start(self.stepped.store, NoGroups(), NoQuotas())

    async def turn(self) -> None:
        """What the store's threads do, and one turn of the loop."""
        stepped = self.stepped
        stepped.now_s += 1
        stepped.store.flusher.step()
        while stepped.posted:
            stepped.posted.popleft()()
        await asyncio.sleep(0)

    async def settle(self) -> None:
        """Until nothing is being deleted."""
        while self.topics.numbers()["topic_deletions"]:
            await self.turn()

    async def call(self, client: Client, code: RequestCode, header: Header) -> Any:
        answering = asyncio.ensure_future(client.call(code, header, 20.0))
        while not answering.done():
            await self.turn()
        return await answering


@asynccontextmanager
async def running(disk: SimDisk) -> AsyncIterator[tuple[Broker, Client]]:
    broker = Broker(disk)
    server = Server(broker.topics.routes(), hello, 1 << 20)
    await server.listen("127.0.0.1", 0)
    client = Client(f"127.0.0.1:{server.port}", "client", "test")
    try:
        yield broker, client
    finally:
        await client.close()
        await server.close()
        broker.topics.close()


class Moment(NamedTuple):
    """The disk as a crash finds it, and the last step that was answered by then."""

    disk: SimDisk
    done: str


async def removal(take: Any) -> list[Moment]:
    """Remove the highest queue, then the topic; the disk at every point of it."""
    disk = SimDisk()
    moments: list[Moment] = []
    done = "created"
    async with running(disk) as (broker, client):
        await broker.call(client, RequestCode.TOPIC_CREATE, TopicCreateRequest("devices", QUEUES))
        for queue_id in range(QUEUES):
            broker.stepped.append(queue_id, RECORDS)
        while broker.stepped.store.synced_position < broker.stepped.store.confirmed_position:
            await broker.turn()

        def at_point(*_: object) -> None:
            moments.append(Moment(take(disk, len(moments)), done))

        disk.at_point = at_point
        for step in (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS, DELETE):
            request = QueuesRemoveRequest("devices", QUEUES - 1, step)
            await broker.call(client, RequestCode.QUEUES_REMOVE, request)
            done = step
        await broker.call(client, RequestCode.TOPIC_DELETE, TopicDeleteRequest("devices", force=True))
        done = "topic deleted"
        at_point()
        disk.at_point = lambda *_: None
    return moments


async def check(moment: Moment) -> str:
    """Start on what a crash left; the state of the removal that was found."""
    async with running(moment.disk) as (broker, client):
        await broker.settle()
        topic = broker.table.get("devices")
        last = broker.stepped.store.bounds("devices", QUEUES - 1)
        first = broker.stepped.store.bounds("devices", 0)
        if topic is None:
            assert moment.done in (DELETE, "topic deleted")
            assert (first, last) == ((RECORDS, RECORDS), (RECORDS, RECORDS))
        else:
            assert moment.done != "topic deleted"
            assert topic.deleting_to == NOT_DELETING
            assert first == (0, RECORDS)
            if topic.stored_queues < QUEUES:
                assert last == (RECORDS, RECORDS)
            else:
                assert moment.done != DELETE
                assert last == (0, RECORDS)
        state = "gone" if topic is None else f"{topic.write_queues}/{topic.read_queues}/{topic.stored_queues}"
        # Whoever makes it again goes on behind all that ever was.
        request = TopicCreateRequest("devices", QUEUES, by_use=True)
        await broker.call(client, RequestCode.TOPIC_CREATE, request)
        with_next = broker.stepped
        with_next.append(QUEUES - 1, 1)
        assert with_next.store.bounds("devices", QUEUES - 1)[1] == RECORDS + 1
        return state


async def test_a_kill_at_every_point_of_a_removal_is_gone_on_from() -> None:
    moments = await removal(lambda disk, _number: disk.copy())
    states = [await check(moment) for moment in moments]
    assert len(moments) > 30
    assert {"3/3/3", "2/3/3", "2/2/3", "2/2/2", "gone"} == set(states)


@pytest.mark.parametrize("seed", range(6))
async def test_a_power_loss_at_every_point_of_a_removal_is_gone_on_from(seed: int) -> None:
    numbers = random.Random(seed)
    moments = await removal(lambda disk, _number: disk.after_power_loss(numbers.randrange(1 << 30)))
    for moment in moments:
        await check(moment)


async def test_a_removal_whose_condition_fails_writes_nothing() -> None:
    disk = SimDisk()
    async with running(disk) as (broker, client):
        await broker.call(client, RequestCode.TOPIC_CREATE, TopicCreateRequest("devices", QUEUES))
        before = bytes(disk.content(TOPIC_JSON))
        request = QueuesRemoveRequest("devices", 1, HIDE_FROM_CONSUMERS)
        with pytest.raises(RemoteError, match="hide them from producers first"):
            await broker.call(client, RequestCode.QUEUES_REMOVE, request)
        assert bytes(disk.content(TOPIC_JSON)) == before


async def test_a_change_that_cannot_be_written_is_refused_and_not_made() -> None:
    disk = SimDisk()
    async with running(disk) as (broker, client):
        await broker.call(client, RequestCode.TOPIC_CREATE, TopicCreateRequest("devices", QUEUES))
        disk.failing = lambda _operation, path: 28 if "topic.json" in path.name else None
        request = QueuesRemoveRequest("devices", 1, HIDE_FROM_PRODUCERS)
        with pytest.raises(RemoteError, match=r"topic\.json"):
            await broker.call(client, RequestCode.QUEUES_REMOVE, request)
        topic = broker.table.get("devices")
        assert topic is not None
        assert topic.write_queues == QUEUES
        disk.failing = lambda _operation, _path: None
        await broker.call(client, RequestCode.QUEUES_REMOVE, request)
