"""Wills at a worker: what it tells their owner, and how it publishes those that are due."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rpc_tap import HeldRequest
from tapped_broker import TappedSessions

from gateway.persistent import wills as wills_module
from holdmq.errors import BusyError, Code, RemoteError
from holdmq.mqtt import MQTT_5, Disconnect, Properties, Will
from holdmq.record.codec import SYS_RETAIN, decode_properties, decode_record
from holdmq.record.once import once_of
from holdmq.wire.codes import RequestCode
from holdmq.wire.session_headers import END, WILL_DONE, DueWill, SessionTakenRequest, SessionWillsRequest
from holdmq.wire.session_will import DELETE_WILL, NO_WILL, PUBLISH_WILL, SessionWill

Start = Callable[..., Awaitable[Any]]
WILL = Will("d/gone", b"bye", 1, properties=Properties(will_delay_interval=0, content_type="text"))


def told(table: TappedSessions, kind: str) -> list[str]:
    return [change.name for change in table.changes if change.kind == kind]


def push(running: Any, *wills: DueWill) -> None:
    hellos = running.broker.server.rpc.connections.items()
    [connection] = [one for one, hello in hellos if hello is not None and hello.role == "gateway"]
    connection.send_one_way(RequestCode.SESSION_WILLS, SessionWillsRequest(list(wills)))


def due(epoch: int, payload: bytes = b"bye", topic: str = "d/gone", flags: int = 2) -> DueWill:
    return DueWill("c", epoch, SessionWill(0, 0, topic, flags, b"", payload, bytes(8)).encode())


async def test_the_owner_has_the_will_and_says_when_it_is_due(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await running.client("c", MQTT_5, will=WILL)
    assert [key[0] for key in table.rows] == ["w"], "a session that is not kept has no other row"
    assert running.worker.clients.session("c").will is wills_module.AT_OWNER, "it is not kept twice"
    await client.close()
    await running.until(lambda: told(table, WILL_DONE))
    assert told(table, END) == [PUBLISH_WILL]
    record = decode_record(running.broker.log[0])
    properties = decode_properties(record.properties)
    assert (record.topic, record.tag, record.body, record.qos) == (b"d", b"gone", b"bye", 1)
    assert properties.first("CLIENT_ID") == "c"
    assert properties.mqtt == b"\x03\x00\x04text", "the delay is not the message's"
    assert once_of(record.properties) is not None
    await running.until(lambda: table.rows == {})  # not only heard of it
    assert running.worker.counters.wills_total == 1


async def test_disconnect_deletes_the_will_but_with_0x04(start_worker: Start, table: TappedSessions) -> None:
    running = await start_worker()
    for reason_code in (0, 4):
        client = await running.client("c", MQTT_5, will=WILL)
        client.send(Disconnect(reason_code))
        await running.until(lambda: running.worker.counters.sessions == 0)
        await client.close()
    await running.client("no will", MQTT_5)
    await running.until(lambda: len(running.broker.log) == 1)
    assert told(table, END) == [DELETE_WILL, PUBLISH_WILL]
    running.clients[-1].send(Disconnect(0))
    await running.until(lambda: NO_WILL in told(table, END))


async def test_a_client_without_an_id_is_told_to_an_owner_if_it_has_a_will(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    await running.client("", MQTT_5)
    assert len(table.core) == 0
    client = await running.client("", MQTT_5, will=WILL)
    assert len(table.core) == 1
    await client.close()
    await running.until(lambda: running.broker.log)


async def test_a_will_is_published_though_its_late_opening_was_taken_at_once(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    table.opens.refusals = [BusyError("starting", 10)]

    def opened_and_taken(request: HeldRequest) -> bool:
        if not table.opens.refusals:
            request.push(RequestCode.SESSION_TAKEN, SessionTakenRequest("c", table.core._next_epoch, 500))
        return False

    table.opens.in_place = opened_and_taken
    client = await running.client("c", MQTT_5, will=WILL)
    assert (await client.next()).reason_code == 0x8E
    await running.until(lambda: running.broker.bodies == [b"bye"])
    await running.until(lambda: table.rows == {})


async def test_a_will_that_comes_to_two_gateways_is_stored_once(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    push(running, due(5), due(5), due(6, b"another connection's"))
    await running.until(lambda: len(told(table, WILL_DONE)) == 3)
    assert sorted(running.broker.bodies) == [b"another connection's", b"bye"]


async def test_retained_wills_are_kept_first(start_worker: Start, table: TappedSessions) -> None:
    running = await start_worker()
    push(running, due(5, flags=3))
    await running.until(lambda: told(table, WILL_DONE))
    record = decode_record(running.broker.log[0])
    assert record.sys_flag & SYS_RETAIN
    assert list(running.broker.retained.rows) == ["d/gone"]


async def test_wills_that_nobody_can_publish_are_done_with(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    running.worker.links["b0"].producer.record_max_bytes = 500
    push(running, due(5, topic="$x/y"), DueWill("c", 6, b"no will"), due(7, b"x" * 500))
    await running.until(lambda: len(told(table, WILL_DONE)) == 3)
    assert running.broker.log == []
    assert running.worker.counters.refused["will_topic_name_invalid"] == 1
    assert running.worker.counters.refused["will_quota_exceeded"] == 1


async def test_a_will_whose_topic_may_not_be_made_is_done_with(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    running.broker.creates.refusal = RemoteError(Code.NOT_PERMITTED, "no")
    push(running, due(5))
    await running.until(lambda: told(table, WILL_DONE))
    assert running.broker.log == []
    assert running.worker.counters.refused["will_not_authorized"] == 1


async def test_so_many_are_published_at_a_time(
    start_worker: Start, table: TappedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wills_module, "IN_HAND_MAX", 2)
    running = await start_worker()
    running.broker.produce.hold()
    push(running, *(due(epoch) for epoch in range(5)))
    await running.until(lambda: running.worker.wills.in_hand == 2 and running.broker.produce.held)
    running.broker.produce.release()
    await running.until(lambda: len(told(table, WILL_DONE)) == 2)
    await running.until(lambda: running.worker.wills.in_hand == 0)


async def test_a_connection_that_no_owner_knows_publishes_its_will_itself(start_worker: Start) -> None:
    running = await start_worker()
    running.broker.sessions.opens.refusal = BusyError("starting", 10)
    client = await running.client("c", MQTT_5, will=WILL)
    await client.close()
    await running.until(lambda: running.broker.log)
    assert once_of(decode_record(running.broker.log[0]).properties) is None
    await running.until(lambda: running.worker.counters.wills_total == 1)
