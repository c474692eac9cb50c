"""One MQTT session without a socket: what it is fed, what it answers."""

from __future__ import annotations

import itertools
from typing import Any

from gateway.ground.counters import Counters
from gateway.ground.entries import make_entry
from gateway.ground.limits import SessionLimits
from gateway.ground.receipts import PublishReceipt
from gateway.session.events import Closed, Connected
from gateway.session.session import Session, SessionContext
from holdmq.config.model import GatewaySection
from holdmq.mqtt import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    PUBACK,
    SERVER,
    AckRun,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Packet,
    PublishRun,
    encode,
    publishes,
)
from holdmq.record.codec import NO_HOST

VERSIONS = [MQTT_3_1, MQTT_3_1_1, MQTT_5]


class Bench:
    """A session with a clock of its own, fed with packets, its answers decoded."""

    def __init__(self, version: int = MQTT_5, anonymous: bool = True, **section: Any) -> None:
        self.version = version
        self.now = 1000.0
        self.counters = Counters()
        ids = itertools.count(1)
        limits = SessionLimits(GatewaySection(**section), anonymous)
        self.context = SessionContext(
            CheckedTopics(lambda raw: make_entry(raw, limits.topic_max_bytes, limits.topic_levels_max)),
            limits,
            self.counters,
            lambda: f"auto-{next(ids)}",
        )
        self.session = Session(self.context, self.now, NO_HOST)
        self.decoder: Decoder[bytes] = Decoder(CheckedTopics(bytes), 1 << 24, sender=SERVER, version=version)

    def feed(self, *packets: Packet | bytes) -> list[Any]:
        data = b"".join(p if isinstance(p, bytes) else encode(p, self.version) for p in packets)
        return self.session.receive_data(data, self.now)

    def sent(self) -> list[Any]:
        items: list[Any] = []
        for item in self.decoder.feed(self.session.data_to_send()):
            items += publishes(item) if isinstance(item, PublishRun) else [item]
        return items

    def connect(self, **fields: Any) -> ConnAck:
        fields.setdefault("client_id", "device")
        events = self.feed(Connect(version=self.version, **fields))
        assert isinstance(events[0], Connected), events
        self.session.admit(False, self.now)
        answer = self.sent()[0]
        assert isinstance(answer, ConnAck)
        return answer

    def push(self, flags: int = 2, position: int = 0) -> bool:
        head = bytes((0x30 | flags, 6, 0, 1)) + b"a"
        return self.session.push(head, b"\0", "b1", position, flags, ())

    def settle(self, packet_ids: list[int], packet_type: int = PUBACK, outcome: int = 0) -> None:
        receipt = PublishReceipt(self.session, packet_type, packet_ids[0])
        for packet_id in packet_ids[1:]:
            receipt.add(packet_id)
        self.session.expect(receipt)
        receipt.settle(outcome)


def reasons(events: list[Any]) -> list[str]:
    return [event.reason for event in events if isinstance(event, Closed)]


def ids(items: list[Any]) -> list[int]:
    found: list[int] = []
    for item in items:
        found += item.packet_ids if isinstance(item, AckRun) else [item.packet_id]
    return found
