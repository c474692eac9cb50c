"""QoS 2 publishes of persistent sessions at a worker: what the row says before what, and what comes again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tapped_broker import TappedSessions, persistent

from gateway.session import received as received_module
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Properties, Publish, PubRel
from holdmq.record.codec import decode_record
from holdmq.record.once import Once, once_of
from holdmq.wire.session_state import ids_of

Start = Callable[..., Awaitable[Any]]


def publish(body: bytes, packet_id: int, *, dup: bool = False) -> Publish:
    return Publish("d/1", body, 2, packet_id=packet_id, dup=dup)


def notes(running: Any) -> list[Once]:
    return [once for record in running.broker.log if (once := once_of(decode_record(record).properties))]


async def cut(running: Any, client: Any) -> None:
    """The client's connection is lost, and its worker knows."""
    await client.close()
    await running.until(lambda: running.worker.counters.sessions == 0)


async def test_the_row_names_the_queue_before_the_first_publish_goes_there(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    table.writes.holds_answers = True
    client.send(publish(b"a", 1), publish(b"b", 2))
    await running.until(lambda: table.writes.held_answers)
    assert running.broker.log == []
    received = table.state("c").received
    assert received is not None
    assert received.queues["d"][0] == "b0"
    table.writes.release()
    assert await client.acked(2) == [1, 2]
    assert running.broker.bodies == [b"a", b"b"]
    assert [(once.packet_id, once.generation) for once in notes(running)] == [(1, (0, 0)), (2, (0, 0))]


async def test_pubcomp_waits_until_the_row_has_a_higher_generation(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    client.send(publish(b"a", 1), publish(b"b", 2))
    assert await client.acked(2) == [1, 2]
    table.writes.holds_answers = True
    client.send(PubRel(1))
    await running.until(lambda: table.writes.held_answers)
    assert not client.got
    received = table.state("c").received
    assert received is not None
    assert received.base > (0, 0)
    assert [(g, ids_of(r)) for g, r in received.generations] == [((0, 0), [2])], "2 is not released"
    assert ids_of(received.recorded) == [2]
    table.writes.release()
    assert await client.acked(1) == [1]
    client.send(publish(b"c", 1))
    assert await client.acked(1) == [1]
    assert running.broker.bodies == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_what_is_sent_again_over_a_new_connection_is_in_the_log_once(
    start_worker: Start, table: TappedSessions, version: int
) -> None:
    running = await start_worker()
    client = await persistent(running, version=version)
    client.send(publish(b"a", 1))
    assert await client.acked(1) == [1]
    running.broker.produce.hold()
    client.send(publish(b"b", 2), publish(b"c", 3))
    await running.until(lambda: running.broker.produce.held)
    await cut(running, client)
    running.broker.produce.release()
    await running.until(lambda: len(running.broker.log) == 3)
    client = await persistent(running, version=version)
    client.send(
        publish(b"a", 1, dup=True), publish(b"b", 2, dup=True), publish(b"c", 3, dup=True), publish(b"d", 4)
    )
    assert sorted(await client.acked(4)) == [1, 2, 3, 4]
    assert running.broker.bodies == [b"a", b"b", b"c", b"d"]
    assert running.worker.counters.messages_repeated_total == 1, "what the row has is answered from it"
    assert running.broker.server.produce.received.repeats == 2
    client.send(*(PubRel(i) for i in (1, 2, 3, 4)))
    assert await client.acked(4) == [1, 2, 3, 4]
    client.send(publish(b"e", 2))
    assert await client.acked(1) == [2]
    assert running.broker.bodies[-1] == b"e"


async def test_a_release_whose_answer_was_lost_is_answered_again(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    client.send(publish(b"a", 7))
    assert await client.acked(1) == [7]
    table.writes.holds_answers = True
    client.send(PubRel(7))
    await running.until(lambda: table.writes.held_answers)
    await cut(running, client)
    table.writes.release()
    client = await persistent(running)
    client.send(PubRel(7))
    assert await client.acked(1) == [7]
    client.send(publish(b"b", 7))
    assert await client.acked(1) == [7]
    assert running.broker.bodies == [b"a", b"b"]


@pytest.mark.interpreted
async def test_a_session_that_ended_in_order_names_no_queue(
    start_worker: Start, table: TappedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker()
    client = await persistent(running)
    client.send(publish(b"a", 1), publish(b"b", 2))
    assert await client.acked(2) == [1, 2]
    client.send(PubRel(1))
    assert await client.acked(1) == [1]
    await cut(running, client)
    received = table.state("c").received
    assert received is not None
    assert list(received.queues) == ["d"], "2 is unreleased"
    client = await persistent(running)
    client.send(PubRel(2))
    assert await client.acked(1) == [2]
    monkeypatch.setattr(received_module, "WHOLE_FROM", 20)
    for n in range(3, 25):
        client.send(publish(b"x", n))
        assert await client.acked(1) == [n]
        client.send(PubRel(n))
        assert await client.acked(1) == [n]
    await cut(running, client)
    # The end is told after the connection is gone.
    await running.until(lambda: table.state("c").received.queues == {})  # type: ignore[union-attr]
    received = table.state("c").received
    assert received is not None
    assert (received.generations, received.recorded) == ([], [])


async def test_a_session_keeps_its_queue_while_an_id_is_unreleased(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    await running.broker.stack.create("d", 1, 1)
    client = await persistent(running)
    client.send(publish(b"a", 1))
    assert await client.acked(1) == [1]
    received = table.state("c").received
    assert received is not None
    was = received.queues["d"]
    running.worker.links["b0"].producer.target("d", 5)
    await cut(running, client)
    located = running.worker.topics.locate("d", "c", ("b0", was[1]))
    assert (located.queue_id, located.topic) == (was[1], "d")
    assert running.worker.topics.locate("d", "c", ("gone", 9)) is running.worker.topics.locate("d", "c")
    assert running.worker.topics.locate("d", "c", ("b0", 99)).producer is located.producer


async def test_a_session_that_comes_back_for_its_end_only_repeats_nothing(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    client = await persistent(running)
    running.broker.produce.hold()
    client.send(publish(b"a", 1))
    await running.until(lambda: running.broker.produce.held)
    await cut(running, client)
    running.broker.produce.release()
    client = await persistent(running, properties=Properties())
    assert client.connack.session_present
    client.send(publish(b"a", 1, dup=True))
    assert await client.acked(1) == [1]
    assert running.broker.bodies == [b"a"]
    client.send(PubRel(1))
    assert await client.acked(1) == [1]


async def test_clean_sessions_and_lower_qos_write_nothing_down(
    start_worker: Start, table: TappedSessions
) -> None:
    running = await start_worker()
    clean = await running.client("clean", MQTT_5, clean_start=True)
    clean.send(publish(b"a", 1))
    assert await clean.acked(1) == [1]
    clean.send(PubRel(1))
    assert await clean.acked(1) == [1]
    client = await persistent(running)
    client.send(Publish("d/1", b"b", 1, packet_id=1), Publish("d/1", b"c", 0))
    assert await client.acked(1) == [1]
    await running.until(lambda: len(running.broker.log) == 3)
    assert notes(running) == []
    assert table.changes == []


@pytest.mark.interpreted
async def test_a_session_publishes_to_so_many_log_topics(
    start_worker: Start, table: TappedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received_module, "QUEUES_MAX", 2)
    running = await start_worker()
    client = await persistent(running)
    for n in range(2):
        client.send(Publish(f"t{n}/x", b"", 2, packet_id=n + 1))
        assert await client.acked(1) == [n + 1]
    client.send(Publish("t3/x", b"", 2, packet_id=3))
    assert (await client.next()).reason_code == 0x97
    assert running.worker.counters.refused["publish_topics"] == 1
