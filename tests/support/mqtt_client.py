"""An MQTT client that does exactly what a test says: blocking, acknowledging nothing by itself."""

from __future__ import annotations

import socket
import time
from typing import Any, ClassVar, Final, TypeVar

from holdmq.mqtt import (
    MQTT_5,
    SERVER,
    AckRun,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PublishRun,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
    publishes,
)
from holdmq.mqtt.protocol import PUBACK, PUBCOMP, PUBREC, PUBREL

P = TypeVar("P")
PATIENCE_S: Final = 40.0
"""For what comes at once, but on a machine that is busy with other tests."""
_KINDS: dict[int, Any] = {PUBACK: PubAck, PUBREC: PubRec, PUBREL: PubRel, PUBCOMP: PubComp}


class MqttClient:
    """One connection. `received` are packets that nobody waited for yet, in their order.

    A test's fixture ends with `close_all`.
    """

    _open: ClassVar[list[MqttClient]] = []

    def __init__(
        self,
        port: int,
        client_id: str,
        *,
        clean: bool = False,
        expiry_s: int = 3600,
        version: int = MQTT_5,
        receive_max: int | None = None,
        asks_for_response: bool = False,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
    ) -> None:
        self.version = version
        self.received: list[Any] = []
        self._decoder: Decoder[bytes] = Decoder(CheckedTopics(bytes), 1 << 24, sender=SERVER, version=version)
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.append(self)
        self._ids = 0
        properties = Properties(
            session_expiry_interval=expiry_s,
            receive_maximum=receive_max,
            request_response_information=1 if asks_for_response else None,
        )
        self.send(
            Connect(
                client_id=client_id,
                clean_start=clean,
                version=version,
                keep_alive=60,
                username=username,
                password=password,
                will=will,
                properties=properties if version == MQTT_5 else Properties(),
            )
        )
        self.connack: ConnAck = self.wait_for(ConnAck)

    def send(self, *packets: Packet) -> None:
        self._socket.sendall(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """What no encoder would make."""
        self._socket.sendall(data)

    def next(self, timeout_s: float = PATIENCE_S) -> Any:
        """The next packet; acknowledgements one by one. ConnectionError at the end, TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not self.received:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            for item in self._decoder.feed(data):
                if isinstance(item, PublishRun):
                    self.received += publishes(item)
                elif isinstance(item, AckRun):
                    self.received += [_KINDS[item.packet_type](i) for i in item.packet_ids]
                else:
                    self.received.append(item)
        return self.received.pop(0)

    def wait_for(self, kind: type[P], timeout_s: float = PATIENCE_S) -> P:
        """The next packet of a kind; what came before stays in `received`."""
        passed: list[Any] = []
        try:
            while True:
                packet = self.next(timeout_s)
                if isinstance(packet, kind):
                    return packet
                passed.append(packet)
        finally:
            self.received[:0] = passed

    def subscribe(self, *filters: str, qos: int = 1, identifier: int | None = None) -> SubAck:
        self._ids += 1
        properties = Properties(subscription_identifiers=(identifier,)) if identifier else Properties()
        wanted = [Subscription(name, qos) for name in filters]
        self.send(Subscribe(60_000 + self._ids, wanted, properties))
        return self.wait_for(SubAck)

    def unsubscribe(self, *filters: str) -> UnsubAck:
        self._ids += 1
        self.send(Unsubscribe(60_000 + self._ids, list(filters)))
        return self.wait_for(UnsubAck)

    def publish(self, topic: str, *payloads: bytes, qos: int = 1) -> None:
        """Publish, and wait until all are acknowledged to the end; AssertionError if one is refused."""
        for payload in payloads:
            self._ids += 1
            packet_id = self._ids % 50_000 + 1
            self.send(Publish(topic, payload, qos, packet_id=packet_id if qos else 0))
            if qos:
                answer = self.wait_for(PubAck if qos == 1 else PubRec)
                assert answer.packet_id == packet_id
                assert answer.reason_code < 0x80, answer
            if qos == 2:
                self.send(PubRel(packet_id))
                assert self.wait_for(PubComp).packet_id == packet_id

    def ping(self) -> None:
        """Come back when the gateway has taken all that was sent so far."""
        self.send(PingReq())
        self.wait_for(PingResp)

    def message(self, timeout_s: float = PATIENCE_S) -> Publish:
        """The next PUBLISH, not acknowledged."""
        return self.wait_for(Publish, timeout_s)

    def settle(self, message: Publish, timeout_s: float = PATIENCE_S) -> None:
        """Acknowledge a message to the end."""
        if message.qos == 1:
            self.send(PubAck(message.packet_id or 0))
        elif message.qos == 2:
            self.send(PubRec(message.packet_id or 0))
            self.wait_for(PubRel, timeout_s)
            self.send(PubComp(message.packet_id or 0))

    def take(self, count: int, timeout_s: float = PATIENCE_S) -> list[Publish]:
        """So many messages, acknowledged to the end as they come."""
        taken: list[Publish] = []
        while len(taken) < count:
            taken.append(self.message(timeout_s))
            self.settle(taken[-1], timeout_s)
        return taken

    def is_silent(self, seconds: float = 0.5) -> bool:
        """Whether nothing comes for a while."""
        try:
            self.received.insert(0, self.next(seconds))
        except TimeoutError:
            return True
        return False

    def disconnect(self, reason_code: int = 0, expiry_s: int | None = None) -> None:
        """End in good order."""
        self.send(Disconnect(reason_code, Properties(session_expiry_interval=expiry_s)))
        self.close()

    def close(self) -> None:
        """Cut the connection."""
        self._socket.close()

    def interrupt(self) -> None:
        """Cut the connection, and whoever waits in another thread for the other side to read."""
        self._socket.shutdown(socket.SHUT_RDWR)

    @classmethod
    def close_all(cls) -> None:
        """Cut every connection of the test."""
        while cls._open:
            cls._open.pop().close()


def connect_again(port: int, client_id: str, **options: Any) -> MqttClient:
    """Connect as a device does that has a session: again, while nobody listens or its owner is away."""
    deadline = time.monotonic() + 40
    while True:
        try:
            client = MqttClient(port, client_id, **options)
        except OSError:
            pass
        else:
            if client.connack.reason_code != 0x88:
                assert client.connack.session_present, client.connack
                return client
            client.close()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def bodies(messages: list[Publish]) -> list[bytes]:
    """Their payloads."""
    return [bytes(message.payload) for message in messages]


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Payloads that are told apart, and sort as they were made: b"0", b"1", …"""
    return [b"%d" % n for n in range(first, first + count)]
