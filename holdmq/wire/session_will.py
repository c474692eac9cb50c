"""The will of a connection, as gateways give it to the owner of the session, and get it back when it is due.

::

    will    [1, delay s, session expiry s, MQTT topic, QoS << 1 | retain, property block, payload, BornHost]

The owner looks at the first numbers only. Source: mqtt.md, Wills; MQTT 5, 3.1.2.5 and 3.1.3.2.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

from holdmq.errors import WireError
from holdmq.wire.untrusted import unpack

FORMAT: Final = 1
WILL_BYTES_MAX: Final = 256 << 10
"""A will with all that MQTT allows in it: topic, payload, and the 32 KiB of properties that records hold."""
HAS_WILL: Final = b"\0"
"""In a claim: the owner has the will already."""

NO_WILL: Final = ""
DELETE_WILL: Final = "delete"
PUBLISH_WILL: Final = "publish"
DRAIN_WILL: Final = "drain:"
"""What an END says of its connection's will: there is none; DISCONNECT deleted it; it is due when its delay
is over; the gateway drains, and the delay is at least so many seconds, which follow."""


class SessionWill(NamedTuple):
    """A will; `flags` as in its PUBLISH."""

    delay_s: int
    expiry_s: int
    topic: str
    flags: int
    block: bytes
    payload: bytes
    born_host: bytes

    def encode(self) -> bytes:
        """As a row has it."""
        packed: bytes = msgpack.packb((FORMAT, *self))
        return packed


def decode_will(value: bytes) -> SessionWill:
    """The will of a row; WireError if it is none that this version knows."""
    fields = unpack(value, "a will")
    if not isinstance(fields, list) or len(fields) < 8 or fields[0] != FORMAT:
        raise WireError("a will has a format that this version does not know")
    kinds = (int, int, str, int, bytes, bytes, bytes)
    if not all(isinstance(field, kind) for field, kind in zip(fields[1:8], kinds, strict=True)):
        raise WireError("a will is malformed")
    return SessionWill(*fields[1:8])


def least_delay_s(said: str) -> float | None:
    """The least delay of a will after an END with this word, in seconds; None = it is not to be published."""
    if said == PUBLISH_WILL:
        return 0.0
    if said.startswith(DRAIN_WILL):
        try:
            return max(0.0, float(said[len(DRAIN_WILL) :]))
        except ValueError:
            return 0.0
    return None
