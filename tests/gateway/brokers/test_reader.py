"""The live reader and its filters: the broker knows all of them, each as often as it is wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import gateway.brokers.reader
from holdmq.mqtt import Publish, Unsubscribe

Start = Callable[..., Awaitable[Any]]


def cut_off(running: Any) -> None:
    running.broker.tap.cut()


def wanted(running: Any) -> list[Any]:
    wanted = running.worker.deliveries.wanted
    return sorted(wanted.terms_of_filters(wanted.filters()))


async def test_filters_that_share_a_term_end_one_by_one(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("s")
    await client.subscribe("cmd/7/#")
    await client.subscribe("cmd/7/+")
    client.send(Unsubscribe(2, ["cmd/7/#"]))
    await client.next()
    publisher = await running.client("p")
    publisher.send(Publish("cmd/7/x", b"still", 1, packet_id=1))
    assert (await client.next()).payload == b"still"
    client.send(Unsubscribe(3, ["cmd/7/+"]))
    await client.next()
    await running.until(lambda: running.broker.live_terms() == [])


async def test_a_broker_that_is_back_is_given_all_filters_in_steps(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.brokers.reader, "FILTERS_PER_STEP", 2)
    running = await start_worker()
    client = await running.client("s")
    await client.subscribe(*(f"a{n}/x" for n in range(7)))
    opened = len(running.broker.opened)
    cut_off(running)
    await running.until(lambda: len(running.broker.opened) > opened)
    assert len(running.broker.opened[-1].add) == 4
    await running.until(lambda: running.worker.roster.is_ready)
    assert sorted(running.broker.live_terms()) == wanted(running)
    publisher = await running.client("p")
    publisher.send(Publish("a6/x", b"last", 1, packet_id=1))
    assert (await client.next()).payload == b"last"


async def test_what_changes_while_a_reader_is_opened_is_not_lost(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.brokers.reader, "FILTERS_PER_STEP", 1)
    running = await start_worker()
    client = await running.client("s")
    await client.subscribe("a/x", "b/x", "c/x")
    running.broker.filters.holds_answers = True
    opened = len(running.broker.opened)
    cut_off(running)
    await running.until(lambda: len(running.broker.opened) > opened and len(running.broker.live_terms()) == 4)
    # The first step is done, the second one is not answered; one filter goes, and one comes.
    client.send(Unsubscribe(2, ["a/x"]))
    await client.next()
    running.broker.filters.let_pass()
    running.worker.deliveries.wanted.terms_version += 1  # as when a topic's key_levels change
    cut_off(running)
    await running.until(lambda: running.worker.roster.is_ready)
    await client.subscribe("d/x")
    await running.until(lambda: sorted(running.broker.live_terms()) == wanted(running))
    assert len(wanted(running)) == 6


async def test_many_changes_of_a_turn_travel_in_requests_of_a_bounded_size(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.brokers.reader, "TERMS_PER_REQUEST", 3)
    running = await start_worker()
    client = await running.client("s")
    await client.subscribe(*(f"a{n}/x" for n in range(10)))
    assert sorted(running.broker.live_terms()) == wanted(running)
    await client.close()
    await running.until(lambda: running.broker.live_terms() == [])


async def test_nothing_gathers_for_a_broker_that_is_away(start_worker: Start) -> None:
    running = await start_worker()
    (link,) = running.worker.links.values()
    client = await running.client("s")
    link.reader.disconnected()
    await running.until(lambda: not link.reader.is_open)
    terms = running.worker.deliveries.wanted.terms_of_filters(["x/y"])
    link.reader.add(terms)
    link.reader.remove(terms)
    assert not link.reader._add
    assert not link.reader._remove
    link.reader.connected(link.connection)
    await client.subscribe("x/y")
    assert sorted(running.broker.live_terms()) == wanted(running)
