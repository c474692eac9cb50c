"""Connections over WebSocket, against a worker in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from listener_clients import (
    CONNACK,
    CONNECT,
    PING,
    PONG,
    WebClient,
    client_context,
    connect,
    refused,
    rest_of,
)
from security import Authority
from websockets.frames import CloseCode, Opcode
from websockets.protocol import State

from gateway.edge import stragglers
from gateway.protect import gate
from gateway.session.session import CLOSED
from gateway.worker import draining
from holdmq.mqtt import MQTT_5, Connect, Disconnect, Publish, Will, encode

Start = Callable[..., Awaitable[Any]]


@pytest.mark.parametrize("kind", ["ws", "wss"])
async def test_a_session_over_websocket_is_a_session(
    start_worker: Start, authority: Authority, server_tls: dict[str, Any], kind: str
) -> None:
    tls = {"ssl": client_context(authority), "server_hostname": "localhost"} if kind == "wss" else {}
    running = await start_worker(
        {"kind": kind, "ws_path": "/devices", **(server_tls if kind == "wss" else {})}
    )
    client = await WebClient.open(running, "/devices", **tls)
    for at in range(0, len(CONNECT), 3):
        client.send(CONNECT[at : at + 3])
    assert await client.message() == CONNACK
    client.send(encode(Publish("a/b", b"x" * 100_000, 1, packet_id=7), 4) + PING)
    found = await client.message()
    while len(found) < 6:
        found += await client.message()
    assert found == PONG + b"\x40\x02\x00\x07"
    assert running.broker.bodies == [b"x" * 100_000]
    client.protocol.send_ping(b"?")
    client.flush()
    assert (await client.next()).opcode is Opcode.PONG
    client.protocol.send_close(1000, "bye")
    client.flush()
    assert (await client.next()).opcode is Opcode.CLOSE
    with pytest.raises(EOFError):
        await client.next()
    await running.until(lambda: running.worker.counters.connections == 0)
    assert not running.worker.counters.refused
    assert not running.worker.listeners[0].refused


async def test_a_client_that_goes_without_disconnect_has_its_will_published(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(encode(Connect(client_id="c", will=Will("w/c", b"gone", 1)), 4))
    assert await client.message() == CONNACK
    client.protocol.send_close(1001, "")
    client.flush()
    await running.until(lambda: running.broker.bodies == [b"gone"])


async def test_after_disconnect_there_is_a_close_of_both_sides_and_no_will(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(encode(Connect(client_id="c", will=Will("w/c", b"gone", 1)), 4))
    assert await client.message() == CONNACK
    client.send(encode(Disconnect(), 4))
    close = await client.next()
    assert close.opcode is Opcode.CLOSE
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.NORMAL_CLOSURE
    client.flush()
    await running.until(lambda: running.worker.counters.connections == 0)
    assert not running.worker.reception.stragglers.lingering
    assert running.broker.bodies == []


async def test_who_is_refused_is_told_by_mqtt_and_by_the_close(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"}, allow_anonymous=False)
    client = await WebClient.open(running)
    client.send(CONNECT)
    assert await client.message() == b"\x20\x02\x00\x05"
    assert (await client.next()).opcode is Opcode.CLOSE
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.POLICY_VIOLATION
    assert client.protocol.close_rcvd.reason == "not_authorized"
    client.flush()
    await running.until(lambda: running.worker.counters.connections == 0)


async def test_a_text_frame_ends_the_connection_with_its_code_and_sends_the_will(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(encode(Connect(client_id="c", version=MQTT_5, will=Will("w/c", b"gone", 1)), MQTT_5))
    await client.message()
    client.protocol.send_text(b"hello")
    client.flush()
    assert (await client.next()).opcode is Opcode.CLOSE
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.UNSUPPORTED_DATA
    await running.until(refused(running, "websocket_text"))
    await running.until(lambda: running.broker.bodies == [b"gone"])


async def test_a_client_that_does_not_answer_our_close_is_cut_off(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "LINGER_S", 0.0)
    running = await start_worker({"kind": "ws"})
    client = await WebClient.open(running)
    client.send(CONNECT + b"\xc1\x00")
    assert await client.message() == CONNACK
    await client.next()
    assert client.protocol.state is State.CLOSING
    await running.until(lambda: running.worker.counters.connections == 0)
    assert running.worker.counters.refused == {"malformed_packet": 1}


async def test_what_is_no_websocket_request_gets_an_http_answer(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    reader, writer = await connect(running)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await rest_of(reader)
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"the path is /mqtt" in answer
    await running.until(refused(running, "websocket_handshake"))


async def test_a_page_of_a_name_that_points_here_gets_no_websocket(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    host = f"evil.example:{running.port}"
    reader, writer = await connect(running)
    writer.write(
        f"GET /mqtt HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
    )
    answer = await rest_of(reader)
    assert answer.startswith(b"HTTP/1.1 421 Misdirected Request\r\n")
    assert b"security.hosts" in answer
    await running.until(refused(running, "websocket_handshake"))


async def test_half_a_request_ends_with_the_time_for_a_connect(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"}, unauthenticated_s=0.3)
    reader, writer = await connect(running)
    writer.write(b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n")
    assert await rest_of(reader) == b""
    await running.until(refused(running, "unauthenticated"))
    # One that is open and silent, at a worker with time enough to open it.
    patient = await start_worker({"kind": "ws"})
    quiet = await WebClient.open(patient)
    (shell,) = patient.worker.reception.connections
    shell.handle(shell.session.handle_deadline(patient.worker.now() + 60))
    assert (await quiet.next()).opcode is Opcode.CLOSE
    await patient.until(refused(patient, "unauthenticated"))


async def test_draining_says_goodbye_over_websocket_and_hears_the_answer(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "LINGER_S", 60.0)
    running = await start_worker({"kind": "ws"}, drain_s=120)
    client = await WebClient.open(running)
    client.send(encode(Connect(client_id="c", version=MQTT_5), MQTT_5))
    await client.message()
    ending = asyncio.create_task(running.worker.draining.drain())
    assert (await client.message())[0] == 0xE0
    assert (await client.next()).opcode is Opcode.CLOSE
    assert client.protocol.close_rcvd is not None
    assert client.protocol.close_rcvd.code == CloseCode.GOING_AWAY
    client.flush()
    await asyncio.wait_for(ending, 60)
    assert running.worker.counters.connections == 0


async def test_clients_that_do_not_answer_keep_no_others_from_being_drained(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "LINGER_S", 60.0)
    monkeypatch.setattr(draining, "DRAIN_RATE_MIN", 20)  # one in each step
    running = await start_worker({"kind": "ws"}, drain_s=60)
    for n in range(4):
        client = await WebClient.open(running)
        client.send(encode(Connect(client_id=f"c{n}"), 4))
        assert await client.message() == CONNACK
    shells = list(running.worker.reception.connections)
    ending = asyncio.create_task(running.worker.draining.drain())
    await running.until(lambda: all(shell.session.state == CLOSED for shell in shells))
    assert not ending.done()
    now = running.worker.now
    monkeypatch.setattr(running.worker, "now", lambda: now() + 60)
    await ending
    await running.until(lambda: running.worker.counters.connections == 0)


async def test_mutated_frames_disturb_nobody(start_worker: Start) -> None:
    running = await start_worker({"kind": "ws"})
    steady = await WebClient.open(running)
    steady.send(encode(Connect(client_id="steady"), 4))
    assert await steady.message() == CONNACK
    rng = random.Random(3)
    for n in range(300):
        client = await WebClient.open(running)
        for part in (CONNECT, PING, encode(Publish("a/b", b"x", 1, packet_id=1), 4), PING):
            client.protocol.send_binary(part)
        data = bytearray(b"".join(client.protocol.data_to_send()))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            if rng.random() < 0.6:
                data[at] = rng.randrange(256)
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
        client.writer.write(bytes(data))
        if n % 2:
            client.writer.close()
    steady.send(PING)
    assert await steady.message() == PONG
    for client in running.clients[1:]:
        client.writer.close()
    await running.until(lambda: running.worker.counters.connections == 1)
    assert running.worker.listeners[0].connections == 1


async def test_connections_beyond_the_bound_are_counted_by_listener(
    start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "CONNECTIONS_OVER", 0)
    running = await start_worker({"kind": "ws"}, connections_max=1)
    await WebClient.open(running)
    reader, _ = await connect(running)
    assert await rest_of(reader) == b""
    await running.until(refused(running, "connections_max"))
