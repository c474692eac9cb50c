"""Persistent sessions over real processes: what a subscriber finds when it comes back, whatever died."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from mqtt_client import MqttClient
from processes import Stack, end_all, wait_until

from holdmq.mqtt import MQTT_3_1_1, Disconnect, MqttError, PubAck, PubComp, Publish, PubRec, PubRel

StackMaker = Callable[..., Stack]


@pytest.fixture(autouse=True)
def _ended_clients() -> Iterator[None]:
    yield
    MqttClient.close_all()


def workers(stack: Stack) -> list[int]:
    return [child.pid for child in psutil.Process(stack.processes["gateway"].pid).children()]


def kill_workers(stack: Stack) -> None:
    """kill -9 of every worker; back when their successors serve."""
    before = workers(stack)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: len(workers(stack)) == len(before) and not set(workers(stack)) & set(before), "new workers"
    )
    wait_until(lambda: stack.http("gateway", "/readyz")[0] == 200, "ready again")


def connect_again(port: int, client_id: str) -> MqttClient:
    """Connect as a device does: again, while the gateway says that the owner is away."""
    client = MqttClient(port, client_id)
    deadline = time.monotonic() + 30
    while client.connack.reason_code == 0x88:
        assert time.monotonic() < deadline
        client = MqttClient(port, client_id)
    assert client.connack.session_present
    return client


def bodies(messages: list[Publish]) -> list[bytes]:
    return [bytes(message.payload) for message in messages]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


@pytest.fixture
def stack(holdmq_stack: StackMaker) -> Stack:
    return holdmq_stack()


@pytest.mark.mqtt(
    "MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.2.2-3", "MQTT-4.5.0-1", "MQTT-4.6.0-5", "MQTT-4.6.0-6"
)
def test_what_was_published_meanwhile_is_delivered_in_order(stack: Stack) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, "sub")
    assert not subscriber.connack.session_present
    assert subscriber.connack.properties.session_expiry_interval is None
    assert subscriber.subscribe("d/+/t").reason_codes == [1]
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
    publisher.publish("d/1/t", *numbered(3))
    assert bodies(subscriber.take(3)) == numbered(3)
    subscriber.disconnect()
    publisher.publish("d/1/t", *numbered(100, 3))
    publisher.publish("d/1/other", b"no")
    subscriber = MqttClient(port, "sub")
    assert subscriber.connack.session_present
    assert bodies(subscriber.take(100)) == numbered(100, 3)
    publisher.publish("d/1/t", b"live")
    assert bodies(subscriber.take(1)) == [b"live"]
    assert subscriber.is_silent()


@pytest.mark.mqtt("MQTT-3.1.2-23")
def test_a_connection_that_is_cut_keeps_its_session_too(stack: Stack) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, "sub", version=MQTT_3_1_1)
    subscriber.subscribe("d/#")
    subscriber.close()
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
    publisher.publish("d/1", b"x")
    publisher.publish("d/1", b"qos 0 is not kept", qos=0)
    publisher.publish("d/1", b"y")
    subscriber = MqttClient(port, "sub", version=MQTT_3_1_1)
    assert subscriber.connack.session_present
    assert bodies(subscriber.take(2)) == [b"x", b"y"]


@pytest.mark.mqtt("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.3.2-3")
def test_unacknowledged_messages_come_again_with_dup_and_their_ids(stack: Stack) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, "sub", receive_max=3)
    subscriber.subscribe("d/1", identifier=7)
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
    publisher.publish("d/1", *numbered(6))
    first = [subscriber.message() for _ in range(3)]
    subscriber.send(PubAck(first[1].packet_id or 0), PubAck(first[2].packet_id or 0))
    later = [subscriber.message() for _ in range(2)]
    subscriber.close()
    subscriber = MqttClient(port, "sub")
    again = [subscriber.message() for _ in range(3)]
    expected = [(m.packet_id, bytes(m.payload), True) for m in (first[0], *later)]
    assert [(m.packet_id, bytes(m.payload), m.dup) for m in again] == expected
    assert all(m.properties.subscription_identifiers == (7,) for m in again)
    new = subscriber.message()
    assert (bytes(new.payload), new.dup) == (b"5", False)


@pytest.mark.mqtt("MQTT-3.1.2-4", "MQTT-3.1.4-4", "MQTT-3.2.2-2")
def test_unsubscribed_and_clean_sessions_get_nothing(stack: Stack) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, "sub")
    subscriber.subscribe("a", "b")
    assert subscriber.unsubscribe("a").reason_codes == [0]
    subscriber.disconnect()
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
    publisher.publish("a", b"a")
    publisher.publish("b", b"b")
    subscriber = MqttClient(port, "sub")
    assert bodies(subscriber.take(1)) == [b"b"]
    subscriber.disconnect()
    subscriber = MqttClient(port, "sub", clean=True)
    assert not subscriber.connack.session_present
    publisher.publish("b", b"b")
    assert subscriber.is_silent()


@pytest.mark.mqtt("MQTT-4.1.0-2")
def test_a_session_ends_when_its_expiry_says_so(stack: Stack) -> None:
    port = stack.mqtt_port
    for client_id, at_connect, at_disconnect in (("a", 3600, 0), ("b", 0, None), ("c", 1, None)):
        client = MqttClient(port, client_id, expiry_s=at_connect)
        client.subscribe("d")
        client.disconnect(expiry_s=at_disconnect)
    time.sleep(1.5)  # what is tested is time
    for client_id in "abc":
        assert not MqttClient(port, client_id, expiry_s=0).connack.session_present, client_id


@pytest.mark.mqtt("MQTT-3.1.4-3", "MQTT-3.1.3-2")
def test_a_client_has_one_connection_wherever_it_is(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(**{"gateway.workers": 3})
    port = stack.mqtt_port
    clients = [MqttClient(port, "same", expiry_s=expiry_s) for expiry_s in (0, 60, 60, 0, 60, 0, 60, 60)]
    for older in clients[:-1]:
        assert older.wait_for(Disconnect).reason_code == 0x8E
        with pytest.raises(ConnectionError):
            older.next()
    assert [client.connack.session_present for client in clients] == [
        False, False, True, True, False, True, False, True,
    ]  # fmt: skip
    clients[-1].subscribe("d")
    clients[-1].publish("d", b"alive")
    assert bodies(clients[-1].take(1)) == [b"alive"]


def test_a_takeover_loses_nothing_and_repeats_nothing_acknowledged(holdmq_stack: StackMaker) -> None:
    stack = holdmq_stack(**{"gateway.workers": 3})
    port = stack.mqtt_port
    subscriber = MqttClient(port, "sub")
    subscriber.subscribe("d/#", qos=2)
    got: list[bytes] = []
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
    for turn in range(8):
        publisher.publish("d/1", *numbered(20, 20 * turn), qos=1 + turn % 2)
        got += bodies(subscriber.take(20))
        subscriber.ping()
        newer = MqttClient(port, "sub")
        assert newer.connack.session_present
        subscriber.close()
        subscriber = newer
    assert got == numbered(160)
    assert subscriber.is_silent()


def test_sessions_outlive_every_worker(stack: Stack) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, "sub")
    subscriber.subscribe("d/#")
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
    publisher.publish("d/1", *numbered(5))
    assert bodies(subscriber.take(5)) == numbered(5)
    kill_workers(stack)
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
    publisher.publish("d/1", *numbered(5, 5))
    subscriber = MqttClient(port, "sub")
    assert subscriber.connack.session_present
    got: list[bytes] = []
    while not got or got[-1] != b"9":
        got += bodies(subscriber.take(1))
    # The last seconds may come again with QoS 1, in order, and nothing is missing.
    assert got == numbered(10, 0)[-len(got) :]
    assert len(got) >= 5


@pytest.mark.mqtt("MQTT-4.1.0-1", "MQTT-3.1.2-23")
def test_sessions_outlive_the_broker_and_its_clients_stay_connected(stack: Stack) -> None:
    port = stack.mqtt_port
    subscriber = MqttClient(port, "sub")
    subscriber.subscribe("d/#", qos=2)
    offline = MqttClient(port, "offline")
    offline.subscribe("d/#", qos=2)
    offline.disconnect()
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
    publisher.publish("d/1", *numbered(5), qos=2)
    stack.restart("broker", signal.SIGKILL)
    publisher.publish("d/1", *numbered(5, 5), qos=2)
    assert bodies(subscriber.take(10)) == numbered(10)
    subscriber.subscribe("e")
    subscriber.disconnect()
    publisher.publish("e", b"e")
    assert bodies(connect_again(port, "offline").take(10)) == numbered(10)
    assert bodies(connect_again(port, "sub").take(1)) == [b"e"]


def test_a_persistent_session_is_refused_while_its_owner_is_away(stack: Stack) -> None:
    port = stack.mqtt_port
    stack.stop("broker", signal.SIGKILL)
    wait_until(lambda: "broker lost" in stack.log("gateway"), "the gateway knows")
    assert MqttClient(port, "sub").connack.reason_code == 0x88
    clean = MqttClient(port, "sub", clean=True, expiry_s=0)
    assert clean.connack.reason_code == 0
    stack.start("broker")
    # It is registered when the owner is back, and taken over as any other.
    wait_until(lambda: stack.http("gateway", "/readyz")[0] == 200, "ready again")
    wait_until(lambda: stack.metric("broker", "holdmq_broker_session_opens_total") >= 1, "registered")
    # Each worker finds the owner in its own time.
    wait_until(lambda: MqttClient(port, "sub").connack.reason_code == 0, "taken over")
    assert clean.wait_for(Disconnect).reason_code == 0x8E


class Consumer(threading.Thread):
    """A QoS 2 subscriber as the specification wants it: it remembers ids between PUBREC and PUBREL."""

    def __init__(self, port: int, client_id: str) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.client_id = client_id
        self.got: list[bytes] = []
        self.connects = 0
        self._unreleased: set[int] = set()
        self._stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                with contextlib.suppress(OSError, ConnectionError, TimeoutError):
                    self._connect()
                time.sleep(0.05)
        except BaseException as error:
            self.error = error
            raise

    def _connect(self) -> None:
        client = MqttClient(self.port, self.client_id)
        if client.connack.reason_code:
            return
        self.connects += 1
        if not client.connack.session_present:
            self._unreleased.clear()
            assert not self.got, "the session was lost"
            client.subscribe("x/#", qos=2)
        try:
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    self._handle(client, client.next(0.2))
        finally:
            client.close()

    def _handle(self, client: MqttClient, packet: object) -> None:
        if isinstance(packet, Publish):
            packet_id = packet.packet_id or 0
            if packet_id not in self._unreleased:
                self._unreleased.add(packet_id)
                self.got.append(bytes(packet.payload))
            client.send(PubRec(packet_id))
        elif isinstance(packet, PubRel):
            self._unreleased.discard(packet.packet_id)
            client.send(PubComp(packet.packet_id))

    def stop(self) -> None:
        self._stopping.set()
        self.join(20)


@pytest.fixture
def consumers() -> Iterator[list[Consumer]]:
    started: list[Consumer] = []
    yield started
    for consumer in started:
        consumer.stop()


@pytest.mark.mqtt("MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.4.0-1")
@pytest.mark.timeout(240)
def test_qos_2_is_delivered_exactly_once_whatever_is_killed(
    holdmq_stack: StackMaker, consumers: list[Consumer]
) -> None:
    stack = holdmq_stack()
    port = stack.mqtt_port
    for n in range(3):
        consumers.append(Consumer(port, f"c{n}"))
        consumers[-1].start()
    wait_until(lambda: all(c.connects for c in consumers), "all subscribed")
    time.sleep(0.5)
    sent = 0
    for turn in range(6):
        publisher = MqttClient(port, f"p{turn}", clean=True, expiry_s=0)
        publisher.publish("x/1", *numbered(60, sent), qos=2)
        sent += 60
        publisher.disconnect()
        if turn % 2:
            stack.restart("broker", signal.SIGKILL)
            wait_until(lambda: stack.http("gateway", "/readyz")[0] == 200, "ready again")
        else:
            kill_workers(stack)
    wait_until(lambda: all(len(c.got) >= sent for c in consumers), "everything is delivered")
    time.sleep(1.0)
    for consumer in consumers:
        assert consumer.error is None
        assert consumer.got == numbered(sent)


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
    publisher = MqttClient(port, "pub", clean=True, expiry_s=0)
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
def test_paho_finds_its_session_again(stack: Stack, version: int) -> None:
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

    subscriber = client("paho")
    connect(subscriber)
    subscriber.subscribe("d/#", qos=2)
    assert subscribed.wait(15)
    subscriber.disconnect()
    subscriber.loop_stop()
    publisher = MqttClient(stack.mqtt_port, "pub", clean=True, expiry_s=0)
    publisher.publish("d/1", *numbered(50), qos=2)
    subscriber = client("paho")
    connect(subscriber)
    wait_until(lambda: len(got) >= 50, "all that was published meanwhile")
    publisher.publish("d/1", b"live", qos=1)
    wait_until(lambda: len(got) >= 51, "what comes now")
    subscriber.disconnect()
    subscriber.loop_stop()
    assert got == [*numbered(50), b"live"]
    assert present == [False, True]


def test_a_session_goes_on_at_another_gateway(stack: Stack, tmp_path: Path) -> None:
    directory = tmp_path / "other"
    directory.mkdir()
    other = Stack(directory, {"registry.port": stack.registry_port})
    try:
        other.start("gateway")
        first = MqttClient(stack.mqtt_port, "roams")
        first.subscribe("d/#", qos=2)
        publisher = MqttClient(stack.mqtt_port, "pub", clean=True, expiry_s=0)
        got: list[bytes] = []
        for turn in range(4):
            publisher.publish("d/1", *numbered(10, 10 * turn), qos=2)
            got += bodies(first.take(10))
            first.ping()
            second = MqttClient((other if turn % 2 == 0 else stack).mqtt_port, "roams")
            assert second.connack.session_present
            assert first.wait_for(Disconnect).reason_code == 0x8E
            first = second
        assert got == numbered(40)
        assert first.is_silent()
    finally:
        MqttClient.close_all()
        end_all([other])
