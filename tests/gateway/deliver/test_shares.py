"""What a worker tells a broker of its members of share groups, and what it does with what comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rpc_tap import scripted

from gateway.deliver import share_link
from holdmq.errors import BusyError, Code
from holdmq.mqtt import MQTT_5, Properties, PubAck, Subscribe, Subscription, Unsubscribe
from holdmq.record.codec import SYS_QOS_SHIFT, encode_record
from holdmq.record.properties import encode_properties
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty
from holdmq.wire.share_headers import (
    ShareCredit,
    ShareGiven,
    ShareJoin,
    ShareJoined,
    ShareJoinRequest,
    ShareJoinResponse,
    ShareLeave,
    ShareLeaveRequest,
    ShareOffline,
    SharePositions,
    ShareReadResponse,
    ShareSettleRequest,
)

Start = Callable[..., Awaitable[Any]]
SHARED = "$share/g/t/#"


class ShareGroups:
    """A broker that does what a test says: `refuses` is the code of the next join."""

    def __init__(self) -> None:
        self.joins: list[ShareJoin] = []
        self.left: list[ShareLeave] = []
        self.done: list[int] = []
        self.back: list[int] = []
        self.offline: list[ShareOffline] = []
        self.credit = 0
        self.reads: list[Any] = []
        self.refuses = Code.OK
        self.is_busy = False
        self.keeps_settled = True

    def join(self, request: Any) -> None:
        if self.is_busy:
            self.is_busy = False
            raise BusyError("a moment", 1)
        found = rows(ShareJoin, request.header(ShareJoinRequest).joins)
        self.joins += found
        request.reply(ShareJoinResponse([ShareJoined(self.refuses, "no")] * len(found)))

    def leave(self, request: Any) -> None:
        self.left += rows(ShareLeave, request.header(ShareLeaveRequest).leaves)
        request.reply(Empty())

    def settle(self, request: Any) -> None:
        header = request.header(ShareSettleRequest)
        self.done += [p for row in rows(SharePositions, header.done) for p in row.positions]
        self.back += [p for row in rows(SharePositions, header.back) for p in row.positions]
        self.offline += rows(ShareOffline, header.offline)
        self.credit += sum(row.messages for row in rows(ShareCredit, header.credits))
        if self.keeps_settled:
            request.reply(Empty())

    def read(self, request: Any) -> None:
        self.reads.append(request)

    def give(self, *positions: int, member_id: int | None = None) -> None:
        """Answer a read with messages for the last member."""
        parts = []
        for position in positions:
            tag = encode_properties([("TAGS", "1")])
            qos_1 = 1 << SYS_QOS_SHIFT
            record = bytearray(encode_record(b"t", 0, b"%d" % position, tag, 1, bytes(8), qos_1))
            record[28:36] = position.to_bytes(8, "big")
            parts.append(bytes(record))
        body = b"".join(parts)
        given = ShareGiven(member_id or self.joins[-1].member_id, len(positions), len(body))
        self.reads.pop(0).reply(ShareReadResponse([given]), [body], len(body))


@pytest.fixture
def groups(tapped_broker: Any) -> ShareGroups:
    """Share groups as the test says, before a broker that knows nothing of them."""
    groups = ShareGroups()
    for code, work in (
        (RequestCode.SHARE_JOIN, groups.join),
        (RequestCode.SHARE_LEAVE, groups.leave),
        (RequestCode.SHARE_SETTLE, groups.settle),
        (RequestCode.SHARE_READ, groups.read),
    ):
        tapped_broker.tap[code].in_place = scripted(work)
    return groups


async def subscribed(running: Any, *, receive_max: int = 3) -> Any:
    client = await running.client("c", MQTT_5, properties=Properties(receive_maximum=receive_max))
    client.send(Subscribe(1, [Subscription(SHARED, 1)]))
    assert (await client.next()).reason_codes == [1]
    return client


def cut(running: Any) -> None:
    running.broker.tap.cut()


async def test_what_the_window_does_not_take_goes_back_and_room_is_told(
    start_worker: Start, groups: ShareGroups
) -> None:
    running = await start_worker()
    client = await subscribed(running)
    await running.until(lambda: groups.credit == 3 and groups.reads)
    groups.give(10, 20, 30, 40)
    got = [await client.next() for _ in range(3)]
    assert [bytes(message.payload) for message in got] == [b"10", b"20", b"30"]
    await running.until(lambda: groups.back == [40])
    assert running.worker.counters.shared_messages_returned_total == 1
    client.send(PubAck(got[1].packet_id))
    await running.until(lambda: groups.done == [20] and groups.credit == 4)
    await client.close()
    await running.until(lambda: groups.offline)
    assert groups.offline == [ShareOffline(groups.joins[0].member_id, 0, [10, 30])]


async def test_suback_waits_for_the_broker_and_says_what_it_refuses(
    start_worker: Start, groups: ShareGroups
) -> None:
    running = await start_worker()
    groups.is_busy = True
    client = await subscribed(running)
    assert len(groups.joins) == 1
    groups.refuses = Code.LIMIT_EXCEEDED
    client.send(Subscribe(2, [Subscription("$share/h/t", 1), Subscription("a", 0)]))
    assert (await client.next()).reason_codes == [0x97, 0]
    assert running.worker.counters.refused["subscribe_share_refused"] == 1
    assert running.worker.counters.shared_subscriptions == 1


async def test_after_a_lost_connection_a_member_says_what_it_holds_and_what_is_settled(
    start_worker: Start, groups: ShareGroups
) -> None:
    running = await start_worker()
    client = await subscribed(running)
    await running.until(lambda: groups.reads)
    groups.give(10, 20)
    got = [await client.next() for _ in range(2)]
    groups.keeps_settled = False
    client.send(PubAck(got[0].packet_id))
    await running.until(lambda: groups.done == [10])
    cut(running)
    await running.until(lambda: len(groups.joins) == 2)
    again = groups.joins[1]
    assert (again.name, again.uid, again.planned, again.held) == (SHARED, groups.joins[0].uid, [10], [20])
    await running.until(lambda: groups.done == [10, 10])


async def test_what_is_much_is_said_in_parts(
    start_worker: Start, groups: ShareGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_link, "POSITIONS_PER_REQUEST", 2)
    monkeypatch.setattr(share_link, "JOINS_PER_REQUEST", 2)
    running = await start_worker()
    client = await subscribed(running, receive_max=9)
    client.send(Subscribe(2, [Subscription(f"$share/{n}/t/1", 1) for n in range(4)]))
    assert (await client.next()).reason_codes == [1] * 4
    await running.until(lambda: len(groups.reads) == 2)
    for position, join in enumerate(groups.joins):
        groups.give(position, member_id=join.member_id)
        await running.until(lambda: len(groups.reads) == 2)
    ids = [(await client.next()).packet_id for _ in range(5)]
    client.send(*(PubAck(packet_id) for packet_id in ids))
    await running.until(lambda: len(groups.done) == 5)
    assert sorted(groups.done) == [0, 1, 2, 3, 4]
    cut(running)
    await running.until(lambda: len(groups.joins) == 10)
    assert len({join.member_id for join in groups.joins}) == 5


async def test_what_comes_for_who_left_goes_back(start_worker: Start, groups: ShareGroups) -> None:
    running = await start_worker()
    client = await subscribed(running)
    await running.until(lambda: len(groups.reads) == 2)
    client.send(Unsubscribe(2, [SHARED]))
    await running.until(lambda: groups.left == [ShareLeave(SHARED, "c", 0)])
    groups.give(10)
    await running.until(lambda: groups.back == [10])
    assert running.worker.counters.shared_subscriptions == 0


async def test_who_left_with_messages_and_ends_gives_them_back(
    start_worker: Start, groups: ShareGroups
) -> None:
    running = await start_worker()
    client = await subscribed(running)
    await running.until(lambda: groups.reads)
    groups.give(10, 20)
    got = [await client.next() for _ in range(2)]
    client.send(Unsubscribe(2, [SHARED]), PubAck(got[0].packet_id))
    await running.until(lambda: groups.left and groups.done == [10])
    await client.close()
    await running.until(lambda: groups.offline)
    assert groups.offline == [ShareOffline(groups.joins[0].member_id, 0, [20])]


async def test_who_left_with_nothing_is_not_spoken_of_again(start_worker: Start, groups: ShareGroups) -> None:
    running = await start_worker()
    client = await subscribed(running)
    client.send(Unsubscribe(2, [SHARED]))
    await running.until(lambda: groups.left)
    assert [link.joined for link in running.worker.deliveries.shares._links.values()] == [{}]


async def test_levels_of_shared_filters_with_plus_are_given_back_as_others(
    start_worker: Start, groups: ShareGroups
) -> None:
    running = await start_worker(plus_levels_per_client_max=4)
    client = await running.client("c", MQTT_5)
    assert (await client.subscribe("$share/g/+/t")).reason_codes == [1]
    assert (await client.subscribe("+")).reason_codes == [0x97]
    client.send(Unsubscribe(9, ["$share/g/+/t"]))
    await client.next()
    groups.refuses = Code.LIMIT_EXCEEDED  # the broker's answer comes later, and gives them back too
    assert (await client.subscribe("$share/h/+/t")).reason_codes == [0x97]
    assert (await client.subscribe("+/+/+/+")).reason_codes == [1]
    assert running.worker.clients.session("c").outbound.plus_levels == 4
