"""How messages reach their brokers: refusals, silence, absence, queues that go away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdmq.client import Message, Producer
from holdmq.client import sender as sender_module
from holdmq.errors import Code, RemoteError, RequestTimeout
from holdmq.produce import pauses
from holdmq.record.codec import decode_record
from holdmq.wire.headers import TopicRow


@pytest.fixture
async def producer(registries: list[str]) -> AsyncIterator[Producer]:
    producer = Producer(registries, send_timeout_s=60)
    yield producer
    await producer.close(timeout_s=1)


def message(i: int | str, topic: str = "t", **fields: Any) -> Message:
    return Message(topic, str(i).encode(), **fields)


@pytest.fixture
async def pair(registries: list[str], make_broker: Any) -> AsyncIterator[tuple[Producer, dict[str, Any]]]:
    """A producer that knows brokers a and b, both connected, and reroutes after 0.8 s."""
    brokers = {name: await make_broker(name) for name in "ab"}
    async with Producer(registries, send_timeout_s=60) as producer:
        await asyncio.gather(*(producer.send(message("first"), key=str(i)) for i in range(16)))
        producer.routes.reroute_s = 0.8
        yield producer, brokers
        await producer.close(timeout_s=1)


def key_of(producer: Producer, broker: str) -> str:
    assert producer.sender is not None
    choice = producer.sender.choice
    return next(k for k in map(str, range(1000)) if choice.of_key("t", k).broker == broker)


@pytest.mark.parametrize("code", [Code.STORE_FULL, Code.BUSY, Code.STORE_FAILED, Code.NOT_ENOUGH_REPLICAS])
async def test_what_needs_no_certain_queue_leaves_a_broker_that_refuses(
    pair: tuple[Producer, dict[str, Any]], acts: Any, code: Code
) -> None:
    producer, brokers = pair
    brokers["a"].acts.extend([acts.each_run(code)] * 1000)
    results = await asyncio.gather(*(producer.send(message(i)) for i in range(8)))
    assert {r.queue.broker for r in results} == {"b"}
    again = [await producer.send(message(i)) for i in range(8)]
    assert {r.queue.broker for r in again} == {"b"}
    assert producer.numbers()["broker_rests_total"] >= 1
    brokers["a"].acts.clear()
    key = key_of(producer, "a")
    assert (await producer.send(message("keyed"), key=key)).queue.broker == "a"
    assert len(brokers["a"].bodies("t")) + len(brokers["b"].bodies("t")) == 16 + 16 + 1


@pytest.mark.parametrize("is_whole", [True, False])
async def test_unanswered_messages_are_sent_again_to_who_leads_next(
    registries: list[str], broker: Any, acts: Any, until: Any, is_whole: bool
) -> None:
    broker.lead_epoch = 1
    async with Producer(registries, send_timeout_s=60) as producer:
        await producer.send(message("first"), key="k")
        not_leader = (acts.refuse_whole if is_whole else acts.each_run)(Code.NOT_LEADER)
        broker.acts.extend([acts.keep_answer, not_leader, *[acts.refuse_whole(Code.NOT_LEADER)] * 1000])
        sends = []
        for i in range(20):
            sends.append(asyncio.ensure_future(producer.send(message(i), key="k")))
            await asyncio.sleep(0.01)
        await until(lambda: len(broker.acts) <= 998)
        before = len(broker.produces)
        await asyncio.sleep(0.5)
        assert len(broker.produces) - before < 10, "who leads no more is asked less and less often"
        broker.acts.clear()
        await broker.move()
        results = await asyncio.gather(*sends)
        assert [r.queue_offset for r in results] == list(range(1, 21))
        (queue_id,) = {r.queue.queue_id for r in results}
        assert broker.bodies("t", queue_id) == [b"first", *(str(i).encode() for i in range(20))]
        assert producer.numbers()["reroutes_total"] == 0


@pytest.mark.parametrize("is_whole", [True, False])
async def test_without_enough_replicas_messages_are_sent_again_later(
    registries: list[str], broker: Any, acts: Any, is_whole: bool
) -> None:
    refuse = (acts.refuse_whole if is_whole else acts.each_run)(Code.NOT_ENOUGH_REPLICAS)
    async with Producer(registries, send_timeout_s=60) as producer:
        await producer.send(message("first"), key="k")
        broker.acts.extend([refuse] * 4)
        began = asyncio.get_running_loop().time()
        results = await asyncio.gather(*(producer.send(message(i), key="k") for i in range(5)))
        assert [r.queue_offset for r in results] == list(range(1, 6))
        # Pauses that double, by half shorter at most.
        assert asyncio.get_running_loop().time() - began >= pauses.BACKOFF_MIN_S * (1 + 2 + 4 + 8) / 2


async def test_a_message_that_a_copy_may_have_stays_with_its_broker(
    pair: tuple[Producer, dict[str, Any]], acts: Any
) -> None:
    producer, brokers = pair
    brokers["a"].acts.extend([acts.each_run(Code.NOT_LEADER)] * 3)
    results = await asyncio.gather(*(producer.send(message(i)) for i in range(8)))
    assert {r.queue.broker for r in results} == {"a", "b"}
    assert producer.numbers()["reroutes_total"] == 0


async def test_keys_wait_for_a_broker_that_refuses_in_their_order(
    pair: tuple[Producer, dict[str, Any]], acts: Any
) -> None:
    producer, brokers = pair
    key = key_of(producer, "a")
    brokers["a"].acts.extend([acts.each_run(Code.STORE_FAILED)] * 5)
    sends = []
    for i in range(40):
        sends.append(asyncio.ensure_future(producer.send(message(i), key=key if i % 2 else None)))
        await asyncio.sleep(0.01)
    results = await asyncio.gather(*sends)
    assert {r.queue.broker for r in results[1::2]} == {"a"}
    offsets = [r.queue_offset for r in results[1::2]]
    assert offsets == sorted(offsets)
    stored = brokers["a"].bodies("t") + brokers["b"].bodies("t")
    assert sorted(b for b in stored if b != b"first") == sorted(str(i).encode() for i in range(40))


async def test_a_silent_broker_is_avoided_first_and_its_keys_go_elsewhere_in_order_later(
    pair: tuple[Producer, dict[str, Any]], acts: Any
) -> None:
    producer, brokers = pair
    key = key_of(producer, "a")
    brokers["a"].acts.extend([acts.ignore] * 1000)
    sends = []
    for i in range(60):
        sends.append(asyncio.ensure_future(producer.send(message(i), key=key)))
        sends.append(asyncio.ensure_future(producer.send(message(f"free {i}"))))
        await asyncio.sleep(0.03)
    results = await asyncio.gather(*sends)
    assert {r.queue.broker for r in results} == {"b"}
    (queue,) = {r.queue for r in results[::2]}
    mine = {str(i).encode() for i in range(60)}
    assert [b for b in brokers["b"].bodies("t", queue.queue_id) if b in mine] == sorted(mine, key=int)


async def test_without_another_broker_a_silent_one_gets_everything_once_it_answers_again(
    registries: list[str], broker: Any, acts: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "PRODUCE_TIMEOUT_S", 0.3)
    async with Producer(registries, send_timeout_s=60) as producer:
        producer.routes.reroute_s = 0.2
        await producer.send(message("first"), key="k")
        broker.acts.extend([acts.ignore] * 1000)
        sends = [asyncio.ensure_future(producer.send(message(i), key="k")) for i in range(10)]
        await until(lambda: producer.sender.faults.is_away("broker-0"))  # type: ignore[union-attr]
        broker.acts.clear()
        results = await asyncio.gather(*sends)
        assert [r.queue_offset for r in results] == list(range(1, 11))
        assert producer.numbers()["reroutes_total"] == 0


async def test_the_error_at_the_deadline_says_what_the_broker_did(
    producer: Producer, broker: Any, acts: Any
) -> None:
    await producer.send(message("first"), key="k")
    broker.acts.extend([acts.ignore] * 1000)
    with pytest.raises(
        RequestTimeout, match=r"may be stored: broker 'broker-0' has not answered for (0\.[5-9]|[1-9])"
    ):
        await producer.send(message(1), key="k", timeout_s=4.0)
    broker.acts.clear()
    broker.close_connections()  # else it were silent all the same: that one is not answered yet
    broker.acts.extend([acts.each_run(Code.STORE_FAILED)] * 1000)
    with pytest.raises(RequestTimeout, match="STORE_FAILED"):
        await producer.send(message(2), key="other", timeout_s=4.0)
    broker.acts.clear()
    await broker.stop()
    with pytest.raises(RequestTimeout, match=r"no connection to broker 'broker-0'"):
        await producer.send(message(3), key="k", timeout_s=2.0)


async def test_keys_of_an_ordered_topic_wait_for_their_broker(
    registries: list[str], make_broker: Any, until: Any
) -> None:
    brokers = {name: await make_broker(name) for name in "ab"}
    for each in brokers.values():
        each.topics["t"] = TopicRow("t", 2, 2, 6, "log", 1, True)
        await each.register()
    async with Producer(registries, send_timeout_s=60) as producer:
        producer.routes.reroute_s = 0.2
        results = await asyncio.gather(*(producer.send(message(i), key=str(i)) for i in range(16)))
        await brokers["a"].stop()
        keys = [str(i) for i, r in enumerate(results) if r.queue.broker == "a"]
        sends = [asyncio.ensure_future(producer.send(message("later"), key=key)) for key in keys]
        await until(lambda: "a" not in producer.routes.brokers())
        free = [await producer.send(message("free")) for _ in range(8)]
        assert {r.queue.broker for r in free} == {"b"}
        await asyncio.sleep(0.5)
        assert not any(send.done() for send in sends)
        sends += [asyncio.ensure_future(producer.send(message("last"), key=key)) for key in keys]
        await brokers["a"].restart()
        done = await asyncio.gather(*sends)
        assert {r.queue.broker for r in done} == {"a"}
        for first, second in zip(done[: len(keys)], done[len(keys) :], strict=True):
            assert first.queue == second.queue
            assert first.queue_offset < second.queue_offset


async def test_no_key_is_overtaken_while_its_queue_goes_away(
    producer: Producer, broker: Any, until: Any
) -> None:
    await broker.add_topic("t", 8)
    await producer.send(message("first"))
    keys = [f"k{i}" for i in range(8)]
    sends = []
    for i in range(300):
        if i == 100:
            await broker.add_topic("t", 2)
        if i == 200:
            await broker.add_topic("t", 8)
        sends.append(asyncio.ensure_future(producer.send(message(f"{keys[i % 8]} {i}"), key=keys[i % 8])))
        await asyncio.sleep(0.003)
    results = await asyncio.gather(*sends)
    # The order in which the broker took them, over all queues.
    order = {decode_record(r).body: n for n, r in enumerate(broker.appended)}
    for k in range(8):
        mine = [order[f"{keys[k]} {i}".encode()] for i in range(k, 300, 8)]
        assert mine == sorted(mine)
    assert len(results) == 300


async def test_nothing_follows_the_first_run_of_an_epoch_before_it_is_stored(
    producer: Producer, broker: Any
) -> None:
    await broker.add_topic("t", 1)
    asked = asyncio.Event()
    held: list[Any] = []

    def hold(request: Any, _broker: Any) -> bool:
        held.append(request)
        asked.set()
        return True

    broker.acts.append(hold)
    sends = [asyncio.ensure_future(producer.send(message(0)))]
    await asked.wait()
    sends += [asyncio.ensure_future(producer.send(message(i))) for i in range(1, 10)]
    await producer.send(message("other", "u"))
    held[0].refuse(RemoteError(Code.BODY_CRC, "damaged on its way"))
    await asyncio.gather(*sends)
    assert broker.bodies("t") == [str(i).encode() for i in range(10)]


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_brokers_do_every_key_stays_in_order_and_nothing_is_lost_or_twice(
    registries: list[str], make_broker: Any, acts: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "PRODUCE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(pauses, "BACKOFF_MAX_S", 0.1)
    chance = random.Random(seed)
    brokers = [await make_broker(name) for name in "ab"]
    faults = [
        acts.busy,
        acts.each_run(Code.BUSY),
        acts.each_run(Code.STORE_FAILED),
        acts.each_run(Code.STORE_FULL),
        acts.refuse_whole(Code.BODY_CRC),
        acts.lose_request,
        acts.lose_answer,
        acts.ignore,
    ]
    fine = lambda request, broker: False  # noqa: E731
    async with Producer(registries, send_timeout_s=50) as producer:
        await producer.send(message("first"))
        for broker in brokers:
            broker.acts.extend(chance.choice(faults) if chance.random() < 0.4 else fine for _ in range(60))
        sends = []
        for i in range(400):
            key = f"k{i % 8}" if i % 9 else None
            sends.append(asyncio.ensure_future(producer.send(message(f"{key} {i}"), key=key)))
            if chance.random() < 0.4:
                await asyncio.sleep(chance.random() * 0.02)
        await asyncio.gather(*sends)
    stored = [decode_record(r).body for broker in brokers for r in broker.appended if b"first" not in r]
    assert len(stored) == len(set(stored)) == 400
    for k in range(8):
        numbers = [int(body.split()[1]) for body in stored if body.startswith(b"k%d " % k)]
        assert numbers == sorted(numbers)
