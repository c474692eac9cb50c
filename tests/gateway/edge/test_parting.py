"""What the gateway says last reaches clients that are still sending."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.edge import parting, stragglers
from gateway.edge.sockets import ClientSocket
from gateway.session.session import Session, close_connection
from holdmq.mqtt import MQTT_5, AckRun, Disconnect, Publish, PubRel

Start = Callable[..., Awaitable[Any]]


async def last_packet(client: Any) -> Any:
    """The packet behind which the gateway closed its half."""
    found = None
    try:
        while True:
            found = await client.next()
    except EOFError:
        return found


@pytest.mark.mqtt("MQTT-4.13.1-1", "MQTT-4.13.2-1", "MQTT-3.14.4-2")
async def test_a_client_that_sends_on_hears_why_it_was_disconnected(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "LINGER_S", 60.0)
    running = await start_worker(receive_max=8)
    client = await running.client("busy", MQTT_5)
    client.send(*[Publish("a/b", b"x" * 5000, 2, packet_id=n) for n in range(1, 40)])
    await client.writer.drain()
    await running.until(lambda: running.worker.counters.refused["receive_maximum_exceeded"] == 1)
    for _ in range(5):
        client.send(*[PubRel(n) for n in range(1, 9)])
        await asyncio.sleep(0.01)
    last = await last_packet(client)
    assert isinstance(last, Disconnect)
    assert last.reason_code == 0x93
    assert running.worker.counters.connections == 1, "its client has not closed its half"
    client.writer.close()
    await running.until(lambda: running.worker.counters.connections == 0)


async def test_a_client_that_never_stops_sending_is_cut_off(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parting, "PARTING_BYTES_MAX", 1000)
    running = await start_worker()
    client = await running.client("deaf", MQTT_5)
    client.send(Publish("a/b", b"", 1, packet_id=1))
    assert isinstance(await client.next(), AckRun)
    close_connection(running.worker.clients.session("deaf"), 0x98, "test", "ends")
    client.writer.write(b"\xc0\x00" * 600)
    await running.until(lambda: running.worker.counters.connections == 0)


async def test_a_client_that_says_goodbye_is_not_waited_for(start_worker: Start) -> None:
    running = await start_worker()
    client = await running.client("polite", MQTT_5)
    client.send(Disconnect())
    await running.until(lambda: running.worker.counters.connections == 0)


async def test_nothing_stays_of_a_connection_that_the_gateway_closed(start_worker: Start) -> None:
    running = await start_worker()
    gc.collect()
    gc.disable()
    try:
        client = await running.client("sent-away", MQTT_5)
        close_connection(running.worker.clients.session("sent-away"), 0x98, "test", "ends")
        assert isinstance(await last_packet(client), Disconnect)
        client.writer.close()
        await running.until(lambda: not [o for o in gc.get_objects() if type(o) in (Session, ClientSocket)])
    finally:
        gc.enable()
