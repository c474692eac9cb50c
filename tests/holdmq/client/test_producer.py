from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdmq.client import Message, Producer, SendResult, TopicQueue
from holdmq.client import lanes as lanes_module
from holdmq.client import sender as sender_module
from holdmq.errors import (
    BatchError,
    Code,
    RecordError,
    RemoteError,
    RequestTimeout,
    TransportError,
    UsageError,
)
from holdmq.names.topics import queue_of_key
from holdmq.produce import PRODUCE_MAX_BYTES, pauses
from holdmq.record.codec import SYS_COMPRESSED, decode_record
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import BoundsChangedRequest


@pytest.fixture
async def producer(registries: list[str]) -> AsyncIterator[Producer]:
    producer = Producer(registries, send_timeout_s=60)
    yield producer
    await producer.close(timeout_s=1)


def message(i: int | str, topic: str = "t", **fields: Any) -> Message:
    return Message(topic, str(i).encode(), **fields)


async def test_a_message_is_stored_with_everything_it_carries(producer: Producer, broker: Any) -> None:
    sent = Message("t", b"21", "42/temp", ("k1", "k2"), {"unit": "C"}, flag=7, client_id="me")
    result = await producer.send(sent)
    queue = result.queue
    stored = decode_record(broker.logs[(queue.topic, queue.queue_id)][0]).to_message("broker-0")
    assert result.queue_offset == 0
    assert result.message_id is not None
    assert result.message_id.store_id == b"fakestor"
    assert (stored.topic, stored.body, stored.tag, stored.keys) == ("t", b"21", "42/temp", ("k1", "k2"))
    assert (stored.properties, stored.flag, stored.client_id) == ({"unit": "C"}, 7, "me")
    assert stored.unique_id == sent.unique_id is not None
    assert stored.born_ms == sent.born_ms > 0


async def test_a_topic_is_created_on_every_broker_when_it_is_first_used(
    producer: Producer, make_broker: Any
) -> None:
    one, two = await make_broker("a"), await make_broker("b")
    await producer.send(message(1, "fresh"))
    assert "fresh" in one.topics
    assert "fresh" in two.topics
    route = producer.routes.get("fresh")
    assert route is not None
    assert len(route.write_queues) == 4


async def test_what_is_sent_in_one_turn_leaves_in_one_request(producer: Producer, broker: Any) -> None:
    await producer.send(message("first"))
    before = len(broker.produces)
    results = await asyncio.gather(*(producer.send(message(i)) for i in range(100)))
    assert len(broker.produces) == before + 1
    assert sum(run.records for run in broker.produces[-1]) == 100
    assert len({(r.queue, r.queue_offset) for r in results}) == 100


async def test_a_large_batch_leaves_in_requests_of_a_mebibyte(producer: Producer, broker: Any) -> None:
    queue = (await producer.send(message("first"))).queue
    before = len(broker.produces)
    results = await producer.send_batch([Message("t", bytes(1000)) for _ in range(5000)], queue=queue)
    requests = broker.produces[before:]
    assert len(requests) == 6
    assert all(sum(run.records for run in runs) * 1100 <= 1.05 * PRODUCE_MAX_BYTES for runs in requests)
    assert [r.queue_offset for r in results] == list(range(1, 5001))


async def test_a_key_chooses_its_queue_and_keeps_its_order(producer: Producer, make_broker: Any) -> None:
    brokers = {b.name: b for b in (await make_broker("a"), await make_broker("b"))}
    results = await asyncio.gather(*(producer.send(message(i), key=f"k{i % 7}") for i in range(70)))
    route = producer.routes.get("t")
    assert route is not None
    queues = [(q.broker, q.queue_id) for q in route.write_queues]
    for i, result in enumerate(results):
        assert (result.queue.broker, result.queue.queue_id) == queue_of_key(f"k{i % 7}", queues)
        log = brokers[result.queue.broker].logs[("t", result.queue.queue_id)]
        assert decode_record(log[result.queue_offset]).body == str(i).encode()
    for k in range(7):
        offsets = [r.queue_offset for r in results[k::7]]
        assert offsets == sorted(offsets)


