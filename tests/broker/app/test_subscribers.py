"""The list of connections says what groups know of them."""

from __future__ import annotations

from broker_stack import Stack
from group_peer import GroupPeer

from broker.app.subscribers import SHOWN_MAX
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import CLUSTERING, SHARED, GroupJoinRequest, GroupSubscription
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    ConnectionListResponse,
    ConnectionRow,
    Empty,
    HeartbeatRequest,
    SubscriptionRow,
)
from holdmq.wire.shared_headers import SharedCloseRequest, SharedOpenRequest, SharedOpenResponse


async def connection_of(stack: Stack, client_id: str) -> ConnectionRow:
    reply = await stack.client.call(RequestCode.CONNECTION_LIST, Empty())
    listed = rows(ConnectionRow, reply.header(ConnectionListResponse).connections)
    (row,) = [row for row in listed if row.client_id == client_id]
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
