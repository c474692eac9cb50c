from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from processes import free_port

from gateway.edge.sockets import ClientSocket
from gateway.ground.receipts import PublishReceipt
from gateway.session.session import Session
from holdmq.client import route
from holdmq.errors import Code, RemoteError
from holdmq.mqtt import MQTT_3_1_1, MQTT_5, Disconnect, PubAck, Publish, Will
from holdmq.record.codec import encode_properties, encode_record
from holdmq.rpc.connection import Connection
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import Command
from holdmq.wire.headers import ProduceResponse

Start = Callable[..., Awaitable[Any]]
REROUTES = ("worker.roster.REROUTE_S", "persistent.retained_puts.REROUTE_S", "publish.topics.TOPIC_WAIT_S")
"""How long a worker waits for a broker without copies."""


async def test_a_publish_is_acknowledged_when_the_log_has_it(start_worker: Start) -> None:
    running = await start_worker()
    running.broker.produce.hold()
    client = await running.client("c1")
    client.send(Publish("devices/1/temp", b"21", 1, packet_id=7))
    while not running.broker.produce.held:
        await asyncio.sleep(0.01)
    assert not client.got
    running.broker.produce.release()
    assert await client.acked(1) == [7]
    assert running.broker.bodies == [b"21"]


async def test_a_subscriber_receives_what_another_client_publishes(start_worker: Start) -> None:
    running = await start_worker()
    subscriber = await running.client("s", MQTT_5)
    assert (await subscriber.subscribe("devices/#")).reason_codes == [1]
    publisher = await running.client("p")
    publisher.send(*[Publish("devices/1/temp", b"%d" % n, 1, packet_id=n + 1) for n in range(20)])
    assert await publisher.acked(20) == list(range(1, 21))
    got = [await subscriber.next() for _ in range(20)]
    assert [message.payload for message in got] == [b"%d" % n for n in range(20)]
    assert {message.topic for message in got} == {"devices/1/temp"}