async def test_a_message_s_own_key_is_the_default_and_a_given_queue_goes_first(
    producer: Producer, broker: Any
) -> None:
    by_key = await producer.send(message(1), key="device-1")
    assert (await producer.send(message(2, keys=("device-1", "x")))).queue == by_key.queue
    other = TopicQueue("t", "broker-0", 1 - by_key.queue.queue_id)
    assert (await producer.send(message(3), key="device-1", queue=other)).queue == other


async def test_without_a_key_queues_take_turns(producer: Producer, broker: Any) -> None:
    results = [await producer.send(message(i)) for i in range(6)]
    assert {r.queue.queue_id for r in results} == {0, 1}
    assert results[0].queue == results[2].queue == results[4].queue


async def test_a_batch_without_keys_stays_together_and_in_order(producer: Producer, broker: Any) -> None:
    results = await producer.send_batch([message(i) for i in range(50)])
    assert len({r.queue for r in results}) == 1
    assert [r.queue_offset for r in results] == list(range(50))
    assert broker.bodies("t") == [str(i).encode() for i in range(50)]
    assert await producer.send_batch([]) == []


@pytest.mark.parametrize("act", ["busy", "each_run_busy", "store_failed", "body_crc", "lost", "unanswered"])
async def test_order_survives_a_refusal_while_more_is_in_flight(
    producer: Producer, broker: Any, acts: Any, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = (await producer.send(message("first"), key="k")).queue
    if act == "unanswered":
        monkeypatch.setattr(sender_module, "PRODUCE_TIMEOUT_S", 3.0)
    broker.acts.append(
        {
            "busy": acts.busy,
            "each_run_busy": acts.each_run(Code.BUSY),
            "store_failed": acts.each_run(Code.STORE_FAILED),
            "body_crc": acts.refuse_whole(Code.BODY_CRC),
            "lost": acts.lose_request,
            "unanswered": acts.ignore,
        }[act]
    )
    sends = []
    for i in range(20):
        sends.append(asyncio.ensure_future(producer.send(message(i), key="k")))
        await asyncio.sleep(0)
    results = await asyncio.gather(*sends)
    assert [r.queue_offset for r in results] == list(range(1, 21))
    assert broker.bodies("t", queue.queue_id) == [b"first"] + [str(i).encode() for i in range(20)]
    assert producer.sender is not None
    runs = {run.first_sequence for request in broker.produces for run in request}
    assert 0 < producer.sender.resends <= len(runs)


async def test_nothing_new_is_sent_while_a_run_must_be_resent_first(
    producer: Producer, broker: Any, acts: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BACKOFF_MIN_S", "BACKOFF_MAX_S"):
        monkeypatch.setattr(pauses, name, 3600.0)
    await producer.send(message("first"), key="k")
    assert producer.sender is not None
    (lane,) = producer.sender._lanes.values()
    broker.acts.append(acts.busy)
    sends = [asyncio.ensure_future(producer.send(message(0), key="k"))]
    await until(lambda: lane.is_stalled)
    sends += [asyncio.ensure_future(producer.send(message(i), key="k")) for i in range(1, 5)]
    await until(lambda: len(lane.waiting) == 4)
    await asyncio.sleep(0.05)
    assert (len(broker.produces), len(lane.waiting)) == (2, 4)
    lane.resend_at = 0.0
    assert [r.queue_offset for r in await asyncio.gather(*sends)] == [1, 2, 3, 4, 5]
    assert len(broker.produces) <= 4


async def test_unanswered_runs_of_a_queue_are_bounded(
    producer: Producer, broker: Any, acts: Any, until: Any
) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.extend([acts.ignore] * 100)
    sends = []
    for i in range(60):
        sends.append(asyncio.ensure_future(producer.send(message(i), key="k")))
        await asyncio.sleep(0.002)
    await until(lambda: len(broker.produces) == 1 + lanes_module.RUNS_IN_FLIGHT_MAX)
    await asyncio.sleep(0.05)
    assert len(broker.produces) == 1 + lanes_module.RUNS_IN_FLIGHT_MAX
    broker.acts.clear()
    broker.close_connections()
    results = await asyncio.gather(*sends)
    assert [r.queue_offset for r in results] == list(range(1, 61))


async def test_a_lost_answer_is_asked_for_again_and_nothing_is_stored_twice(
    producer: Producer, broker: Any, acts: Any
) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.append(acts.lose_answer)
    results = await asyncio.gather(*(producer.send(message(i), key="k") for i in range(5)))
    assert broker.bodies("t") == [b"first", b"0", b"1", b"2", b"3", b"4"]
    assert [r.queue_offset for r in results] == [1, 2, 3, 4, 5]


async def test_a_broker_that_restarts_elsewhere_gets_what_waited(producer: Producer, broker: Any) -> None:
    await producer.send(message("first"), key="k")
    await broker.stop()
    sends = [asyncio.ensure_future(producer.send(message(i), key="k")) for i in range(5)]
    await asyncio.sleep(0.1)
    await broker.restart()
    await asyncio.gather(*sends)
    assert broker.bodies("t") == [b"first", b"0", b"1", b"2", b"3", b"4"]


async def test_a_broker_that_forgot_its_windows_is_met_with_a_new_epoch(
    producer: Producer, broker: Any, acts: Any
) -> None:
    queue = (await producer.send(message("first"), key="k")).queue
    key = (producer.producer_id, "t", queue.queue_id)
    broker.sequences.offer(key, 1, 0, 1, 0.0)
    broker.sequences._windows[key].next = 0
    broker.sequences._windows[key].batches.clear()
    result = await producer.send(message("second"), key="k")
    assert result.queue_offset == 1
    assert broker.produces[-1][0].producer_epoch == 2
    assert (await producer.send(message("third"), key="k")).queue_offset == 2


async def test_a_final_refusal_of_a_run_fails_it_and_lets_the_next_through(
    producer: Producer, broker: Any, acts: Any
) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.append(acts.each_run(Code.TOPIC_PERM))
    with pytest.raises(RemoteError, match="TOPIC_PERM"):
        await producer.send(message("bad"), key="k")
    assert (await producer.send(message("good"), key="k")).queue_offset == 1


async def test_a_final_refusal_of_a_whole_request_starts_a_new_epoch(
    producer: Producer, broker: Any, acts: Any
) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.append(acts.refuse_whole(Code.MALFORMED_BATCH))
    bad = asyncio.ensure_future(producer.send(message("bad"), key="k"))
    await asyncio.sleep(0)
    with pytest.raises(RemoteError, match="MALFORMED_BATCH"):
        await bad
    assert (await producer.send(message("good"), key="k")).queue_offset == 1
    assert broker.bodies("t") == [b"first", b"good"]


async def test_a_message_for_a_queue_that_is_gone_goes_to_one_that_is_there(
    producer: Producer, broker: Any, until: Any
) -> None:
    await broker.add_topic("t", 8)
    await producer.send(message("first"))
    await broker.add_topic("t", 1)
    results = await asyncio.gather(*(producer.send(message(i), key=f"k{i}") for i in range(20)))
    assert {r.queue.queue_id for r in results} == {0}
    assert len(broker.bodies("t")) == 21


async def test_a_named_queue_that_is_gone_is_an_error(producer: Producer, broker: Any) -> None:
    await producer.send(message("first"))
    with pytest.raises(RemoteError, match="QUEUE_UNKNOWN"):
        await producer.send(message(1), queue=TopicQueue("t", "broker-0", 9))


async def test_keys_of_an_absent_broker_go_to_the_next_in_rank_after_a_while(
    registries: list[str], make_broker: Any
) -> None:
    one, _ = await make_broker("a"), await make_broker("b")
    async with Producer(registries, send_timeout_s=60) as producer:
        results = await asyncio.gather(*(producer.send(message(i), key=f"k{i}") for i in range(20)))
        of_one = [i for i, r in enumerate(results) if r.queue.broker == "a"]
        assert 0 < len(of_one) < 20
        producer.routes.reroute_s = 0.3
        await one.stop()
        again = await asyncio.gather(*(producer.send(message(i), key=f"k{i}") for i in range(20)))
        assert {r.queue.broker for r in again} == {"b"}
        kept = [i for i in range(20) if i not in of_one]
        assert [again[i].queue for i in kept] == [results[i].queue for i in kept]


async def test_a_send_ends_at_its_deadline(producer: Producer, broker: Any, acts: Any) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.extend([acts.busy] * 1000)
    with pytest.raises(RequestTimeout, match="may be stored"):
        await producer.send(message("late"), key="k", timeout_s=2.0)
    broker.acts.clear()
    assert producer.sender is not None
    result = await producer.send(message("next"), key="k")
    assert result.queue_offset == 1
    assert broker.bodies("t") == [b"first", b"next"]
    assert producer.sender.room.taken_bytes == 0


async def test_without_a_registry_the_error_names_it() -> None:
    async with Producer(["127.0.0.1:1"], send_timeout_s=2.0) as producer:
        with pytest.raises(TransportError, match="registry"):
            await producer.send(message(1))


async def test_a_topic_that_may_not_be_created_is_refused(producer: Producer, broker: Any) -> None:
    broker.auto_create = False
    with pytest.raises(RemoteError, match="auto_create_topics is off"):
        await producer.send(message(1))


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (Message("a.b", b""), "letters"),
        (Message("%SESSION", b""), "system topic"),
        (Message("t", b"", "a/+"), "no MQTT topic"),
    ],
)
async def test_a_message_that_no_client_may_send_is_refused_here(
    producer: Producer, broker: Any, bad: Message, fault: str
) -> None:
    with pytest.raises(UsageError, match=fault):
        await producer.send(bad)
    assert broker.produces == []


