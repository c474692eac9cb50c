"""The port of a replica that does not lead: reads for those who come for them, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from broker_stack import Stack, bodies, until
from processes import free_port

from broker.app.copy_reads import ReplicaReadServer, read_address
from broker.reading.core.far_reads import ReadCounts
from holdmq.config.model import Config
from holdmq.errors import Code, HoldMQError, LeadLostError, RemoteError, StartupError
from holdmq.rpc.client import Client
from holdmq.rpc.server import Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header
from holdmq.wire.headers import (
    Empty,
    HelloResponse,
    ProduceRequest,
    PullQueue,
    PullRequest,
    PullResponse,
    QueueBoundsRequest,
)
from holdmq.wire.replica_reads import ReplicaReads


class Standing:
    """Whether there is doubt about the copy."""

    def __init__(self) -> None:
        self.is_sure = True

    def may_read(self) -> bool:
        return self.is_sure

    def not_leading(self) -> RemoteError:
        return RemoteError(Code.NOT_LEADER, "a leads", {"epoch": 3, "leader": "a"})


class Bed(NamedTuple):
    """A replica's port over the store of a broker that has three messages in queue 0 of `t`."""

    config: Config
    server: ReplicaReadServer
    standing: Standing
    counts: ReadCounts
    client: Client
    broker: Stack

    async def pull(self, offset: int = 0) -> tuple[PullResponse, list[bytes]]:
        header = PullRequest(
            [PullQueue("t", 0, 0, offset)], 1 << 20, 60_000, replica_reads=ReplicaReads.PREFER
        )
        reply = await self.client.call(RequestCode.PULL, header, 5.0)
        return reply.header(PullResponse), bodies(reply)


@pytest.fixture
async def bed(broker: Stack) -> AsyncIterator[Bed]:
    await broker.create("t", queues=1)
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(3)))
    config = Config.model_validate({"broker": {"port": free_port(), "name": "shard"}})
    standing, counts = Standing(), ReadCounts()
    server = ReplicaReadServer(config, None, standing, counts, 1_000)
    server.begin(broker.store, broker.server.topics.table)
    client = Client(read_address(config), "client", "reader", reads_replica=True)
    yield Bed(config, server, standing, counts, client, broker)
    await client.close()
    await server.end()


async def test_who_comes_to_read_gets_what_is_there_and_waits_for_nothing(bed: Bed) -> None:
    answer, got = await bed.pull()
    assert got == [b"0", b"1", b"2"]
    assert answer.replica == "", "at the end the leader is asked"
    _, got = await bed.pull(3)
    assert got == []
    assert bed.client.hello is not None
    assert bed.client.hello.store_id == bed.broker.store.store_id
    assert (bed.counts.served, bed.counts.sent_back) == (2, 2)


async def test_everybody_else_finds_no_broker_here(bed: Bed) -> None:
    client = Client(read_address(bed.config), "client", "producer", follows_lead=True)
    with pytest.raises(HoldMQError):
        await client.call(RequestCode.HEARTBEAT, Empty(), 1.0)
    assert isinstance(client.last_error, LeadLostError)
    await client.close()


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.PRODUCE, ProduceRequest(0, [])),
        (RequestCode.QUEUE_BOUNDS, QueueBoundsRequest(["t"])),
        (RequestCode.BROKER_STATUS, Empty()),
    ],
)
async def test_what_is_no_read_is_the_leaders(bed: Bed, code: RequestCode, header: Header) -> None:
    with pytest.raises(RemoteError, match="a leads") as refused:
        await bed.client.call(code, header, 5.0)
    assert refused.value.code == Code.NOT_LEADER
    assert refused.value.ext_fields["leader"] == "a"


async def test_a_doubt_sends_readers_back_and_refuses_new_ones(bed: Bed) -> None:
    await bed.pull()
    bed.standing.is_sure = False
    with pytest.raises(RemoteError, match="a leads"):
        await bed.pull()
    late = Client(read_address(bed.config), "client", "late", reads_replica=True)
    with pytest.raises(HoldMQError, match="a leads"):
        await late.call(RequestCode.HEARTBEAT, Empty(), 1.0)
    await late.close()
    bed.standing.is_sure = True
    assert (await bed.pull())[1] == [b"0", b"1", b"2"]


async def test_what_is_read_here_is_counted_until_the_end(
    broker: Stack, bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.kernel.statistics_ticks.TICK_S", 0.01)
    await bed.server.end()
    assert bed.server.numbers() == {}
    bed.server.begin(broker.store, broker.server.topics.table)
    before = broker.server.numbers()["messages_out_total"]
    await bed.pull()
    await until(lambda: bed.server.numbers()["messages_out_total"] == 3)
    assert broker.server.numbers()["messages_out_total"] == before
    await bed.server.end()
    assert bed.server.numbers() == {}


def _server() -> Server:
    return Server({}, lambda *_: HelloResponse(1, "leader", "test", 0), 1 << 20)


async def test_at_its_end_the_port_is_free_at_once(bed: Bed) -> None:
    await bed.pull()
    await bed.server.end()
    leader = _server()
    await leader.listen("127.0.0.1", bed.config.broker.port)
    await leader.close()
    await bed.server.end()


async def test_a_port_that_is_taken_is_tried_again(bed: Bed) -> None:
    await bed.server.end()
    leader = _server()
    await leader.listen("127.0.0.1", bed.config.broker.port)
    bed.server.begin(bed.broker.store, bed.broker.server.topics.table)
    await asyncio.sleep(0.1)
    with pytest.raises(StartupError):
        await _server().listen("127.0.0.1", bed.config.broker.port)
    await leader.close()
    _, got = await bed.pull()
    assert got == [b"0", b"1", b"2"]


def test_a_port_that_nobody_knows_before_is_no_address() -> None:
    assert read_address(Config.model_validate({"broker": {"port": 0}})) == ""
    assert read_address(Config.model_validate({"broker": {"port": 1, "advertise": "h:2"}})) == "h:2"
