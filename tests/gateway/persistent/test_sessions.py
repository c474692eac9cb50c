"""What a worker tells the owner of its sessions, and when; the owner refuses, is slow, goes away."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from rpc_tap import scripted
from tapped_broker import HOUR, TappedSessions, persistent

from gateway.persistent import owner as owner_module
from gateway.session.session import Session
from holdmq.errors import BusyError, Code, RemoteError
from holdmq.mqtt import (
    MQTT_5,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from holdmq.record.codec import PHYSICAL_OFFSET_AT
from holdmq.wire.codes import RequestCode
from holdmq.wire.session_headers import (
    END,
    PUT_FILTER,
    PUT_STATE,
    SESSION_TOPIC,
    SessionDropRequest,
    SessionKickRequest,
    SessionRecordsRequest,
    SessionRecordsResponse,
)

Start = Callable[..., Awaitable[Any]]


def cut(running: Any) -> None:
    """Every connection to the broker is lost."""
    running.broker.tap.cut()


def kinds(table: TappedSessions) -> list[str]:
    return [change.kind for change in table.changes]


async def test_suback_waits_for_the_row(start_worker: Start, table: TappedSessions) -> None:
    running = await start_worker()
    client = await persistent(running)
    table.writes.holds_answers = True
    client.send(Subscribe(1, [Subscription("a/+", 1), Subscription("b", 2)]))
    await running.until(lambda: table.writes.held_answers)
    assert table.filters("c") == ["a/+", "b"]
    assert not client.got
    table.writes.release()
    assert isinstance(await client.next(), SubAck)
    table.writes.holds_answers = True
    client.send(Unsubscribe(2, ["a/+"]))
    await running.until(lambda: table.writes.held_answers)
    assert table.filters("c") == ["b"]
    table.writes.release()
    assert isinstance(await client.next(), UnsubAck)


async def test_a_write_that_is_refused_for_now_is_sent_again_before_newer_ones(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    table.writes.refusals = [BusyError("later", 10), RemoteError(Code.STORE_FULL, "full")]
    await client.subscribe("a")
    client.send(Unsubscribe(2, ["a"]))
    assert isinstance(await client.next(), UnsubAck)
    assert table.filters("c") == []
    assert table.writes.refusals == []


async def test_a_write_that_is_refused_for_good_ends_the_connection(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    table.writes.refusals = [RemoteError(Code.RECORD_TOO_LARGE, "no")]
    client.send(Subscribe(1, [Subscription("a", 1)]))
    assert (await client.next()).reason_code == 0x8E


async def test_a_silent_owner_is_connected_again_and_told_again(
    start_worker: Start, table: TappedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "WRITE_TIMEOUT_S", 1.0)
    running = await start_worker()
    client = await persistent(running)
    table.writes.holds_answers = True
    client.send(Subscribe(1, [Subscription("a", 1)]))
    await running.until(lambda: table.writes.held_answers)
    table.writes.let_pass()
    assert isinstance(await client.next(), SubAck)
    assert kinds(table).count(PUT_FILTER) >= 2
    assert table.core.open_session("c") is not None


async def test_open_sessions_are_claimed_after_a_lost_connection(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client, clean = await persistent(running), await running.client("clean", MQTT_5)
    cut(running)
    await client.subscribe("a")
    assert table.filters("c") == ["a"]
    await running.until(lambda: table.core.open_session("clean") is not None)
    clean.send(Publish("x", b"", 1, packet_id=1))
    assert await clean.acked(1) == [1]


async def test_who_was_admitted_while_no_broker_was_known_to_keep_sessions_is_registered_once_one_is(
    start_worker: Start, table: TappedSessions, tapped_broker: Any
) -> None:
    await tapped_broker.unregister()
    tapped_broker.unlisted.add(SESSION_TOPIC)
    await tapped_broker.register()
    running = await start_worker()
    await running.client("clean", MQTT_5)
    assert table.core.open_session("clean") is None
    await tapped_broker.unregister()
    tapped_broker.unlisted.clear()
    await tapped_broker.register()
    running.worker.routes.refresh_soon()
    await running.until(lambda: table.core.open_session("clean") is not None)


async def test_an_end_that_the_owner_did_not_hear_is_told_when_it_is_back(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    await client.subscribe("a")
    table.opens.refusals = [BusyError("starting", 10)]
    cut(running)
    await client.close()
    # The tap saw the end before the broker wrote its row.
    await running.until(lambda: END in kinds(table) and not len(table.core) and table.state("c").places)
    assert table.state("c").places["b0"].log_epoch == 1


async def test_who_is_dropped_is_told_that_an_operator_did_it(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    await running.broker.stack.client.call(RequestCode.SESSION_DROP, SessionDropRequest("c"))
    assert (await client.next()).reason_code == 0x98
    await running.until(lambda: table.rows == {})


def position_of(record: bytes) -> int:
    """Where a record lies in the broker's log."""
    return int.from_bytes(record[PHYSICAL_OFFSET_AT:][:8], "big")


