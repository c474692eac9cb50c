"""Other people's clients, each over what it speaks: TCP and WebSocket, MQTT 3.1.1 and 5.0.

Each subscribes to a topic of its own and publishes to it with QoS 0, 1 and 2. It must get all three, and so
must a client of another make that listens to everybody.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mqtt_client import MqttClient
from processes import Stack, free_port, running_stack

ROOT = Path(__file__).parent.parent.parent
JS = Path(__file__).parent.parent / "support/mqttjs_client.cjs"
WAIT_S = 100.0


class Gateway(NamedTuple):
    """Where a stack's gateway listens."""

    stack: Stack
    tcp: int
    ws: int


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    ws = free_port()
    listeners = json.dumps([{"name": "web", "kind": "ws", "port": ws}])
    directory = tmp_path_factory.mktemp("interoperability")
    with running_stack(directory, **{"gateway.listeners": listeners}) as stack:
        yield Gateway(stack, stack.mqtt_port, ws)
        assert "Traceback" not in stack.log("gateway")


@pytest.fixture
def listener(gateway: Gateway) -> Iterator[MqttClient]:
    """A client of ours, subscribed to what all the others publish."""
    client = MqttClient(gateway.tcp, "listener", clean=True, expiry_s=0)
    client.subscribe("makes/#", qos=2)
    yield client
    client.disconnect()


async def mosquitto(gateway: Gateway, _transport: str, version: int, topic: str) -> list[bytes]:
    place = ["-h", "127.0.0.1", "-p", str(gateway.tcp), "-V", "mqttv5" if version == 5 else "mqttv311"]
    subscriber = await asyncio.create_subprocess_exec(
        *("stdbuf", "-oL", "mosquitto_sub", *place, "-t", topic, "-q", "2", "-C", "3", "-W", "100", "-d"),
        stdout=subprocess.PIPE,
    )
    assert subscriber.stdout is not None
    while not (await subscriber.stdout.readline()).startswith(b"Subscribed"):
        assert not subscriber.stdout.at_eof()
    for qos in "012":
        publisher = await asyncio.create_subprocess_exec(
            "mosquitto_pub", *place, "-t", topic, "-q", qos, "-m", f"message {qos}"
        )
        assert await publisher.wait() == 0
    said, _ = await subscriber.communicate()
    return [line for line in said.splitlines() if line.startswith(b"message")]


def _paho(gateway: Gateway, transport: str, version: int, topic: str) -> list[bytes]:
    import paho.mqtt.client as paho

    got: list[bytes] = []
    done, subscribed = threading.Event(), threading.Event()
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2,
        client_id=f"paho-{transport}-{version}",
        transport="websockets" if transport == "ws" else "tcp",
        protocol=paho.MQTTv5 if version == 5 else paho.MQTTv311,
    )

    def on_message(_client: Any, _userdata: Any, message: Any) -> None:
        got.append(message.payload)
        if len(got) == 3:
            done.set()

    client.on_message = on_message
    client.on_connect = lambda client, *_: client.subscribe(topic, 2)
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", gateway.ws if transport == "ws" else gateway.tcp)
    client.loop_start()
    try:
        assert subscribed.wait(WAIT_S)
        for qos in range(3):
            client.publish(topic, b"message %d" % qos, qos).wait_for_publish(WAIT_S)
        assert done.wait(WAIT_S)
    finally:
        client.disconnect()
        client.loop_stop()
    return got


async def paho(gateway: Gateway, transport: str, version: int, topic: str) -> list[bytes]:
    return await asyncio.to_thread(_paho, gateway, transport, version, topic)


async def aiomqtt(gateway: Gateway, transport: str, version: int, topic: str) -> list[bytes]:
    import aiomqtt as library

    level = library.ProtocolVersion.V5 if version == 5 else library.ProtocolVersion.V311
    over: Any = "websockets" if transport == "ws" else "tcp"
    port = gateway.ws if transport == "ws" else gateway.tcp
    got: list[bytes] = []
    async with library.Client("127.0.0.1", port, transport=over, protocol=level) as client:
        await client.subscribe(topic, qos=2)
        for qos in range(3):
            await client.publish(topic, b"message %d" % qos, qos=qos)
        async for message in client.messages:
            got.append(bytes(message.payload))
            if len(got) == 3:
                break
    return got


