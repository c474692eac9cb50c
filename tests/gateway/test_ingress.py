"""Publishes to records: what is kept from one publish to the next must not outlive what it was made from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from session_bench import Bench

from gateway.core.producer import Producer, Target
from gateway.ingress import Ingress
from gateway.link import BrokerLink
from holdmq.mqtt import MQTT_3_1_1, Publish, encode

Start = Callable[..., Any]


class Link:
    """Whose producer it is."""

    name = "b"

    def added(self, size_bytes: int) -> None:
        """Nothing is sent."""


def ingress_to(places: dict[str, Target]) -> Ingress:
    return Ingress(
        lambda topic, _client_id, _bound: places.get(topic), lambda _topic, _client_id: False, float
    )


def test_a_full_producer_is_told_of_also_when_a_later_message_waits_for_its_topic() -> None:
    away = Producer(1, Link())
    ingress = ingress_to({"away": away.target("away", 0)})
    bench = Bench(MQTT_3_1_1)
    bench.connect()
    (run,) = bench.feed(Publish("away/x", b"1", 0), Publish("new/x", b"2", 0))
    assert ingress.publish(bench.session, run) == "new"
    assert ingress.full is away
    away.connected()
    (run,) = bench.feed(Publish("away/x", b"1", 0))
    assert ingress.publish(bench.session, run) is None
    assert ingress.full is None


async def test_who_publishes_to_a_broker_that_is_away_is_held_whatever_else_it_publishes(
    start_worker: Start,
) -> None:
    running = await start_worker()
    worker = running.worker
    client = await running.client("c1")
    client.send(Publish("here/x", b"1", 1, packet_id=1))
    await client.acked(1)
    away = worker.links["away"] = BrokerLink(worker, "away")
    locate = worker.ingress._locate
    worker.ingress._uses_other = lambda _topic, _client_id: False
    worker.ingress._locate = lambda topic, client_id, bound: (
        away.producer.target(topic, 0) if topic == "away" else locate(topic, client_id, bound)
    )
    kept = encode(Publish("here/x", b"kept", 0, retain=True), MQTT_3_1_1)
    client.writer.write(encode(Publish("away/x", b"1", 0), MQTT_3_1_1) + kept)
    while not away.held:
        await asyncio.sleep(0.01)


def test_a_plan_whose_queue_is_retired_is_replaced_for_good() -> None:
    producer = Producer(1, Link())
    places = {"a": producer.target("a", 0)}
    ingress = ingress_to(places)
    bench = Bench(MQTT_3_1_1)
    bench.connect()

    def publish() -> Any:
        (run,) = bench.feed(Publish("a/b", b"1", 0))
        assert ingress.publish(bench.session, run) is None
        return bench.session.inbound.plan  # type: ignore[union-attr]

    first = publish()
    assert publish() is first
    old, places["a"] = places["a"], producer.target("a", 1)
    old.is_retired = True
    old.runs.clear()
    second = publish()
    assert second.target is places["a"]
    assert publish() is second
    assert old not in (plan.target for plan in bench.session.inbound.plans.values())  # type: ignore[union-attr]