@pytest.mark.parametrize("queue_id", [-1, 1 << 31])
async def test_a_queue_that_no_topic_can_have_is_refused_here(producer: Producer, queue_id: int) -> None:
    with pytest.raises(UsageError, match="cannot go to queue"):
        await producer.send(message(1), queue=TopicQueue("t", "broker-0", queue_id))


async def test_a_message_over_the_broker_s_limit_fails_alone(producer: Producer, broker: Any) -> None:
    broker.record_max_bytes = 1000
    good, bad = await asyncio.gather(
        producer.send(message("good"), key="k"),
        producer.send(Message("t", bytes(2000)), key="k"),
        return_exceptions=True,
    )
    assert isinstance(good, SendResult)
    assert isinstance(bad, RecordError)
    assert bad.code == Code.RECORD_TOO_LARGE
    assert (await producer.send(message("next"), key="k")).queue_offset == 1


async def test_a_message_below_the_broker_s_least_size_fails_alone_as_soon_as_the_broker_says_so(
    producer: Producer, broker: Any
) -> None:
    assert (await producer.send(Message("t", b"ab"), key="k")).queue_offset == 0
    for connection in broker.rpc.connections:
        connection.send_one_way(RequestCode.BOUNDS_CHANGED, BoundsChangedRequest(3))
    while producer.routes.link("broker-0").client.hello.message_bytes_min != 3:  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
    good, bad = await asyncio.gather(
        producer.send(Message("t", b"abc"), key="k"),
        producer.send(Message("t", b"ab"), key="k"),
        return_exceptions=True,
    )
    assert isinstance(good, SendResult)
    assert isinstance(bad, RecordError)
    assert bad.code == Code.MESSAGE_TOO_SMALL
    assert str(bad) == "a message of 2 bytes; the broker's message_bytes_min is 3"
    assert (await producer.send(Message("t", b"next"), key="k")).queue_offset == 2


