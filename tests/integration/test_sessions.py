"""Persistent sessions over real processes: what a subscriber finds when it comes back, whatever died."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import runner
from mqtt_client import MqttClient, bodies, connect_again, numbered
from processes import Stack, end_all, running_stack, wait_until
from session_traffic import Subscriber

from holdmq.mqtt import MQTT_3_1_1, Disconnect, MqttError, PubAck

StackMaker = Callable[..., Stack]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("sessions"), **{"gateway.workers": 3}) as stack:
        yield stack


def fresh(stack: Stack, name: str) -> MqttClient:
    """A client without a session that outlives it."""
    return MqttClient(stack.mqtt_port, name, clean=True, expiry_s=0)


@pytest.mark.mqtt(
    "MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.2.2-3", "MQTT-4.5.0-1", "MQTT-4.6.0-5", "MQTT-4.6.0-6"
)
def test_what_was_published_meanwhile_is_delivered_in_order(stack: Stack, topic: str) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, f"{topic}-sub")
    assert not subscriber.connack.session_present
    assert subscriber.connack.properties.session_expiry_interval is None
    assert subscriber.subscribe(f"{topic}/+/t").reason_codes == [1]
    publisher = fresh(stack, f"{topic}-pub")
    publisher.publish(f"{topic}/1/t", *numbered(3))
    assert bodies(subscriber.take(3)) == numbered(3)
    subscriber.disconnect()
    publisher.publish(f"{topic}/1/t", *numbered(100, 3))
    publisher.publish(f"{topic}/1/other", b"no")
    subscriber = MqttClient(port, f"{topic}-sub")
    assert subscriber.connack.session_present
    assert bodies(subscriber.take(100)) == numbered(100, 3)
    publisher.publish(f"{topic}/1/t", b"live")
    assert bodies(subscriber.take(1)) == [b"live"]
    assert subscriber.is_silent()


@pytest.mark.mqtt("MQTT-3.1.2-23")
def test_a_connection_that_is_cut_keeps_its_session_too(stack: Stack, topic: str) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, f"{topic}-sub", version=MQTT_3_1_1)
    subscriber.subscribe(f"{topic}/#")
    subscriber.close()
    publisher = fresh(stack, f"{topic}-pub")
    publisher.publish(f"{topic}/1", b"x")
    publisher.publish(f"{topic}/1", b"qos 0 is not kept", qos=0)
    publisher.publish(f"{topic}/1", b"y")
    subscriber = MqttClient(port, f"{topic}-sub", version=MQTT_3_1_1)
    assert subscriber.connack.session_present
    assert bodies(subscriber.take(2)) == [b"x", b"y"]


@pytest.mark.mqtt("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.3.2-3")
def test_unacknowledged_messages_come_again_with_dup_and_their_ids(stack: Stack, topic: str) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, f"{topic}-sub", receive_max=3)
    subscriber.subscribe(f"{topic}/1", identifier=7)
    publisher = fresh(stack, f"{topic}-pub")
    publisher.publish(f"{topic}/1", *numbered(6))
    first = [subscriber.message() for _ in range(3)]
    subscriber.send(PubAck(first[1].packet_id or 0), PubAck(first[2].packet_id or 0))
    later = [subscriber.message() for _ in range(2)]
    subscriber.close()
    subscriber = MqttClient(port, f"{topic}-sub")
    again = [subscriber.message() for _ in range(3)]
    expected = [(m.packet_id, bytes(m.payload), True) for m in (first[0], *later)]
    assert [(m.packet_id, bytes(m.payload), m.dup) for m in again] == expected
    assert all(m.properties.subscription_identifiers == (7,) for m in again)
    new = subscriber.message()
    assert (bytes(new.payload), new.dup) == (b"5", False)


@pytest.mark.mqtt("MQTT-3.1.2-4", "MQTT-3.1.4-4", "MQTT-3.2.2-2")
def test_unsubscribed_and_clean_sessions_get_nothing(stack: Stack, topic: str) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, f"{topic}-sub")
    subscriber.subscribe(f"{topic}/a", f"{topic}/b")
    assert subscriber.unsubscribe(f"{topic}/a").reason_codes == [0]
    subscriber.disconnect()
    publisher = fresh(stack, f"{topic}-pub")
    publisher.publish(f"{topic}/a", b"a")
    publisher.publish(f"{topic}/b", b"b")
    subscriber = MqttClient(port, f"{topic}-sub")
    assert bodies(subscriber.take(1)) == [b"b"]
    subscriber.disconnect()
    subscriber = MqttClient(port, f"{topic}-sub", clean=True)
    assert not subscriber.connack.session_present
    publisher.publish(f"{topic}/b", b"b")
    assert subscriber.is_silent()


@pytest.mark.mqtt("MQTT-4.1.0-2")
def test_a_session_ends_when_its_expiry_says_so(stack: Stack, topic: str) -> None:
    port = stack.mqtt_port
    run = runner(stack)

    def listed() -> list[str]:
        rows = json.loads(run("session", "list", "--prefix", f"{topic}-", "--json").stdout)
        return sorted(row["client_id"] for row in rows)

    clients = {}
    for name, expiry_s in (("a", 3600), ("b", 0), ("c", 1)):
        clients[name] = MqttClient(port, f"{topic}-{name}", expiry_s=expiry_s)
        clients[name].subscribe(f"{topic}/d")
    # The list is what the table shows, which is later than what was answered.
    wait_until(lambda: listed() == [f"{topic}-{name}" for name in "abc"], "all are listed")
    for name, expiry_s in (("a", 0), ("b", None), ("c", None)):
        clients[name].disconnect(expiry_s=expiry_s)
    wait_until(lambda: not listed(), "all have ended")
    for name in "abc":
        assert not MqttClient(port, f"{topic}-{name}", expiry_s=0).connack.session_present, name


@pytest.mark.mqtt("MQTT-3.1.4-3", "MQTT-3.1.3-2")
def test_a_client_has_one_connection_wherever_it_is(stack: Stack, topic: str) -> None:
    port = stack.mqtt_port
    expiries = (0, 60, 60, 0, 60, 0, 60, 60)
    clients = [MqttClient(port, f"{topic}-same", expiry_s=expiry_s) for expiry_s in expiries]
    for older in clients[:-1]:
        assert older.wait_for(Disconnect).reason_code == 0x8E
        with pytest.raises(ConnectionError):
            older.next()
    assert [client.connack.session_present for client in clients] == [
        False, False, True, True, False, True, False, True,
    ]  # fmt: skip
    clients[-1].subscribe(f"{topic}/d")
    clients[-1].publish(f"{topic}/d", b"alive")
    assert bodies(clients[-1].take(1)) == [b"alive"]


def test_a_takeover_loses_nothing_and_repeats_nothing_acknowledged(stack: Stack, topic: str) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, f"{topic}-sub")
    subscriber.subscribe(f"{topic}/#", qos=2)
    got: list[bytes] = []
    publisher = fresh(stack, f"{topic}-pub")
    for turn in range(8):
        publisher.publish(f"{topic}/1", *numbered(20, 20 * turn), qos=1 + turn % 2)
        got += bodies(subscriber.take(20))
        subscriber.ping()
        newer = MqttClient(port, f"{topic}-sub")
        assert newer.connack.session_present
        subscriber.close()
        subscriber = newer
    assert got == numbered(160)
    assert subscriber.is_silent()


def test_sessions_outlive_every_worker(stack: Stack, topic: str) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, f"{topic}-sub")
    subscriber.subscribe(f"{topic}/#")
    publisher = fresh(stack, f"{topic}-pub")
    publisher.publish(f"{topic}/1", *numbered(5))
    assert bodies(subscriber.take(5)) == numbered(5)
    stack.kill_workers()
    publisher = fresh(stack, f"{topic}-pub")
    publisher.publish(f"{topic}/1", *numbered(5, 5))
    subscriber = MqttClient(port, f"{topic}-sub")
    assert subscriber.connack.session_present
    got: list[bytes] = []
    while not got or got[-1] != b"9":
        got += bodies(subscriber.take(1))
    # The last seconds may come again with QoS 1, in order, and nothing is missing.
    assert got == numbered(10, 0)[-len(got) :]
    assert len(got) >= 5


@pytest.mark.mqtt("MQTT-4.1.0-1", "MQTT-3.1.2-23")
def test_sessions_outlive_the_broker_and_its_clients_stay_connected(
    holdmq_stack: StackMaker, topic: str
) -> None:
    stack = holdmq_stack()
    port = stack.mqtt_port
    subscriber = MqttClient(port, f"{topic}-sub")
    subscriber.subscribe(f"{topic}/#", qos=2)
    offline = MqttClient(port, f"{topic}-offline")
    offline.subscribe(f"{topic}/#", qos=2)
    offline.disconnect()
    publisher = fresh(stack, f"{topic}-pub")
    publisher.publish(f"{topic}/1", *numbered(5), qos=2)
    stack.restart("broker", signal.SIGKILL)
    publisher.publish(f"{topic}/1", *numbered(5, 5), qos=2)
    assert bodies(subscriber.take(10)) == numbered(10)
    subscriber.subscribe(f"{topic}-e")
    subscriber.disconnect()
    publisher.publish(f"{topic}-e", b"e")
    assert bodies(connect_again(port, f"{topic}-offline").take(10)) == numbered(10)
    assert bodies(connect_again(port, f"{topic}-sub").take(1)) == [b"e"]


def test_a_persistent_session_is_refused_while_its_owner_is_away(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack()
    port = stack.mqtt_port
    stack.stop("broker", signal.SIGKILL)
    wait_until(lambda: "broker lost" in stack.log("gateway"), "the gateway knows")
    assert MqttClient(port, "sub").connack.reason_code == 0x88
    clean = fresh(stack, "sub")
    assert clean.connack.reason_code == 0
    stack.start("broker")
    # It is registered when the owner is back, and taken over as any other.
    wait_until(lambda: stack.http("gateway", "/readyz")[0] == 200, "ready again")
    wait_until(lambda: stack.metric("broker", "holdmq_broker_session_opens_total") >= 1, "registered")
    # Each worker finds the owner in its own time.
    wait_until(lambda: MqttClient(port, "sub").connack.reason_code == 0, "taken over")
    assert clean.wait_for(Disconnect).reason_code == 0x8E


@pytest.fixture
def subscribers(stack: Stack, topic: str) -> Iterator[list[Subscriber]]:
    """Of QoS 2, each on a thread of its own."""
    started = [Subscriber(stack.mqtt_port, f"{topic}-c{n}", f"{topic}/#", 2) for n in range(3)]
    for subscriber in started:
        subscriber.start()
    yield started
    for subscriber in started:
        subscriber.stop()


@pytest.mark.mqtt("MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.4.0-1")
@pytest.mark.timeout(240)
def test_qos_2_is_delivered_exactly_once_whatever_is_killed(
    stack: Stack, topic: str, subscribers: list[Subscriber]
) -> None:
    wait_until(lambda: all(s.is_subscribed for s in subscribers), "all have subscribed")
    sent = 0
    for turn in range(6):
        publisher = fresh(stack, f"{topic}-p{turn}")
        publisher.publish(f"{topic}/1", *numbered(60, sent), qos=2)
        sent += 60
        publisher.disconnect()
        if turn % 2:
            stack.kill_broker()
        else:
            stack.kill_workers()
    wait_until(lambda: all(len(s.got) >= sent for s in subscribers), "everything is delivered")
    time.sleep(1.0)  # nothing comes twice
    for subscriber in subscribers:
        assert subscriber.error is None
        assert subscriber.got == [(body, 2) for body in numbered(sent)]


def test_a_refused_client_is_told_why(stack: Stack) -> None:
    with pytest.raises((MqttError, ConnectionError)):
        MqttClient(stack.mqtt_port, "x" * 2000).next()


def test_connects_of_one_client_id_at_the_same_time_leave_one_connection(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(**{"gateway.workers": 1})

    def connect_often() -> None:
        for _ in range(5):
            with contextlib.suppress(ConnectionError):  # the next one came before its CONNACK
                MqttClient(stack.mqtt_port, "same")

    threads = [threading.Thread(target=connect_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    connect_again(stack.mqtt_port, "same").ping()
    wait_until(lambda: stack.metric("gateway", "holdmq_gateway_connections") == 1, "the others are closed")
    assert stack.metric("broker", "holdmq_broker_sessions_open") == 1


def test_sessions_that_come_back_together_all_get_what_was_theirs(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(**{"gateway.workers": 1})
    port = stack.mqtt_port
    names = [f"dev{n}" for n in range(120)]
    for name in names:
        client = MqttClient(port, name)
        client.subscribe(f"cmd/{name}", "all/+", qos=2)
        client.disconnect()
    publisher = fresh(stack, "pub")
    noise = b"x" * 200_000
    for at, name in enumerate(names):
        publisher.publish(f"cmd/{name}", name.encode(), qos=1)
        publisher.publish("noise/1", noise, qos=1)
        if at % 40 == 0:
            publisher.publish("all/1", b"all", qos=1)
    clients = [MqttClient(port, name) for name in names]
    for at, client in enumerate(clients):
        wanted = [b"all"] * 3
        wanted.insert((at + 39) // 40, names[at].encode())
        assert bodies(client.take(4)) == wanted, "in the order of the log"
    publisher.publish("all/1", b"live", qos=1)
    for client in clients:
        assert bodies(client.take(1)) == [b"live"]
        assert client.is_silent(0.01)
    wait_until(lambda: stack.metric("gateway", "holdmq_gateway_lagging_sessions") == 0, "all are fed live")


@pytest.mark.parametrize("version", [4, 5])
def test_paho_finds_its_session_again(stack: Stack, topic: str, version: int) -> None:
    import paho.mqtt.client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties as PahoProperties

    got: list[bytes] = []
    present: list[bool] = []
    subscribed = threading.Event()

    def client(name: str) -> paho.Client:
        options = {} if version == 5 else {"clean_session": False}
        protocol = paho.MQTTProtocolVersion(version)
        made = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=protocol, **options)
        made.on_connect = lambda _c, _u, flags, _r, _p: present.append(flags.session_present)
        made.on_message = lambda _c, _u, message: got.append(message.payload)
        made.on_subscribe = lambda *_: subscribed.set()
        return made

    def connect(made: paho.Client) -> None:
        known = len(present)
        if version == 5:
            properties = PahoProperties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 600
            made.connect("127.0.0.1", stack.mqtt_port, clean_start=False, properties=properties)
        else:
            made.connect("127.0.0.1", stack.mqtt_port)
        made.loop_start()
        wait_until(lambda: len(present) > known, "CONNACK")

    subscriber = client(f"{topic}-paho")
    connect(subscriber)
    subscriber.subscribe(f"{topic}/#", qos=2)
    assert subscribed.wait(40)
    subscriber.disconnect()
    subscriber.loop_stop()
    publisher = fresh(stack, f"{topic}-pub")
    publisher.publish(f"{topic}/1", *numbered(50), qos=2)
    subscriber = client(f"{topic}-paho")
    connect(subscriber)
    wait_until(lambda: len(got) >= 50, "all that was published meanwhile")
    publisher.publish(f"{topic}/1", b"live", qos=1)
    wait_until(lambda: len(got) >= 51, "what comes now")
    subscriber.disconnect()
    subscriber.loop_stop()
    assert got == [*numbered(50), b"live"]
    assert present == [False, True]


def test_a_session_goes_on_at_another_gateway(stack: Stack, topic: str, tmp_path: Path) -> None:
    directory = tmp_path / "other"
    directory.mkdir()
    other = Stack(directory, {"registry.port": stack.registry_port})
    try:
        other.start("gateway")
        first = MqttClient(stack.mqtt_port, f"{topic}-roams")
        first.subscribe(f"{topic}/#", qos=2)
        publisher = fresh(stack, f"{topic}-pub")
        got: list[bytes] = []
        for turn in range(4):
            publisher.publish(f"{topic}/1", *numbered(10, 10 * turn), qos=2)
            got += bodies(first.take(10))
            first.ping()
            second = MqttClient((other if turn % 2 == 0 else stack).mqtt_port, f"{topic}-roams")
            assert second.connack.session_present
            assert first.wait_for(Disconnect).reason_code == 0x8E
            first = second
        assert got == numbered(40)
        assert first.is_silent()
    finally:
        MqttClient.close_all()
        end_all([other])