async def test_a_busy_broker_delays_and_reorders_nothing(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("c1")
    client.send(Publish("d/x", b"first", 1, packet_id=1))
    assert await client.acked(1) == [1]
    running.broker.refuse_next(Code(2), Code(18))
    for n in range(2, 6):
        client.send(Publish("d/x", b"%d" % n, 1, packet_id=n))
        await client.writer.drain()
        await asyncio.sleep(0.01)
    assert await client.acked(4) == [2, 3, 4, 5]
    assert running.broker.bodies == [b"first", b"2", b"3", b"4", b"5"]


async def test_what_was_unanswered_is_sent_again_with_the_same_sequences(start_worker: Start) -> None:
    running = await start_worker()
    broker = running.broker
    client = await running.client("c1")
    client.send(Publish("d/x", b"1", 1, packet_id=1))
    await client.acked(1)
    broker.produce.hold()
    client.send(Publish("d/x", b"2", 1, packet_id=2))
    while not broker.produce.held:
        await asyncio.sleep(0.01)
    broker.produce.held.clear()
    broker.tap.cut()
    broker.produce.let_pass()
    assert await client.acked(1) == [2]
    assert broker.bodies == [b"1", b"2"]
    assert [run.first_sequence for runs in broker.produced for run in runs] == [0, 1, 1]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_a_final_refusal_answers_the_publish(start_worker: Start, version: int) -> None:
    running = await start_worker()
    client = await running.client("c1", version)
    running.broker.refuse_next(Code(16))
    client.send(Publish("d/x", b"no", 1, packet_id=1))
    answer = await client.next()
    if version == MQTT_5:
        assert isinstance(answer, PubAck)
        assert answer.reason_code == 0x87
    else:
        assert answer.packet_ids == [1]
    assert running.broker.bodies == []
    assert running.worker.counters.snapshot()["connections"] == 1


async def test_the_older_connection_of_a_client_id_is_closed(start_worker: Start) -> None:
    running = await start_worker()
    older = await running.client("same", MQTT_5)
    newer = await running.client("same", MQTT_5)
    farewell = await older.next()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason_code == 0x8E
    newer.send(Publish("d/x", b"alive", 1, packet_id=1))
    assert await newer.acked(1) == [1]


async def test_only_the_publishing_connection_waits_for_a_new_topic(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("c1")
    client.send(Publish("fresh/x", b"1", 1, packet_id=1), Publish("fresh/x", b"2", 1, packet_id=2))
    assert await client.acked(2) == [1, 2]
    assert list(running.broker.topics) == ["fresh"]


async def test_what_came_before_a_disconnect_still_goes_to_its_new_topic(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("c1")
    client.send(Publish("fresh/x", b"last words", 0), Disconnect())
    await running.until(lambda: running.broker.bodies == [b"last words"])
    await running.until(lambda: running.worker.counters.sessions == 0)


async def test_past_mqtt_topics_max_messages_go_to_the_shared_topic_and_subscribers_see_them(
    start_worker: Start,
) -> None:
    running = await start_worker(mqtt_topics_max=1)
    subscriber = await running.client("s")
    await subscriber.subscribe("two/#", "one/#")
    client = await running.client("c1")
    client.send(Publish("one/x", b"1", 1, packet_id=1), Publish("two/x", b"2", 1, packet_id=2))
    assert await client.acked(2) == [1, 2]
    assert sorted(running.broker.topics) == ["mqtt-other", "one"]
    assert {(await subscriber.next()).topic, (await subscriber.next()).topic} == {"one/x", "two/x"}


async def test_a_topic_that_brokers_limit_goes_to_the_shared_one_and_others_are_refused(
    start_worker: Start,
) -> None:
    running = await start_worker()
    running.broker.creates.refusal = RemoteError(Code.TOPIC_UNKNOWN, "auto_create_topics is off")
    client = await running.client("c1", MQTT_5)
    client.send(Publish("one/x", b"1", 1, packet_id=1))
    answer = await client.next()
    assert answer.reason_code == 0x87
    assert running.worker.counters.refused["publish_not_authorized"] == 1


async def test_names_that_begin_with_a_dollar_cannot_be_published(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("c1", MQTT_5)
    client.send(Publish("$SYS/x", b"", 1, packet_id=1), Publish("a/b", b"ok", 1, packet_id=2))
    assert (await client.next()).reason_code == 0x90
    assert await client.acked(1) == [2]
    assert running.broker.bodies == [b"ok"]


async def test_a_record_larger_than_the_brokers_limit_is_refused_alone(start_worker: Start) -> None:
    running = await start_worker(packet_max_bytes=8 << 20)
    client = await running.client("c1", MQTT_5)
    client.send(
        Publish("a/b", b"x" * (4 << 20), 1, packet_id=1),
        Publish("a/b", b"small", 1, packet_id=2),
    )
    assert (await client.next()).reason_code == 0x97
    assert await client.acked(1) == [2]
    assert running.broker.bodies == [b"small"]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_record_that_is_too_large_is_answered_though_nothing_follows_it(
    start_worker: Start, version: int, qos: int
) -> None:
    running = await start_worker(packet_max_bytes=8 << 20)
    client = await running.client("c1", version)
    client.send(Publish("a/b", b"known", 1, packet_id=1))
    assert await client.acked(1) == [1]
    client.send(Publish("a/b", b"x" * (4 << 20), qos, packet_id=2))
    assert await client.acked(1) == [2]
    assert running.worker.counters.refused["publish_quota_exceeded"] == 1
    assert running.worker.links["b0"].producer.is_idle
    assert running.broker.bodies == [b"known"]


async def test_a_will_that_is_too_large_is_dropped_and_counted_and_harms_nobody(start_worker: Start) -> None:
    running = await start_worker()
    running.worker.links["b0"].producer.record_max_bytes = 1000
    client = await running.client("c1", MQTT_5, will=Will("a/b", b"x" * 2000, 1))
    client.writer.close()
    await running.until(lambda: running.worker.counters.refused["will_quota_exceeded"] == 1)
    assert running.worker.links["b0"].producer.is_idle


async def test_a_socket_is_not_read_while_its_broker_is_away_and_read_again_when_it_is_back(
    tapped_broker: Any, start_worker: Start
) -> None:
    # One that the system gives to no connection while nobody listens on it.
    await tapped_broker.tap.close()
    await tapped_broker.tap.listen(free_port())
    running = await start_worker()
    broker = running.broker
    client = await running.client("c1")
    client.send(Publish("a/b", b"1", 1, packet_id=1))
    await client.acked(1)
    port = broker.tap.port
    await broker.tap.close()
    link = running.worker.links["b0"]
    await running.until(lambda: link.connection is None)
    client.send(Publish("a/b", b"2", 1, packet_id=2))
    await running.until(lambda: link.held)
    client.send(Publish("a/b", b"3", 1, packet_id=3))
    await asyncio.sleep(0.05)
    assert running.worker.counters.messages_in_qos1_total == 2
    await broker.tap.listen(port)
    assert await client.acked(2) == [2, 3]
    assert broker.bodies == [b"1", b"2", b"3"]


async def test_connections_of_a_broker_that_stays_away_are_closed_without_an_answer(
    start_worker: Start,
) -> None:
    running = await start_worker()
    broker = running.broker
    client = await running.client("c1", MQTT_5)
    client.send(Publish("a/b", b"1", 1, packet_id=1))
    await client.acked(1)
    broker.produce.hold()
    client.send(Publish("a/b", b"2", 1, packet_id=2))
    await running.until(lambda: broker.produce.held)
    for target in running.worker.links["b0"].producer.stuck(running.worker.now()):
        target.progress_at -= 60
    farewell = await client.next()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason_code == 0x89
    other = await running.client("c2")
    broker.produce.let_pass()
    other.send(Publish("a/b", b"3", 1, packet_id=1))
    assert await other.acked(1) == [1]


async def test_an_mqtt_3_client_beyond_its_window_is_not_read_until_it_is_acknowledged(
    start_worker: Start,
) -> None:
    running = await start_worker(receive_max=4)
    running.broker.produce.hold()
    client = await running.client("c1")
    client.send(*[Publish("a/b", b"%d" % n, 1, packet_id=n) for n in range(1, 5)])
    await running.until(lambda: running.broker.produce.held)
    client.send(Publish("a/b", b"5", 1, packet_id=5))
    await asyncio.sleep(0.05)
    assert running.worker.counters.messages_in_qos1_total == 4
    running.broker.produce.release()
    assert await client.acked(5) == [1, 2, 3, 4, 5]


async def test_draining_acknowledges_what_is_on_its_way_and_says_goodbye(start_worker: Start) -> None:
    running = await start_worker(drain_s=60)
    running.broker.produce.hold()
    client = await running.client("c1", MQTT_5)
    client.send(Publish("a/b", b"x", 1, packet_id=1))
    await running.until(lambda: running.broker.produce.held)
    ending = asyncio.get_running_loop().create_task(running.worker.draining.drain())
    (session,) = running.worker.clients.sessions()
    await running.until(lambda: session.is_held)
    running.broker.produce.release()
    assert await client.acked(1) == [1]
    farewell = await client.next()
    assert farewell.reason_code == 0x8B
    await client.close()
    await ending


@pytest.mark.parametrize("is_final", [False, True])
async def test_a_worker_that_drains_says_where_to_go_and_whether_for_good(
    start_worker: Start, is_final: bool
) -> None:
    running = await start_worker(drain_s=60, server_reference="other:1883", drain_is_final=is_final)
    client = await running.client("c1", MQTT_5)
    ending = asyncio.get_running_loop().create_task(running.worker.draining.drain())
    farewell = await client.next()
    assert farewell.reason_code == (0x9D if is_final else 0x9C)
    assert farewell.properties.server_reference == "other:1883"
    await client.close()
    await ending


async def test_who_is_on_the_way_out_is_not_read_so_that_who_goes_on_sending_can_leave(
    start_worker: Start,
) -> None:
    running = await start_worker(drain_s=60)
    running.broker.produce.hold()
    client = await running.client("c1", MQTT_5)
    client.send(Publish("a/b", b"in time", 1, packet_id=1))
    await running.until(lambda: running.broker.produce.held)
    ending = asyncio.get_running_loop().create_task(running.worker.draining.drain())
    (session,) = running.worker.clients.sessions()
    await running.until(lambda: session.is_held)
    client.send(Publish("a/b", b"too late", 1, packet_id=2))
    await asyncio.sleep(0.1)
    running.broker.produce.release()
    assert await client.acked(1) == [1]
    assert (await client.next()).reason_code == 0x8B
    await client.close()
    await ending
    assert running.broker.bodies == [b"in time"]


async def test_beyond_connections_max_a_client_is_told_so(start_worker: Start) -> None:
    running = await start_worker(connections_max=1)
    await running.client("c1")
    refused = await running.client("c2", MQTT_5, refused=True)
    assert refused.connack.reason_code == 0x89
    assert running.worker.counters.refused["server_busy"] == 1


async def test_an_older_connection_of_the_same_client_loses_its_subscriptions_and_sends_its_will(
    start_worker: Start,
) -> None:
    running = await start_worker()
    older = await running.client("same", MQTT_5, will=Will("w/same", b"gone", 1))
    await older.subscribe("x/#")
    await running.client("same", MQTT_5)
    await running.until(lambda: running.broker.bodies == [b"gone"])
    assert running.worker.counters.subscriptions == 0
    await running.until(lambda: running.worker.counters.wills_total == 1)


async def test_brokers_hear_what_a_worker_does(start_worker: Start) -> None:
    running = await start_worker()
    await running.client("c1")
    running.worker.reporting.send_heartbeats()
    await running.until(lambda: any(state["connections"] == 1 for state in running.broker.heartbeats))


async def test_a_broker_that_was_forgotten_and_comes_back_finds_everybody_where_they_were(
    tapped_broker: Any, start_worker: Start
) -> None:
    # One that the system gives to no connection while nobody listens on it.
    broker, port = tapped_broker, free_port()
    await broker.unregister()
    await broker.tap.close()
    await broker.tap.listen(port)
    await broker.register()
    running = await start_worker()
    worker = running.worker
    link = worker.links["b0"]
    subscriber = await running.client("s")
    await subscriber.subscribe("a/#")
    idle = await running.client("idle", MQTT_5)
    eager = await running.client("eager", MQTT_5)
    for client in (idle, eager):
        client.send(Publish("a/b", b"before", 1, packet_id=1))
        assert await client.acked(1) == [1]
        assert (await subscriber.next()).payload == b"before"
    worker.routes.reroute_s = 0.05
    await broker.tap.close()
    await broker.unregister()
    await worker.routes.refresh()
    await running.until(lambda: worker.routes.is_resting("b0", 0.0) and "b0" not in worker.routes._links)
    assert not worker.roster.is_ready
    eager.send(Publish("a/b", b"nowhere to go", 1, packet_id=2))
    farewell = await eager.next()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason_code == 0x89
    await subscriber.subscribe("b/#")
    worker.routes.reroute_s = 10.0
    await broker.append(encode_record(b"a", 0, b"meanwhile", encode_properties([("TAGS", "b")]), 0))
    await broker.tap.listen(port)
    await broker.register()
    await worker.routes.refresh()
    await running.until(lambda: worker.roster.is_ready)
    assert worker.links["b0"] is link
    assert (await subscriber.next()).payload == b"meanwhile"
    idle.send(Publish("b/c", b"after", 1, packet_id=2))
    assert await idle.acked(1) == [2]
    assert b"after" in broker.bodies
    assert {(await subscriber.next()).payload for _ in range(2)} == {b"after", b"nowhere to go"}


@pytest.mark.parametrize("is_run_refused", [True, False])
async def test_devices_notice_nothing_when_another_copy_leads(
    tapped_broker: Any, start_worker: Start, is_run_refused: bool
) -> None:
    broker = tapped_broker
    await broker.unregister()
    broker.lead_epoch = 3
    await broker.register()
    running = await start_worker()
    subscriber = await running.client("s")
    await subscriber.subscribe("a/#")
    client = await running.client("c")
    client.send(*[Publish("a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(3)])
    assert await client.acked(3) == [1, 2, 3]
    # The old leader stores what it can never acknowledge, and says then that it leads no more.
    broker.produce.holds_answers = True
    client.send(Publish("a/b", b"3", 1, packet_id=4))
    await running.until(lambda: broker.produce.held_answers)
    broker.produce.holds_answers = False
    if is_run_refused:
        broker.refuse_next(Code.NOT_LEADER)
    else:
        broker.produce.refusals.append(RemoteError(Code.NOT_LEADER, "the lease ran out"))
    client.send(Publish("a/b", b"4", 1, packet_id=5))
    await running.until(lambda: not running.worker.links["b0"].producer.is_connected)
    await broker.move()
    client.send(Publish("a/b", b"5", 1, packet_id=6))
    assert await client.acked(3) == [4, 5, 6]
    got = [(await subscriber.next()).payload for _ in range(6)]
    assert got == [b"%d" % n for n in range(6)]
    assert broker.bodies == got
    assert running.worker.counters.connections == 2


async def test_who_leads_no_more_is_left_though_nobody_published(
    tapped_broker: Any, start_worker: Start
) -> None:
    broker = tapped_broker
    await broker.unregister()
    broker.lead_epoch = 3
    await broker.register()
    running = await start_worker()
    subscriber = await running.client("s")
    await subscriber.subscribe("a/#")
    await broker.move()
    await broker.append(encode_record(b"a", 0, b"meanwhile", encode_properties([("TAGS", "b")]), 0))
    assert (await subscriber.next()).payload == b"meanwhile"


async def test_connections_wait_for_a_broker_that_has_copies_as_long_as_a_failover_takes(
    tapped_broker: Any, start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = tapped_broker
    await broker.unregister()
    broker.lead_epoch = 3
    await broker.register()
    running = await start_worker()
    running.worker.routes.reroute_s = 0.0
    clients = [await running.client(name, MQTT_5) for name in ("plain", "keeping", "creating")]
    clients[0].send(Publish("a/b", b"first", 1, packet_id=9))
    assert await clients[0].acked(1) == [9]

    def publish(packet_id: int) -> None:
        """To a topic that there is, also retained, and to one that is to be created."""
        clients[0].send(Publish("a/b", b"x", 1, packet_id=packet_id))
        clients[1].send(Publish("a/b", b"x", 1, retain=True, packet_id=packet_id))
        clients[2].send(Publish(f"new{packet_id}/b", b"x", 1, packet_id=packet_id))

    for name in REROUTES:
        monkeypatch.setattr(f"gateway.{name}", 0.0)
    broker.tap.depose()
    publish(1)
    await asyncio.sleep(2.5)
    assert running.worker.counters.connections == 3
    await broker.move()
    for client in clients:
        assert await client.acked(1) == [1]
    monkeypatch.setattr(route, "FAILOVER_S", 0.0)
    broker.tap.depose()
    publish(2)
    for client in clients:
        farewell = await client.next()
        assert isinstance(farewell, Disconnect)
        assert farewell.reason_code == 0x89


async def test_a_broker_that_answers_with_the_wrong_number_of_results_is_connected_again(
    start_worker: Start,
) -> None:
    running = await start_worker()
    broker = running.broker
    client = await running.client("c1")
    client.send(Publish("d/x", b"1", 1, packet_id=1))
    assert await client.acked(1) == [1]

    def leave_one_out(answer: Command) -> None:
        results = ProduceResponse.from_ext(answer.ext_fields).results
        answer.ext_fields = ProduceResponse(results[1:]).to_ext()

    broker.produce.alters.append(leave_one_out)
    client.send(Publish("d/x", b"2", 1, packet_id=2))
    assert await client.acked(1) == [2]
    assert broker.bodies == [b"1", b"2"]
    assert not broker.produce.alters


async def test_what_is_published_after_a_whole_batch_was_refused_is_in_the_log(start_worker: Start) -> None:
    running = await start_worker()
    broker = running.broker
    client, other = await running.client("c1", MQTT_5), await running.client("c2", MQTT_5)
    for each in (client, other):
        each.send(Publish("d/x", b"first", 1, packet_id=1))
        assert await each.acked(1) == [1]
    broker.produce.refusals = [RemoteError(Code.RECORD_TOO_LARGE, "record 0")]
    client.send(Publish("d/x", b"refused", 1, packet_id=2))
    assert isinstance(await client.next(), Disconnect)
    other.send(Publish("d/x", b"second", 1, packet_id=2))
    assert await other.acked(1) == [2]
    assert broker.bodies == [b"first", b"first", b"second"]
    assert running.worker.links["b0"].producer.epochs == 1


@pytest.mark.parametrize("what", ["a topic", "an answer"])
async def test_nothing_stays_of_a_client_that_left_while_its_publishes_waited_for(
    start_worker: Start, what: str
) -> None:
    running = await start_worker()
    broker = running.broker
    waiting = broker.creates if what == "a topic" else broker.produce
    waiting.hold()
    gc.collect()
    gc.disable()
    try:
        client = await running.client("leaves")
        client.send(Publish("a/b", b"last words", 1, packet_id=1))
        await running.until(lambda: waiting.held)
        await client.close()
        if what == "a topic":
            # Nothing is read meanwhile: the gateway learns of the end behind what it read before.
            waiting.release()
        await running.until(lambda: running.worker.counters.connections == 0)
        waiting.release()
        await running.until(lambda: broker.bodies == [b"last words"])
        await running.until(lambda: not [o for o in gc.get_objects() if type(o) is Session])
    finally:
        gc.enable()


async def test_a_batch_is_answered_behind_the_next_one_and_each_client_with_one_write(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_worker()
    broker = running.broker
    clients = {name: await running.client(name) for name in ("first", "lone", "busy", "last")}
    for client in clients.values():
        client.send(Publish("d/x", b"", 1, packet_id=1))
        await client.acked(1)
    producer = running.worker.links["b0"].producer
    seen: list[object] = []
    write, request, settle = ClientSocket.write, Connection.request, PublishReceipt.settle

    def written(self: ClientSocket, data: bytes) -> None:
        seen.append(bytes(data))
        write(self, data)

    def requested(self: Connection, code: int, *rest: Any) -> Any:
        if code == RequestCode.PRODUCE:
            seen.append("next batch")
        return request(self, code, *rest)

    def settled(self: PublishReceipt, outcome: int) -> None:
        seen.append(f"told {self.packet_id}")
        settle(self, outcome)

    async def publish(name: str, packet_id: int) -> None:
        pending = producer.pending_bytes
        clients[name].send(Publish("d/x", b"", 1, packet_id=packet_id))
        await running.until(lambda: producer.pending_bytes > pending)

    broker.produce.hold()
    await publish("first", 2)
    await publish("first", 3)
    await running.until(lambda: len(broker.produce.held) == 2)
    for name, packet_id in (("lone", 4), ("busy", 5), ("busy", 6), ("last", 7)):
        await publish(name, packet_id)
    monkeypatch.setattr(ClientSocket, "write", written)
    monkeypatch.setattr(Connection, "request", requested)
    monkeypatch.setattr(PublishReceipt, "settle", settled)
    broker.produce.release()
    assert await clients["last"].acked(1) == [7]
    assert await clients["busy"].acked(2) == [5, 6]
    assert seen == [
        *("next batch", "told 2", b"\x40\x02\x00\x02"),
        *("told 3", b"\x40\x02\x00\x03"),
        *("told 4", b"\x40\x02\x00\x04"),
        *("told 5", "told 6", b"\x40\x02\x00\x05\x40\x02\x00\x06"),
        *("told 7", b"\x40\x02\x00\x07"),
    ]