async def test_a_batch_tells_which_messages_were_not_stored(producer: Producer, broker: Any) -> None:
    broker.record_max_bytes = 1000
    await producer.send(message("first"))
    batch = [message(0, keys=("a",)), Message("t", bytes(2000), keys=("b",)), message(2, "u")]
    with pytest.raises(BatchError, match="1 of 3") as caught:
        await producer.send_batch(batch)
    assert [isinstance(result, SendResult) for result in caught.value.results] == [True, False, True]


async def test_bytes_in_hand_are_bounded_and_senders_wait_their_turn(
    registries: list[str], broker: Any, acts: Any
) -> None:
    async with Producer(registries, outstanding_max_bytes=5000) as producer:
        await producer.send(message("first"), key="k")
        assert producer.sender is not None
        broker.acts.extend([acts.busy] * 3)
        sends = [asyncio.ensure_future(producer.send(Message("t", bytes(1500)), key="k")) for _ in range(9)]
        highest = 0
        while not all(send.done() for send in sends):
            highest = max(highest, producer.sender.room.taken_bytes)
            await asyncio.sleep(0.005)
        assert 3000 < highest <= 5000
        assert producer.sender.room.waits >= 6
        assert [s.result().queue_offset for s in sends] == list(range(1, 10))
        assert producer.sender.room.taken_bytes == 0