async def test_who_is_kicked_keeps_its_session(start_worker: Start, table: TappedSessions) -> None:
    running = await start_worker()
    client = await persistent(running)
    await client.subscribe("a")
    await running.broker.stack.client.call(RequestCode.SESSION_KICK, SessionKickRequest("c"))
    assert (await client.next()).reason_code == 0x98
    await running.until(lambda: END in kinds(table) and not len(table.core))
    assert table.rows != {}


async def test_a_plan_is_written_before_its_publish_and_a_pubrec_before_its_pubrel(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client, publisher = await persistent(running), await running.client("p")
    await client.subscribe("a", qos=2)
    table.writes.holds_answers = True
    publisher.send(Publish("a", b"x", 2, packet_id=1))
    await running.until(lambda: table.writes.held_answers)
    planned = table.state("c").planned
    assert [(row.packet_id, row.flags, row.is_released) for row in planned] == [(1, 4, False)]
    assert table.state("c").places["b0"].position > planned[0].position
    assert not client.got
    table.writes.release()
    message = await client.next()
    assert (message.payload, message.qos) == (b"x", 2)
    table.writes.holds_answers = True
    client.send(PubRec(1))
    await running.until(lambda: table.writes.held_answers)
    assert table.state("c").planned[0].is_released
    table.writes.release()
    assert (await client.acked(1)) == [1]
    client.send(PubComp(1))
    client.send(Disconnect())
    await running.until(lambda: END in kinds(table))
    await running.until(lambda: table.state("c").planned == [])


async def test_the_row_of_a_session_that_receives_is_written_after_a_while(
    start_worker: Start, table: TappedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.persistent.sessions.STATE_LATE_S", 0.05)
    running = await start_worker()
    client, publisher = await persistent(running), await running.client("p")
    await client.subscribe("a", qos=1)
    publisher.send(Publish("a", b"x", 1, packet_id=1))
    assert (await client.next()).payload == b"x"
    await running.until(lambda: len(table.state("c").planned) == 1)
    client.send(PubAck(1))
    await running.until(lambda: not table.state("c").planned)
    assert kinds(table).count(PUT_STATE) >= 2
    [record] = running.broker.log
    assert table.state("c").places["b0"].position >= position_of(record) + len(record)


async def test_a_session_that_cannot_be_restored_is_refused_and_kept(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    await client.subscribe("a")
    await client.close()
    await running.until(lambda: END in kinds(table))
    await table.put("sc", b"\x93\x63")
    again = await persistent(running, refused=True)
    assert again.connack.reason_code == 0x80
    assert table.rows["sc"] == b"\x93\x63"
    assert table.filters("c") == ["a"]


async def test_the_owner_decides_why_a_connect_is_refused(start_worker: Start, table: TappedSessions) -> None:
    running = await start_worker()
    table.core.open_max = 0
    assert (await persistent(running, refused=True)).connack.reason_code == 0x97
    table.core.open_max = 10
    table.opens.refusals = [BusyError("starting", 10), BusyError("starting", 10)]
    assert (await persistent(running, refused=True)).connack.reason_code == 0x88
    clean = await running.client("clean", MQTT_5)
    assert clean.connack.reason_code == 0
    await running.until(lambda: table.core.open_session("clean") is not None)


async def test_too_many_changes_that_wait_close_who_makes_more(
    start_worker: Start, table: TappedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_module, "PENDING_MAX_BYTES", 200)
    running = await start_worker()
    client = await persistent(running)
    table.writes.holds_answers = True
    client.send(*[Subscribe(n, [Subscription(f"a/{n}" + "x" * 100, 1)]) for n in range(1, 6)])
    assert (await client.next()).reason_code == 0x89
    table.writes.release()


async def test_messages_that_are_gone_are_given_up_when_their_session_comes_back(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client, publisher = await persistent(running), await running.client("p")
    await client.subscribe("a")
    publisher.send(Publish("a", b"x", 1, packet_id=1))
    await client.next()
    await client.close()
    await running.until(lambda: END in kinds(table))
    assert len(table.state("c").planned) == 1
    asked: list[Any] = []

    def records(request: Any) -> None:
        asked.append(request.header(SessionRecordsRequest).positions)
        request.reply(SessionRecordsResponse(1, 0))

    running.broker.tap[RequestCode.SESSION_RECORDS].in_place = scripted(records)
    again = await persistent(running)
    assert again.connack.session_present
    await running.until(lambda: running.worker.counters.messages_planned_lost_total == 1)
    assert asked == [[position_of(running.broker.log[0])]]
    publisher.send(Publish("a", b"y", 1, packet_id=2))
    assert (await again.next()).payload == b"y"


async def test_sessions_that_wait_for_a_reader_share_the_next_one(
    start_worker: Start, table: TappedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.deliver.catchup.CATCHUP_READERS_MAX", 1)
    running = await start_worker()
    names = [f"c{n}" for n in range(5)]
    for name in names:
        client = await persistent(running, name)
        await client.subscribe(f"cmd/{name}", "all")
        await client.close()
    await running.until(lambda: kinds(table).count(END) == 5)
    publisher = await running.client("p")
    sent = [*[Publish(f"cmd/{name}", name.encode(), 1) for name in names], Publish("all", b"all", 1)]
    publisher.send(*[replace(message, packet_id=n) for n, message in enumerate(sent, 1)])
    assert len(await publisher.acked(6)) == 6
    running.broker.hold_catchup()
    clients = [await persistent(running, name) for name in names]
    await running.until(lambda: len(running.worker.deliveries.past.catchup._queue) == 4)
    running.broker.release_catchup()
    for name, client in zip(names, clients, strict=True):
        assert [(await client.next()).payload for _ in range(2)] == [name.encode(), b"all"]
    catchup = running.worker.deliveries.past.catchup
    assert (catchup.turns, catchup.shared) == (2, 4)


async def test_who_breaks_the_protocol_behind_a_first_qos_2_publish_is_closed_all_the_same(
    start_worker: Start, table: TappedSessions
) -> None:
    """Its queue would have to be in the row first, and the row is not written any more."""
    running = await start_worker()
    await running.broker.stack.create("a", 4, 1)
    client = await persistent(running)
    client.writer.write(encode(Publish("a/b", b"x", 2, packet_id=1), MQTT_5) + b"\0\0")
    assert isinstance(await client.next(), Disconnect)
    client.writer.close()
    await running.until(lambda: running.worker.counters.connections == 0)
    again = await persistent(running)
    again.send(Publish("a/b", b"x", 2, dup=True, packet_id=1))
    assert await again.acked(1) == [1]
    assert running.broker.bodies == [b"x"]


async def test_qos_2_messages_that_wait_for_their_plan_set_no_alias_that_others_would_use_before_them(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await running.client(
        "c", MQTT_5, clean_start=False, properties=replace(HOUR, topic_alias_maximum=5)
    )
    client.decoder.allow_topic_aliases(5)
    await client.subscribe("plants/#", qos=2)
    publisher = await running.client("p", MQTT_5)
    table.writes.holds_answers = True
    publisher.send(Publish("plants/1", b"two", 2, packet_id=1))
    await publisher.acked(1)
    await running.until(lambda: table.writes.held_answers)
    publisher.send(Publish("plants/1", b"one", 1, packet_id=2), Publish("plants/1", b"none", 0))
    early = [await client.next() for _ in range(2)]
    assert sorted((m.topic, m.payload) for m in early) == [("plants/1", b"none"), ("plants/1", b"one")]
    table.writes.release()
    late = await client.next()
    assert (late.topic, late.payload, late.qos) == ("plants/1", b"two", 2)


@pytest.mark.parametrize("is_looking", [False, True])
async def test_a_session_that_ended_is_freed_at_once_and_not_when_somebody_looks_for_garbage(
    start_worker: Start, table: TappedSessions, monkeypatch: pytest.MonkeyPatch, is_looking: bool
) -> None:
    running = await start_worker()
    gc.collect()
    gc.disable()
    try:
        client = await persistent(running, will=Will("w/c", b"gone", 1))
        await client.subscribe("a/#")
        client.send(Publish("a/b", b"x", 1, packet_id=1))
        await client.next()
        if is_looking:
            # At all sessions, in steps: this one's turn does not come.
            persisting = running.worker.persistent
            assert not list(persisting._looked_at(running.worker.now() + 60, 1))
            monkeypatch.setattr(persisting, "_looked_at", lambda _now, _count: iter(()))
        await client.close()
        await running.until(lambda: running.worker.counters.connections == 0)
        await running.until(lambda: not [o for o in gc.get_objects() if type(o) is Session])
    finally:
        gc.enable()
