"""Reason codes: one table of code, name and the packets that may carry it (MQTT 5, section 2.4).

`MqttError` is what the codec raises when a peer breaks the protocol; its `reason_code` is what
an MQTT 5 DISCONNECT (or CONNACK, when CONNECT itself was wrong) says before the connection
closes. MQTT 3 has no such packet: its connections just close, but for the CONNACK return codes
of `connack_return_code`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from holdmq.errors import PeerError, UsageError
from holdmq.mqtt.protocol import (
    AUTH,
    CLIENT,
    CONNACK,
    DISCONNECT,
    PACKET_NAMES,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SERVER,
    SUBACK,
    UNSUBACK,
)


class ReasonCode(IntEnum):
    """Every reason code of MQTT 5; 0x80 and above are failures."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


# Which codes each packet may carry, by who sends it (tables 3-1, 3-4 … 3-13 of MQTT 5).
_PUBACK: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_PUBREL: Final = frozenset({0x00, 0x92})
_DISCONNECT_BOTH: Final = frozenset(
    {0x00, 0x80, 0x81, 0x82, 0x83, 0x8C, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
)
_BOTH: Final = {
    CONNACK: frozenset(
        {0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90}
        | {0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}
    ),
    PUBACK: _PUBACK,
    PUBREC: _PUBACK,
    PUBREL: _PUBREL,
    PUBCOMP: _PUBREL,
    SUBACK: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
}
ALLOWED_REASONS: Final[dict[tuple[int, int], frozenset[int]]] = {
    **{(packet_type, sender): codes for packet_type, codes in _BOTH.items() for sender in (CLIENT, SERVER)},
    (DISCONNECT, CLIENT): _DISCONNECT_BOTH | {0x04},
    (DISCONNECT, SERVER): _DISCONNECT_BOTH
    | {0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2},
    (AUTH, CLIENT): frozenset({0x18, 0x19}),
    (AUTH, SERVER): frozenset({0x00, 0x18}),
}


class MqttError(PeerError):
    """The peer broke MQTT: answer with `reason_code` where the version has an answer, then close.

    `decoded` holds what `Decoder.feed` had decoded from the same bytes before the violation, in
    order: those packets are valid and are to be handled before the connection is closed.
    """

    def __init__(self, reason_code: int, message: str) -> None:
        super().__init__(message)
        self.reason_code = ReasonCode(reason_code)
        self.decoded: list[object] = []


def check_reason(reason_code: int, packet_type: int, sender: int) -> int:
    """Return `reason_code` if `sender` may put it into a packet of `packet_type`.

    Raises MqttError 0x82 otherwise [MQTT-3.2.2-8] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1]
    [MQTT-3.7.2-1] [MQTT-3.9.3-2] [MQTT-3.11.3-2] [MQTT-3.14.2-1] [MQTT-3.15.2-1].
    """
    if reason_code not in ALLOWED_REASONS[packet_type, sender]:
        raise MqttError(
            ReasonCode.PROTOCOL_ERROR,
            f"{PACKET_NAMES[packet_type]} carries reason code 0x{reason_code:02X}, which it may not",
        )
    return reason_code


def check_own_reason(reason_code: int, packet_type: int) -> None:
    """Raise UsageError when no side may put `reason_code` into a packet of `packet_type`."""
    if (
        reason_code not in ALLOWED_REASONS[packet_type, SERVER]
        and reason_code not in ALLOWED_REASONS[packet_type, CLIENT]
    ):
        raise UsageError(f"{PACKET_NAMES[packet_type]} has no reason code 0x{reason_code:02X}")


# 3.2.2.3 of MQTT 3.1.1: the five refusals of MQTT 3; any other failure is "server unavailable".
_CONNACK_V3: Final = {
    0x00: 0,
    0x84: 1,
    0x85: 2,
    0x86: 4,
    0x87: 5,
    0x8A: 5,
    0x8C: 4,
}
_CONNACK_V5: Final = {0: 0x00, 1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}


def connack_return_code(reason_code: int) -> int:
    """Translate a reason code to the CONNACK return code (0–5) that tells an MQTT 3 client the same."""
    return _CONNACK_V3.get(reason_code, 3)


def connack_reason_code(return_code: int) -> int:
    """Translate an MQTT 3 CONNACK return code to its reason code; MqttError 0x82 for 6–255."""
    reason_code = _CONNACK_V5.get(return_code)
    if reason_code is None:
        raise MqttError(ReasonCode.PROTOCOL_ERROR, f"CONNACK carries the reserved return code {return_code}")
    return reason_code
