"""MQTT packets with something wrong in them: every kind that a client sends, changed at random."""

from __future__ import annotations

import random
from collections.abc import Iterator

from holdmq.mqtt import (
    MQTT_5,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)

_MESSAGE = Properties(
    payload_format_indicator=1,
    message_expiry_interval=60,
    content_type="text/plain",
    response_topic="fuzz/answers",
    correlation_data=b"\0\1\2",
    user_properties=(("key", "value"), ("key", "other")),
)
_LOGON = Properties(
    session_expiry_interval=5,
    receive_maximum=20,
    maximum_packet_size=1 << 20,
    topic_alias_maximum=10,
    request_problem_information=1,
    user_properties=(("key", "value"),),
)
INTERESTING = b"\x00\x01\x02\x7f\x80\x81\xff\xfe#+/$\xc0\xed"
"""Bytes at which something begins or ends: lengths, wildcards, what is no UTF-8."""


def _of(version: int, properties: Properties) -> Properties:
    return properties if version == MQTT_5 else Properties()


def connects(version: int) -> list[bytes]:
    """CONNECTs of one version that are as they should be."""
    will = Will("fuzz/will", b"gone", 1, properties=_of(version, Properties(will_delay_interval=1)))
    packets = [
        Connect("fuzz-1", version),
        Connect("fuzz-2", version, clean_start=False, properties=_of(version, _LOGON)),
        Connect("fuzz-3", version, keep_alive=30, will=will, username="user", password=b"secret"),
        Connect("fuzz-4", version, will=Will("fuzz/kept", b"x", 2, True), properties=_of(version, _LOGON)),
    ]
    return [encode(packet, version) for packet in packets]


def _packets(version: int) -> list[Packet]:
    packets: list[Packet] = []
    for qos in range(3):
        for topic, payload in (("fuzz/a", b"payload"), ("fuzz/a/b/c/d", b""), ("other/x", b"x" * 300)):
            packet_id = 10 * qos + 1 if qos else 0
            packets += [
                Publish(topic, payload, qos, packet_id=packet_id, properties=_of(version, _MESSAGE)),
                Publish(topic, payload, qos, retain=True, dup=qos > 0, packet_id=packet_id),
            ]
    packets += [PubAck(1), PubRec(11), PubRel(21), PubComp(11), PubRel(999), PubRec(999)]
    wanted = [Subscription("fuzz/#", 2), Subscription("+/x", 1), Subscription("$share/g/fuzz/+", 1)]
    identified = _of(version, Properties(subscription_identifiers=(7,)))
    packets += [
        Subscribe(2, wanted, identified),
        Subscribe(3, wanted[:1]),
        Subscribe(4, [Subscription("#", 0), Subscription("$SYS/#", 0)]),
        Unsubscribe(5, ["fuzz/#", "+/x"]),
        Unsubscribe(6, ["never"]),
        PingReq(),
    ]
    if version == MQTT_5:
        alias = Properties(topic_alias=3)
        packets += [
            Publish("fuzz/alias", b"set", properties=alias),
            Publish("", b"used", 1, packet_id=30, properties=alias),
            Subscribe(7, [Subscription("fuzz/own", 1, True, True, 2)]),
            PubAck(1, 0x80, Properties(reason_string="no")),
            PubRec(11, 0x97),
            Auth(0x18, Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,")),
            Disconnect(0x04, Properties(session_expiry_interval=3, reason_string="bye")),
        ]
    return packets


class Mutator:
    """Gives streams of one version: a CONNECT, then packets that are each changed somewhere."""

    def __init__(self, version: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._connects = connects(version)
        self._packets = [encode(packet, version) for packet in _packets(version)]

    def streams(self, packets: int, per_stream: int) -> Iterator[bytes]:
        """So many changed packets, in streams; one CONNECT of ten is changed too."""
        rng = self._rng
        for first in range(0, packets, per_stream):
            connect = rng.choice(self._connects)
            parts = [connect if rng.random() < 0.9 else self._changed(connect)]
            parts += [
                self._changed(rng.choice(self._packets)) for _ in range(min(per_stream, packets - first))
            ]
            yield b"".join(parts)

    def _changed(self, packet: bytes) -> bytes:
        rng = self._rng
        data = bytearray(packet)
        for _ in range(1 if rng.random() < 0.8 else 3):
            at = rng.randrange(len(data)) if data else 0
            kind = rng.randrange(7)
            if kind == 0 and data:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1 and data:
                data[at] = rng.choice(INTERESTING)
            elif kind == 2:
                del data[at : at + rng.randint(1, 4)]
            elif kind == 3:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
            elif kind == 4:
                data[at:at] = data[: rng.randint(1, 8)]
            elif kind == 5:
                del data[at:]
            elif len(data) > 4:
                # Behind its fixed header, so that the packet stays one, and what follows is read too.
                data[rng.randrange(2, len(data))] = rng.choice(INTERESTING)
        return bytes(data)
