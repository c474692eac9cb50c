"""The 15 control packets as slotted classes, for what is not the hot path.

PUBLISH and short acknowledgements come out of a `Decoder` as runs instead (`PublishRun`,
`AckRun`): see `holdmq.mqtt`. MQTT 3 packets have no properties and no reason codes; encoding for
a level that cannot carry a field leaves the field out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from holdmq.mqtt import protocol
from holdmq.mqtt.properties import NO_PROPERTIES, Properties


@dataclass(slots=True)
class Will:
    """The will of a CONNECT (3.1.2.5); `topic` is a valid topic name."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Connect:
    """CONNECT (3.1). `version` is the protocol level; `keep_alive` seconds, 0 = off.

    `client_id` may be empty in MQTT 5, and in 3.1.1 with `clean_start`: the server then makes one.
    The password is left out of the representation, so that no log shows it.
    """

    packet_type: ClassVar[int] = protocol.CONNECT
    client_id: str = ""
    version: int = protocol.MQTT_3_1_1
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: Will | None = None
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class ConnAck:
    """CONNACK (3.2). `reason_code` is MQTT 5's; on MQTT 3 connections it is translated both ways."""

    packet_type: ClassVar[int] = protocol.CONNACK
    session_present: bool = False
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Publish:
    """PUBLISH (3.3). `packet_id` is 0 for QoS 0; `topic` may be empty with a topic alias (MQTT 5)."""

    packet_type: ClassVar[int] = protocol.PUBLISH
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class _PublishAnswer:
    """What the four answers to a PUBLISH and to each other say. 0x80 and above in `reason_code`: refused."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class PubAck(_PublishAnswer):
    """PUBACK (3.4), the answer to QoS 1."""

    packet_type: ClassVar[int] = protocol.PUBACK


@dataclass(slots=True)
class PubRec(_PublishAnswer):
    """PUBREC (3.5), the first answer to QoS 2."""

    packet_type: ClassVar[int] = protocol.PUBREC


@dataclass(slots=True)
class PubRel(_PublishAnswer):
    """PUBREL (3.6), the sender's release of QoS 2."""

    packet_type: ClassVar[int] = protocol.PUBREL


@dataclass(slots=True)
class PubComp(_PublishAnswer):
    """PUBCOMP (3.7), the last answer of QoS 2."""

    packet_type: ClassVar[int] = protocol.PUBCOMP


@dataclass(slots=True)
class Subscription:
    """One filter of a SUBSCRIBE with its options (3.8.3.1); MQTT 3 has the QoS only.

    `topic_filter` is as sent, `$share/…` included, and valid: `parse_filter` splits it.
    `retain_handling`: 0 send retained messages, 1 only for a new subscription, 2 never.
    """

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE (3.8); at least one subscription."""

    packet_type: ClassVar[int] = protocol.SUBSCRIBE
    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class SubAck:
    """SUBACK (3.9): a reason code for each subscription, in order. MQTT 3 says 0x80 for any refusal."""

    packet_type: ClassVar[int] = protocol.SUBACK
    packet_id: int
    reason_codes: list[int]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (3.10); at least one filter, as sent."""

    packet_type: ClassVar[int] = protocol.UNSUBSCRIBE
    packet_id: int
    topic_filters: list[str]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class UnsubAck:
    """UNSUBACK (3.11): a reason code for each filter, in order; MQTT 3 has none."""

    packet_type: ClassVar[int] = protocol.UNSUBACK
    packet_id: int
    reason_codes: list[int] = field(default_factory=list)
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class PingReq:
    """Ask the server whether it is there: PINGREQ (3.12)."""

    packet_type: ClassVar[int] = protocol.PINGREQ


@dataclass(slots=True)
class PingResp:
    """Answer a PINGREQ: PINGRESP (3.13)."""

    packet_type: ClassVar[int] = protocol.PINGRESP


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT (3.14); reason and properties in MQTT 5 only, and only there may a server send it."""

    packet_type: ClassVar[int] = protocol.DISCONNECT
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Auth:
    """AUTH (3.15), MQTT 5 only."""

    packet_type: ClassVar[int] = protocol.AUTH
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