async def test_a_message_larger_than_the_bound_goes_alone(registries: list[str], broker: Any) -> None:
    async with Producer(registries, outstanding_max_bytes=1000) as producer:
        results = await asyncio.gather(*(producer.send(Message("t", bytes(3000)), key="k") for _ in range(3)))
        assert [r.queue_offset for r in results] == [0, 1, 2]


async def test_a_send_that_finds_no_room_ends_at_its_deadline(
    registries: list[str], broker: Any, acts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "BACKOFF_MIN_S", 0.6)
    async with Producer(registries, outstanding_max_bytes=2000, send_timeout_s=60) as producer:
        await producer.send(message("first"), key="k")
        broker.acts.append(acts.busy)
        first = asyncio.ensure_future(producer.send(Message("t", bytes(1500)), key="k"))
        await asyncio.sleep(0)
        with pytest.raises(RequestTimeout, match="no room"):
            await producer.send(Message("t", bytes(1500)), key="k", timeout_s=0.1)
        assert (await first).queue_offset == 1


async def test_closing_waits_for_what_is_in_hand(registries: list[str], broker: Any, acts: Any) -> None:
    producer = Producer(registries)
    await producer.send(message("first"))
    broker.acts.append(acts.busy)
    sends = [asyncio.ensure_future(producer.send(message(i))) for i in range(5)]
    await asyncio.sleep(0)
    await producer.close()
    assert len(await asyncio.gather(*sends)) == 5
    with pytest.raises(UsageError, match="closed"):
        await producer.send(message("late"))


async def test_closing_at_once_fails_what_is_not_stored(
    registries: list[str], broker: Any, acts: Any
) -> None:
    producer = Producer(registries)
    await producer.send(message("first"))
    broker.acts.extend([acts.busy] * 1000)
    send = asyncio.ensure_future(producer.send(message("late")))
    await asyncio.sleep(0.01)
    await producer.close(timeout_s=0.05)
    with pytest.raises(TransportError, match="closed before"):
        await send


# Other ways to send


async def test_messages_in_hand_go_without_a_task_for_each(producer: Producer, broker: Any) -> None:
    await producer.send(message("first"), key="k")
    tasks = len(asyncio.all_tasks())
    futures = [await producer.send_async(message(i), key="k") for i in range(500)]
    assert len(asyncio.all_tasks()) == tasks
    results = await asyncio.gather(*futures)
    assert [r.queue_offset for r in results] == list(range(1, 501))
    assert len(broker.produces) <= 3


async def test_a_future_has_the_refusal(producer: Producer, broker: Any, acts: Any) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.append(acts.each_run(Code.TOPIC_PERM))
    future = await producer.send_async(message(1), key="k")
    with pytest.raises(RemoteError, match="TOPIC_PERM"):
        await future


async def test_one_way_messages_keep_their_order_and_their_fate_is_counted(
    producer: Producer, broker: Any, acts: Any, until: Any
) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.append(acts.busy)
    for i in range(20):
        await producer.send_one_way(message(i), key="k")
    assert (await producer.send(message("last"), key="k")).queue_offset == 21
    assert broker.bodies("t")[1:21] == [str(i).encode() for i in range(20)]
    assert producer.numbers()["one_way_stored_total"] == 20
    broker.acts.append(acts.each_run(Code.TOPIC_PERM))
    await producer.send_one_way(message("refused"), key="k")
    await until(lambda: producer.numbers()["one_way_failed_total"] == 1)
    with pytest.raises(UsageError):
        await producer.send_one_way(Message("a.b", b""))


