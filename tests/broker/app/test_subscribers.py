"""The list of connections says what groups know of them."""

from __future__ import annotations

import asyncio
import zlib

from broker_stack import Stack, make_record, produce_body
from group_peer import GroupPeer

from broker.app.subscribers import SHOWN_MAX
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsRequest
from holdmq.wire.connection_kinds import CONSOLE, CONSUMER, GATEWAY, PRODUCER, SPARK, kinds_of
from holdmq.wire.group_headers import CLUSTERING, SHARED, GroupJoinRequest, GroupSubscription
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    ConnectionListResponse,
    ConnectionRow,
    Empty,
    HeartbeatRequest,
    ProduceRequest,
    ProduceRun,
    PullQueue,
    SubscriptionRow,
)
from holdmq.wire.reader_headers import BULK, LOOK_UP, PULL
from holdmq.wire.shared_headers import SharedCloseRequest, SharedOpenRequest, SharedOpenResponse


async def all_connections(stack: Stack) -> list[ConnectionRow]:
    reply = await stack.client.call(RequestCode.CONNECTION_LIST, Empty())
    return rows(ConnectionRow, reply.header(ConnectionListResponse).connections)


async def connection_of(stack: Stack, client_id: str) -> ConnectionRow:
    (row,) = [row for row in await all_connections(stack) if row.client_id == client_id]
    return row


async def test_members_of_every_mode_are_listed_with_their_subscriptions(broker: Stack) -> None:
    await broker.create("t", 1)
    peer = GroupPeer(broker.server.rpc.port, "one", "clustered")
    await peer.join("t")
    opened = await peer.client.call(
        RequestCode.SHARED_OPEN, SharedOpenRequest("workers", [GroupSubscription("t", "a/#")])
    )
    await peer.client.call(RequestCode.HEARTBEAT, HeartbeatRequest({"sent": 5}))
    row = await connection_of(broker, "one")
    assert [SubscriptionRow(*one) for one in row.subscriptions] == [
        SubscriptionRow("clustered", CLUSTERING, "t", "*"),
        SubscriptionRow("workers", SHARED, "t", "a/#"),
    ]
    assert row.state == {"sent": 5, "subscriptions": 2}
    member_id = opened.header(SharedOpenResponse).member_id
    await peer.client.call(RequestCode.SHARED_CLOSE, SharedCloseRequest(member_id))
    assert [one[0] for one in (await connection_of(broker, "one")).subscriptions] == ["clustered"]
    await peer.client.close()


async def test_who_subscribes_to_nothing_has_no_subscriptions(broker: Stack) -> None:
    row = await connection_of(broker, "test")
    assert row.subscriptions == []
    assert row.state == {}


async def test_of_many_subscriptions_the_first_are_shown_and_all_are_counted(broker: Stack) -> None:
    client = Client(f"127.0.0.1:{broker.server.rpc.port}", "client", "many")
    wanted = [GroupSubscription(f"t{i:03}", "*") for i in range(SHOWN_MAX + 5)]
    await client.call(RequestCode.GROUP_JOIN, GroupJoinRequest("g", CLUSTERING, wanted))
    row = await connection_of(broker, "many")
    assert [one[2] for one in row.subscriptions] == [f"t{i:03}" for i in range(SHOWN_MAX)]
    assert row.state["subscriptions"] == SHOWN_MAX + 5
    await client.close()


async def test_what_a_connection_sends_to_and_reads_is_told_and_what_it_is(
    broker: Stack,
) -> None:
    await broker.create("t", 1)
    await broker.create("u", 1)
    await broker.produce("t", 0, (b"1", None))
    row = await connection_of(broker, "test")
    assert (row.kinds, row.produces, row.reads, row.principal) == ([PRODUCER], ["t"], [], "")
    await broker.pull(PullQueue("u", 0, 0, 0))
    row = await connection_of(broker, "test")
    assert (row.kinds, row.produces, row.reads) == ([PRODUCER, CONSUMER], ["t"], ["u"])
    peer = GroupPeer(broker.server.rpc.port, "member")
    await peer.join("u")
    assert (await connection_of(broker, "member")).kinds == [CONSUMER]
    spark = Client(f"127.0.0.1:{broker.server.rpc.port}", "stats", "spark-1")
    columns = PullColumnsRequest([ColumnQueue("t", 0, 0, 0, 1)], ["body"], 1 << 20)
    await spark.call(RequestCode.PULL_COLUMNS, columns)
    row = await connection_of(broker, "spark-1")
    assert (row.kinds, row.reads) == ([SPARK], ["t"])
    await peer.client.close()
    await spark.close()


async def test_what_is_confirmed_after_its_connection_closed_leaves_nothing_behind(broker: Stack) -> None:
    await broker.create("t", 1)
    producing = broker.server.produce.producing
    client = Client(f"127.0.0.1:{broker.server.rpc.port}", "client", "hasty")
    body = produce_body([make_record("t", 0, b"1")])
    header = ProduceRequest(zlib.crc32(body), [ProduceRun("t", 0, 1, 7, 1, 0)])
    await client.call(RequestCode.HEARTBEAT, HeartbeatRequest({}))
    assert client.connection is not None
    client.connection.request(RequestCode.PRODUCE, header, lambda _: None, 40.0, [body], len(body))
    await asyncio.sleep(0)
    await client.close()
    while not broker.store.bounds("t", 0)[1]:
        await asyncio.sleep(0.01)
    while any(row.client_id == "hasty" for row in await all_connections(broker)):
        await asyncio.sleep(0.01)
    assert len(producing) == 0


def test_each_kind_of_connection_has_its_name() -> None:
    nothing = {"produces": False, "is_member": False, "reads": ()}
    assert kinds_of("client", **nothing) == []
    assert kinds_of("gateway", produces=True, is_member=False, reads={"gateway"}) == [GATEWAY]
    assert kinds_of("console", produces=True, is_member=False, reads={PULL, LOOK_UP}) == [CONSOLE]
    assert kinds_of("client", produces=True, is_member=True, reads={BULK}) == [PRODUCER, CONSUMER, SPARK]
    assert kinds_of("spark", produces=True, is_member=False, reads={BULK}) == [PRODUCER, SPARK]
