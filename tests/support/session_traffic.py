"""Devices with persistent sessions that come back whatever happens, and keep their half of MQTT."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

from mqtt_client import MqttClient

from holdmq.mqtt import PubAck, PubComp, Publish, PubRec, PubRel

PAUSE_S = 0.05
"""Between a lost connection and the next attempt."""


class Device(threading.Thread):
    """A client in a thread of its own. `error` is what ended it; `connects` counts CONNACKs with 0."""

    def __init__(self, port: int, client_id: str) -> None:
        super().__init__(daemon=True, name=client_id)
        self.port = port
        self.client_id = client_id
        self.connects = 0
        self.error: BaseException | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._connection()
                except (OSError, TimeoutError):
                    time.sleep(PAUSE_S)
        except BaseException as error:
            self.error = error
            raise

    def _connection(self) -> None:
        client = MqttClient(self.port, self.client_id)
        try:
            if client.connack.reason_code:
                time.sleep(PAUSE_S)
                return
            assert client.connack.session_present or not self.connects, "the session was lost"
            self.connects += 1
            self._connected(client)
            while not self._stopping.is_set():
                self._turn(client)
        finally:
            client.close()

    def _connected(self, client: MqttClient) -> None:
        """What comes first on every connection."""

    def _turn(self, client: MqttClient) -> None:
        """One packet, or a moment without one."""

    def stop(self) -> None:
        self._stopping.set()
        self.join(100)
        assert not self.is_alive(), self.name
        assert self.error is None, f"{self.name}: {self.error!r}"


class Publisher(Device):
    """Publishes numbered messages, `window` at a time, until `hold` is set.

    What was not acknowledged to its end goes again first, in its order [MQTT-4.4.0-1]; `done` counts what
    was.
    """

    def __init__(self, port: int, client_id: str, topic: str, qos: int, window: int = 5) -> None:
        super().__init__(port, client_id)
        self.topic = topic
        self.qos = qos
        self.window = window
        self.published = self.done = 0
        self.hold = threading.Event()
        self._unfinished: OrderedDict[int, tuple[bytes, bool]] = OrderedDict()

    @property
    def is_finished(self) -> bool:
        return self.hold.is_set() and not self._unfinished

    def bodies(self) -> list[bytes]:
        return [self._body(n) for n in range(self.published)]

    def _body(self, number: int) -> bytes:
        return b"%s:%d" % (self.client_id.encode(), number)

    def _connected(self, client: MqttClient) -> None:
        for packet_id, (body, is_received) in self._unfinished.items():
            if is_received:
                client.send(PubRel(packet_id))
            else:
                client.send(Publish(self.topic, body, self.qos, packet_id=packet_id, dup=True))

    def _turn(self, client: MqttClient) -> None:
        while len(self._unfinished) < self.window and not self.hold.is_set():
            packet_id = self.published % 60_000 + 1
            self._unfinished[packet_id] = (self._body(self.published), False)
            self.published += 1
            client.send(Publish(self.topic, self._unfinished[packet_id][0], self.qos, packet_id=packet_id))
        try:
            packet = client.next(0.2)
        except TimeoutError:
            return
        if isinstance(packet, PubRec):
            assert packet.reason_code == 0
            body, _ = self._unfinished[packet.packet_id]
            self._unfinished[packet.packet_id] = (body, True)
            client.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubAck | PubComp):
            assert packet.reason_code in (0, 0x92)
            if self._unfinished.pop(packet.packet_id, None) is not None:
                self.done += 1


class Subscriber(Device):
    """Takes messages; of QoS 2 it remembers ids between PUBREC and PUBREL, so that `got` has each once."""

    def __init__(self, port: int, client_id: str, topic_filter: str, qos: int) -> None:
        super().__init__(port, client_id)
        self.topic_filter = topic_filter
        self.qos = qos
        self.got: list[tuple[bytes, int]] = []
        self.is_subscribed = False
        self._unreleased: set[int] = set()

    def _connected(self, client: MqttClient) -> None:
        if not self.is_subscribed:
            client.subscribe(self.topic_filter, qos=self.qos)
            self.is_subscribed = True

    def _turn(self, client: MqttClient) -> None:
        try:
            packet: Any = client.next(0.2)
        except TimeoutError:
            return
        if isinstance(packet, Publish):
            packet_id = packet.packet_id or 0
            if packet.qos == 2:
                if packet_id not in self._unreleased:
                    self._unreleased.add(packet_id)
                    self.got.append((bytes(packet.payload), 2))
                client.send(PubRec(packet_id))
            else:
                self.got.append((bytes(packet.payload), packet.qos))
                client.send(PubAck(packet_id))
        elif isinstance(packet, PubRel):
            self._unreleased.discard(packet.packet_id)
            client.send(PubComp(packet.packet_id))
