"""Brokers that have copies: a Link follows who leads. Over real registries, and brokers of a few lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdmq.client.leads import FAILOVER_S
from holdmq.errors import Code, RemoteError, RequestTimeout, TransportError
from holdmq.message import TopicQueue
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsResponse
from holdmq.wire.headers import (
    PROTOCOL_VERSION,
    BrokerRegisterRequest,
    HelloRequest,
    HelloResponse,
    QueueBounds,
    QueueBoundsResponse,
    TopicRow,
)
from holdmq.wire.replica_reads import ReplicaReads
from registry.server import RegistryServer
from spark_streaming.source import link as module
from spark_streaming.source.link import ClusterLink
from spark_streaming.source.replica_pulls import WantedColumns

QUEUE = TopicQueue("t", "b", 0)


class Replica:
    """A copy of broker b: says `end` as long as it leads, then NOT_LEADER, or nothing."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.leads = True
        self.is_silent = False
        handlers = {RequestCode.QUEUE_BOUNDS: self._bounds, RequestCode.PULL_COLUMNS: self._pull}
        self.server = Server(handlers, self._hello, 1 << 20)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _hello(self, _connection: Connection, _hello: HelloRequest) -> HelloResponse:
        return HelloResponse(PROTOCOL_VERSION, "b", "test", 0)

    def _bounds(self, request: Request) -> None:
        if self._answers():
            request.reply(QueueBoundsResponse([QueueBounds("t", 0, 0, self.end)], 1))

    def _pull(self, request: Request) -> None:
        if self._answers():
            request.reply(PullColumnsResponse([], self.end, []))

    def _answers(self) -> bool:
        if not self.leads:
            raise RemoteError(Code.NOT_LEADER, "the lease ran out")
        return not self.is_silent


class Cluster:
    """Two registries, two copies, and a Link that asks the first registry first."""

    def __init__(self) -> None:
        self.registries = [RegistryServer("test"), RegistryServer("test")]
        self.old, self.new = Replica(1), Replica(2)
        self._clients: dict[int, Client] = {}
        self.link: ClusterLink

    async def start(self) -> None:
        for registry in self.registries:
            await registry.listen("127.0.0.1", 0)
        for replica in (self.old, self.new):
            await replica.server.listen("127.0.0.1", 0)
        self.link = ClusterLink([f"127.0.0.1:{registry.rpc.port}" for registry in self.registries])

    async def register(self, registry: int, replica: Replica, epoch: int) -> None:
        port = self.registries[registry].rpc.port
        client = self._clients.setdefault(registry, Client(f"127.0.0.1:{port}", "broker", "b"))
        topics = [TopicRow("t", 1, 1, 6, "log", 1, False)]
        row = BrokerRegisterRequest("test", "b", 0, replica.address, 1, topics, epoch)
        await client.call(RequestCode.BROKER_REGISTER, row)

    async def end_of_queue(self) -> int | None:
        """What the planner sees; None = the broker is silent."""
        found = await asyncio.to_thread(self.link.snapshot, lambda _: True)
        return found.bounds[QUEUE].end if QUEUE in found.bounds else None

    async def pull(self) -> int:
        """The leader's answer to a task: its own `end`."""
        wanted = WantedColumns((), None, ReplicaReads.NEVER)
        queues = [ColumnQueue("t", 0, 0, 0, 1)]
        return (await asyncio.to_thread(self.link.pull, "b", queues, wanted)).log_epoch

    async def close(self) -> None:
        await asyncio.to_thread(self.link.close)
        for client in self._clients.values():
            await client.close()
        for server in (self.old.server, self.new.server):
            await server.close()
        for registry in self.registries:
            await registry.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.start()
    yield made
    await made.close()


async def until(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Ask again while the answer is another one, or none comes."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            if await ask() == wanted:
                return
        except TransportError:
            pass
        await asyncio.sleep(0.01)
    raise AssertionError(f"not {wanted}")


@pytest.mark.parametrize("registry", [0, 1])
async def test_plans_and_tasks_follow_who_leads_wherever_that_is_told(
    cluster: Cluster, registry: int
) -> None:
    for at in (0, 1):
        await cluster.register(at, cluster.old, 3)
    assert await cluster.end_of_queue() == 1
    assert await cluster.pull() == 1
    cluster.old.leads = False
    await cluster.register(registry, cluster.new, 4)
    await until(cluster.end_of_queue, 2)
    assert await cluster.pull() == 2
    # Whatever the other one still says.
    assert await cluster.end_of_queue() == 2


@pytest.mark.parametrize("registry", [0, 1])
async def test_a_task_follows_who_leads_without_any_plan(
    cluster: Cluster, registry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULL_TIMEOUT_S", 0.5)
    for at in (0, 1):
        await cluster.register(at, cluster.old, 3)
    assert await cluster.pull() == 1
    cluster.old.is_silent = True
    with pytest.raises(RequestTimeout):
        await cluster.pull()
    with pytest.raises(RequestTimeout):
        await cluster.pull()
    await cluster.register(registry, cluster.new, 4)
    await until(cluster.pull, 2)


@pytest.mark.parametrize("registry", [0, 1])
@pytest.mark.parametrize("way", ["plan", "task"])
async def test_an_old_leader_that_says_nothing_is_not_waited_for_once_another_one_is_known(
    cluster: Cluster, registry: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_TIMEOUT_S", 60.0)
    monkeypatch.setattr(module, "PULL_TIMEOUT_S", 60.0)
    ask = cluster.end_of_queue if way == "plan" else cluster.pull
    for at in (0, 1):
        await cluster.register(at, cluster.old, 3)
    assert await ask() == 1
    cluster.old.is_silent = True
    began = time.monotonic()
    asking = asyncio.create_task(ask())
    await asyncio.sleep(0.1)
    await cluster.register(registry, cluster.new, 4)
    assert await asking == 2
    assert time.monotonic() - began < 30


async def test_a_plan_waits_little_for_a_broker_that_has_been_away_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.register(0, cluster.old, 0)
    assert await cluster.end_of_queue() == 1
    await cluster.old.server.close()
    monkeypatch.setattr(module, "ASK_TIMEOUT_S", 0.1)
    assert await cluster.end_of_queue() is None
    monkeypatch.setattr(module, "ASK_TIMEOUT_S", 60.0)
    began = time.monotonic()
    assert await cluster.end_of_queue() is None
    assert time.monotonic() - began < 30


async def test_a_broker_with_copies_is_waited_for(cluster: Cluster) -> None:
    await cluster.register(0, cluster.old, 0)
    await cluster.end_of_queue()
    assert cluster.link.patience_s(["b", "other"]) == 0.0
    await cluster.register(0, cluster.old, 1)
    await cluster.end_of_queue()
    assert cluster.link.patience_s(["b", "other"]) == FAILOVER_S
    assert cluster.link.patience_s([]) == 0.0


async def test_epochs_that_begin_again_are_believed_once_the_leader_is_silent_for_long(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.register(0, cluster.old, 7)
    assert await cluster.end_of_queue() == 1
    cluster.old.leads = False
    cluster.registries[0].tables._epochs.clear()
    await cluster.register(0, cluster.new, 1)
    assert await cluster.end_of_queue() is None
    assert await cluster.end_of_queue() is None
    monkeypatch.setattr(module, "LEAD_DOUBTED_S", 0.0)
    await until(cluster.end_of_queue, 2)
