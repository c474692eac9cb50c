"""The gateway as users meet it: real processes, other people's clients."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Stack, running_stack

from loadtest.swarm import payload_of, swarm

VERSIONS = ["mqttv31", "mqttv311", "mqttv5"]


def tool(name: str, port: int, *args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [name, "-h", "127.0.0.1", "-p", str(port), *args],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **kwargs,
    )


def start_sub(port: int, *args: str) -> subprocess.Popen[str]:
    """mosquitto_sub that is subscribed when this returns."""
    process = subprocess.Popen(
        ["stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-d", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Subscribed"):
            return process
    raise AssertionError("mosquitto_sub ended before its SUBACK")


def messages(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    with process.stdout as lines:
        found = [line.rstrip("\n") for line in lines if not line.startswith(("Client ", "Subscribed"))]
    process.wait(40)
    return found


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("gateway")) as stack:
        yield stack


@pytest.mark.mqtt("MQTT-4.2-1")
def test_mosquittos_clients_of_every_version_talk_through_the_log(stack: Any) -> None:
    subscribers = {
        version: start_sub(
            stack.mqtt_port, "-V", version, "-t", "devices/#", "-q", "1", "-v", "-C", "9", "-W", "100"
        )
        for version in VERSIONS
    }
    expected = []
    for version in VERSIONS:
        for qos in "012":
            payload = f"{version}-{qos}"
            expected.append(f"devices/1/temp {payload}")
            done = tool(
                "mosquitto_pub",
                stack.mqtt_port,
                "-V",
                version,
                "-t",
                "devices/1/temp",
                "-m",
                payload,
                "-q",
                qos,
            )
            assert done.returncode == 0, done.stderr
    for version, subscriber in subscribers.items():
        assert sorted(messages(subscriber)) == sorted(expected), version


@pytest.mark.mqtt("MQTT-4.6.0-6")
def test_a_subscriber_in_another_worker_than_the_publisher_receives_everything(holdmq_stack: Any) -> None:
    import paho.mqtt.client as paho

    stack = holdmq_stack(**{"gateway.workers": 2})
    count, lock = 40, threading.Lock()
    received: list[list[bytes]] = []
    ready = threading.Semaphore(0)
    clients = []

    def connections() -> list[float]:
        metric = 'holdmq_gateway_worker_connections{worker="%d"}'
        return [stack.metric("gateway", metric % worker) for worker in range(2)]

    # The kernel chooses the worker. With subscribers in both, some are not in the publisher's.
    while not all(connections()):
        assert len(clients) < 40, "the kernel gives every connection to one worker"
        which = len(clients)
        received.append([])

        def on_message(_c: Any, which: int, message: Any) -> None:
            with lock:
                received[which].append(message.payload)

        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=f"sub{which}", userdata=which)
        client.on_message = on_message
        client.on_connect = lambda c, *_: c.subscribe("both/#", 1)
        client.on_subscribe = lambda *_: ready.release()
        client.connect("127.0.0.1", stack.mqtt_port)
        client.loop_start()
        clients.append(client)
        assert ready.acquire(timeout=40)
        wait_for(lambda: sum(connections()) == len(clients), "the workers have reported")
    assert min(connections()) >= 1
    done = tool(
        "mosquitto_pub",
        stack.mqtt_port,
        *("-t", "both/x", "-q", "1", "-l"),
        input="".join(f"{n}\n" for n in range(count)),
    )
    assert done.returncode == 0
    wanted = [b"%d" % n for n in range(count)]
    wait_for(lambda: all(got == wanted for got in received), "every subscriber has all, in order")
    for client in clients:
        client.disconnect()
        client.loop_stop()


async def test_aiomqtt_gmqtt_and_amqtt_clients_talk_to_each_other(stack: Any) -> None:
    import aiomqtt
    from amqtt.client import MQTTClient as AmqttClient
    from gmqtt import Client as GmqttClient

    got: dict[str, list[bytes]] = {"gmqtt": [], "amqtt": [], "aiomqtt": []}
    subscribed = asyncio.Event()
    g = GmqttClient("gmqtt-client")
    g.on_message = lambda _c, _t, payload, _q, _p: got["gmqtt"].append(payload) or 0
    g.on_subscribe = lambda *_: subscribed.set()
    await g.connect("127.0.0.1", stack.mqtt_port)
    g.subscribe("mixed/#", qos=1)
    await asyncio.wait_for(subscribed.wait(), 40)

    a = AmqttClient(client_id="amqtt-client", config={"auto_reconnect": False})
    await a.connect(f"mqtt://127.0.0.1:{stack.mqtt_port}/")
    await a.subscribe([("mixed/#", 1)])

    async with aiomqtt.Client("127.0.0.1", stack.mqtt_port, identifier="aio") as aio:
        await aio.subscribe("mixed/#", qos=1)
        await aio.publish("mixed/1", b"from aiomqtt", qos=2)
        g.publish("mixed/2", b"from gmqtt", qos=1)
        await a.publish("mixed/3", b"from amqtt", qos=1)
        for _ in range(3):
            message = await asyncio.wait_for(a.deliver_message(), 40)
            got["amqtt"].append(bytes(message.data))
        async with asyncio.timeout(40):
            async for incoming in aio.messages:
                got["aiomqtt"].append(bytes(incoming.payload))
                if len(got["aiomqtt"]) == 3:
                    break
    while len(got["gmqtt"]) < 3:
        await asyncio.sleep(0.05)
    await a.disconnect()
    await g.disconnect()
    wanted = [b"from aiomqtt", b"from amqtt", b"from gmqtt"]
    assert {name: sorted(payloads) for name, payloads in got.items()} == dict.fromkeys(got, wanted)


def test_bad_input_is_refused_with_a_sentence_and_a_metric_while_others_go_on(holdmq_stack: Any) -> None:
    stack = holdmq_stack(**{"gateway.unauthenticated_s": 5, "gateway.workers": 1})
    good = start_sub(stack.mqtt_port, "-t", "fine/#", "-q", "1", "-C", "1", "-W", "100")
    connect = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01"
    cases = {
        "protocol_error": b"GET / HTTP/1.1\r\n\r\n",
        "unauthenticated": connect[:7],
        "packet_too_large": connect + b"x\x30\xff\xff\xff\x7f",
        "malformed_packet": connect + b"y\x30\x80\x86\x86\x8f\x01",
    }
    sockets = []
    for data in cases.values():
        s = socket.create_connection(("127.0.0.1", stack.mqtt_port), timeout=40)
        s.sendall(data)
        sockets.append(s)
    for s in sockets:
        while s.recv(4096):
            pass
        s.close()
    for reason in cases:
        metric = f'holdmq_gateway_refused_total{{reason="{reason}"}}'
        wait_for(lambda metric=metric: stack.metric("gateway", metric) >= 1, metric)  # type: ignore[misc]
        assert f'"reason": "{reason}"' in stack.log("gateway")
    assert tool("mosquitto_pub", stack.mqtt_port, "-t", "fine/x", "-m", "still", "-q", "1").returncode == 0
    assert messages(good) == ["still"]


def test_a_will_is_published_when_a_client_is_killed(stack: Any) -> None:
    watcher = start_sub(stack.mqtt_port, "-t", "wills/#", "-q", "1", "-v", "-C", "1", "-W", "100")
    dying = start_sub(
        stack.mqtt_port, "-t", "x", "--will-topic", "wills/d1", "--will-payload", "gone", "--will-qos", "1"
    )
    dying.kill()
    messages(dying)
    assert messages(watcher) == ["wills/d1 gone"]


def test_sigterm_drains_and_exits_with_0(stack: Any) -> None:
    subscriber = start_sub(stack.mqtt_port, "-V", "mqttv5", "-t", "a/#")
    assert stack.stop("gateway") == 0
    stack.start("gateway")
    assert subscriber.stdout is not None
    with subscriber.stdout as lines:
        # It comes back, again and again: what it is told comes at all.
        assert any("DISCONNECT (139)" in line for line in lines)
        subscriber.kill()  # it ignores SIGTERM at times
    subscriber.wait(40)


def test_a_worker_that_crashes_is_started_again_and_said_so(holdmq_stack: Any) -> None:
    stack = holdmq_stack(**{"gateway.workers": 1})
    (victim,) = stack.workers()
    os.kill(victim, signal.SIGKILL)
    metric = "holdmq_gateway_worker_restarts_total"
    wait_for(lambda: stack.metric("gateway", metric) == 1, metric)
    assert "SIGKILL" in stack.log("gateway")
    assert tool("mosquitto_pub", stack.mqtt_port, "-t", "a/b", "-m", "x", "-q", "1").returncode == 0
    wait_for(lambda: stack.http("gateway", "/readyz")[0] == 200, "ready again")


def test_a_worker_that_hangs_makes_the_gateway_unready_and_is_replaced(holdmq_stack: Any) -> None:
    stack = holdmq_stack(**{"gateway.workers": 1})
    (victim,) = stack.workers()
    os.kill(victim, signal.SIGSTOP)
    wait_for(lambda: stack.http("gateway", "/readyz")[0] == 503, "unready")
    wait_for(lambda: stack.metric("gateway", "holdmq_gateway_worker_restarts_total") == 1, "replaced")
    assert "hangs and is killed" in stack.log("gateway")
    wait_for(lambda: stack.http("gateway", "/readyz")[0] == 200, "ready again")


def test_a_busy_port_is_one_clear_sentence(holdmq_stack: Any) -> None:
    stack = holdmq_stack(services=("registry",))
    with socket.create_server(("127.0.0.1", stack.mqtt_port)):
        stack.start("gateway", wait=False)
        assert stack.processes.pop("gateway").wait(40) == 1
    assert f"port {stack.mqtt_port} (gateway.port)" in stack.log("gateway")


def test_everything_acknowledged_is_delivered_over_a_broker_that_is_killed(stack: Any) -> None:
    import paho.mqtt.client as paho

    got: list[bytes] = []
    subscribed = threading.Event()
    subscriber = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="sub")
    subscriber.on_message = lambda _c, _u, message: got.append(message.payload)
    subscriber.on_subscribe = lambda *_: subscribed.set()
    subscriber.connect("127.0.0.1", stack.mqtt_port)
    subscriber.subscribe("kill/#", 1)
    subscriber.loop_start()
    assert subscribed.wait(40)
    publisher = subprocess.Popen(
        ["mosquitto_pub", "-p", str(stack.mqtt_port), "-t", "kill/x", "-q", "1", "-l"],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert publisher.stdin is not None
    for n in range(300):
        publisher.stdin.write(f"{n}\n")
        publisher.stdin.flush()
        if n == 150:
            stack.restart("broker", signal.SIGKILL)
    publisher.stdin.close()
    assert publisher.wait(100) == 0
    wait_for(lambda: len(set(got)) == 300, "all 300 received")
    first_of_each = list(dict.fromkeys(got))
    assert first_of_each == [b"%d" % n for n in range(300)]
    subscriber.disconnect()
    subscriber.loop_stop()


def test_a_slow_subscriber_gets_everything_from_the_log(holdmq_stack: Any, tmp_path: Path) -> None:
    """It stops reading while far more than its window and its socket hold is published, and others read."""
    stack = holdmq_stack(**{"gateway.workers": 1})
    from holdmq.mqtt import Connect, Subscribe, Subscription, encode

    slow = socket.create_connection(("127.0.0.1", stack.mqtt_port), timeout=60)
    slow.sendall(encode(Connect(client_id="slow", keep_alive=600), 4))
    assert len(slow.recv(4)) == 4
    slow.sendall(encode(Subscribe(1, [Subscription("bulk/#", 1)]), 4))
    assert len(slow.recv(5)) == 5
    count = 2000
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{n}:{'x' * 500}\n" for n in range(count)))
    got: list[list[int]] = [[] for _ in range(5)]
    with lines.open() as source, swarm(f"127.0.0.1:{stack.mqtt_port}", "reader") as readers:
        readers.connect(len(got), clean=True, subscribe="bulk/#")
        publisher = subprocess.Popen(
            ["mosquitto_pub", "-p", str(stack.mqtt_port), "-t", "bulk/x", "-q", "1", "-l"], stdin=source
        )
        while min(map(len, got)) < count:
            for number, packet_type, body in readers.step(1):
                if packet_type == 3:
                    got[number].append(int(payload_of(body).partition(b":")[0]))
        assert publisher.wait(100) == 0
        readers.disconnect()
    assert got == [list(range(count))] * len(got)
    wait_for(lambda: stack.metric("gateway", "holdmq_gateway_lagging_sessions") == 1, "the session lags")
    payloads: list[int] = []
    buffer = b""
    while len(payloads) < count:
        data = slow.recv(1 << 16)
        assert data, stack.log("gateway")[-3000:]
        buffer += data
        acks = b""
        while len(buffer) >= 3:
            size = (buffer[1] & 0x7F) | buffer[2] << 7
            if len(buffer) < 3 + size:
                break
            packet, buffer = buffer[3 : 3 + size], buffer[3 + size :]
            acks += b"\x40\x02" + packet[8:10]
            payloads.append(int(packet[10:].split(b":")[0]))
        slow.sendall(acks)
    assert payloads == list(range(count))
    wait_for(
        lambda: stack.metric("gateway", "holdmq_gateway_lagging_sessions") == 0, "the session is live again"
    )
    wait_for(lambda: stack.metric("gateway", "holdmq_gateway_catchup_readers") == 0, "nobody reads for it")
    slow.close()