async def gmqtt(gateway: Gateway, _transport: str, version: int, topic: str) -> list[bytes]:
    from gmqtt import Client

    got: list[bytes] = []
    done, subscribed = asyncio.Event(), asyncio.Event()

    async def on_message(_client: Any, _topic: str, payload: bytes, _qos: int, _properties: Any) -> int:
        got.append(payload)
        if len(got) == 3:
            done.set()
        return 0

    client = Client(f"gmqtt-{version}")
    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    await client.connect("127.0.0.1", gateway.tcp, version=version)
    client.subscribe(topic, qos=2)
    await subscribed.wait()
    for qos in range(3):
        client.publish(topic, b"message %d" % qos, qos=qos)
    await done.wait()
    await client.disconnect()
    return got


async def amqtt(gateway: Gateway, transport: str, _version: int, topic: str) -> list[bytes]:
    from amqtt.client import MQTTClient

    client = MQTTClient(client_id=f"amqtt-{transport}", config={"auto_reconnect": False})
    place = f"ws://127.0.0.1:{gateway.ws}/mqtt" if transport == "ws" else f"mqtt://127.0.0.1:{gateway.tcp}/"
    await client.connect(place)
    await client.subscribe([(topic, 2)])
    for qos in range(3):
        await client.publish(topic, b"message %d" % qos, qos=qos)
    got = []
    for _ in range(3):
        message = await client.deliver_message()
        assert message is not None
        got.append(bytes(message.data))
    await client.disconnect()
    return got


async def mqttjs(gateway: Gateway, transport: str, version: int, topic: str) -> list[bytes]:
    place = f"ws://127.0.0.1:{gateway.ws}/mqtt" if transport == "ws" else f"mqtt://127.0.0.1:{gateway.tcp}"
    process = await asyncio.create_subprocess_exec(
        *("node", str(JS), str(ROOT / "build/node"), place, str(version), topic),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    got = json.loads(said)
    assert sorted((m["qos"], m["topic"], m["from"]) for m in got) == [
        (qos, topic, "js" if version == 5 else None) for qos in range(3)
    ]
    return [m["payload"].replace("js", "message").encode() for m in got]


Exchange = Callable[[Gateway, str, int, str], Awaitable[list[bytes]]]
SPEAKS: dict[Exchange, tuple[tuple[str, ...], tuple[int, ...]]] = {
    mosquitto: (("tcp",), (4, 5)),
    paho: (("tcp", "ws"), (4, 5)),
    aiomqtt: (("tcp", "ws"), (4, 5)),
    gmqtt: (("tcp",), (4, 5)),
    amqtt: (("tcp", "ws"), (4,)),
    mqttjs: (("tcp", "ws"), (4, 5)),
}
"""What each client speaks; what is not listed it cannot."""


@pytest.mark.mqtt("MQTT-4.2-1", "MQTT-4.5.0-1", "MQTT-6.0.0-4")
@pytest.mark.parametrize(
    ("exchange", "transport", "version"),
    [
        (exchange, transport, version)
        for exchange, (transports, versions) in SPEAKS.items()
        for transport in transports
        for version in versions
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_a_client_gets_what_it_publishes_and_so_does_one_of_another_make(
    gateway: Gateway, listener: MqttClient, exchange: Exchange, transport: str, version: int
) -> None:
    topic = f"makes/{exchange.__name__}/{transport}/{version}"
    async with asyncio.timeout(WAIT_S):
        got = await exchange(gateway, transport, version, topic)
    wanted = [b"message 0", b"message 1", b"message 2"]
    assert sorted(got) == wanted
    heard = await asyncio.to_thread(listener.take, 3)
    assert {m.topic for m in heard} == {topic}
    assert sorted(m.qos for m in heard) == [0, 1, 2]
    assert sorted(bytes(m.payload).replace(b"js", b"message") for m in heard) == wanted