async def test_bodies_are_stored_in_order_in_one_queue(producer: Producer, broker: Any) -> None:
    bodies = [b"%d" % i * (i % 50) for i in range(30_000)]
    runs = await producer.send_bodies("t", bodies, tag="a/b", key="k")
    (queue,) = {run.queue for run in runs}
    assert [run.first_offset for run in runs] == [sum(r.messages for r in runs[:i]) for i in range(len(runs))]
    log = [decode_record(record).to_message() for record in broker.logs[("t", queue.queue_id)]]
    assert [m.body for m in log] == bodies
    assert {m.tag for m in log} == {"a/b"}
    assert len({m.unique_id for m in log}) == 30_000
    assert all(m.born_ms for m in log)
    assert await producer.send_bodies("t", []) == []


async def test_large_bodies_are_compressed_whichever_way_they_are_sent(
    producer: Producer, broker: Any
) -> None:
    body = b"12.5;" * 2000
    await producer.send(Message("t", body), key="k")
    await producer.send_bodies("t", [body, b"small"], key="k")
    await producer.send_batch([Message("t", body)], key="k")
    records = [decode_record(record) for log in broker.logs.values() for record in log]
    assert [record.to_message().body for record in records] == [body, body, b"small", body]
    assert [bool(record.sys_flag & SYS_COMPRESSED) for record in records] == [True, True, False, True]
    assert sum(record.total_size for record in records) < 5000


async def test_compression_can_be_turned_off(registries: list[str], broker: Any) -> None:
    async with Producer(registries, compress_min_bytes=0) as producer:
        await producer.send(Message("t", bytes(10_000)))
    assert broker.bodies("t") == [bytes(10_000)]
    with pytest.raises(UsageError, match="compress_level"):
        Producer(registries, compress_level=10)


async def test_bodies_that_are_refused_are_told_one_by_one(
    producer: Producer, broker: Any, acts: Any
) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.append(acts.each_run(Code.TOPIC_PERM))
    with pytest.raises(BatchError, match="3 of 3") as caught:
        await producer.send_bodies("t", [b"1", b"2", b"3"], key="k")
    assert len(caught.value.results) == 3
    assert [run.first_offset for run in await producer.send_bodies("t", [b"4"], key="k")] == [1]


async def test_two_tasks_that_wait_for_a_new_topic_go_on_in_their_order(
    producer: Producer, broker: Any
) -> None:
    sends = []
    for i in range(200):
        sends.append(asyncio.ensure_future(producer.send(message(i, "fresh"), key="k")))
        if i % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*sends)
    assert broker.bodies("fresh") == [str(i).encode() for i in range(200)]
    assert producer._turnstiles == {}


@pytest.mark.parametrize("tag", [None, "a/b"])
async def test_a_plain_batch_is_as_one_by_one(producer: Producer, broker: Any, tag: str | None) -> None:
    plain = [Message("t", b"%d" % i * 40, tag) for i in range(20_000)]
    results = await producer.send_batch(plain, key="k")
    (queue,) = {result.queue for result in results}
    stored = [decode_record(r).to_message() for r in broker.logs[("t", queue.queue_id)]]
    assert [(m.body, m.tag, m.unique_id, m.born_ms) for m in stored] == [
        (m.body, m.tag, m.unique_id, m.born_ms) for m in plain
    ]
    assert len({m.unique_id for m in plain}) == 20_000
    assert [result.queue_offset for result in results] == list(range(20_000))
    assert all(result.message_id is not None for result in results)
    mixed = [Message("t", b"x", "a"), Message("t", b"y", "b"), Message("u", b"z")]
    assert [r.queue.topic for r in await producer.send_batch(mixed)] == ["t", "t", "u"]
