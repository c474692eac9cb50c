"""What the console and its query process say to each other: one frame each way, a question and its reply.

A frame is four bytes of length, big-endian, and so many bytes of MessagePack.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import msgpack

from holdmq.wire.untrusted import UnpackLimits, unpack

LENGTH: Final = struct.Struct(">I")

TEXT_MAX: Final = 64 * 1024
"""Characters of a statement: DuckDB parses them in milliseconds."""

REPLY_MAX: Final = 256 << 20
"""A frame of more is none of ours."""

_LIMITS: Final = UnpackLimits(items_max=10_000, decoded_max_bytes=REPLY_MAX + (16 << 20))
"""Of a frame: few items, one of which is a statement with its arguments or the bytes of a result."""

READY: Final = b"\xc0"
"""What the process says first, when it can be asked: MessagePack's nil."""


class SqlQuestion(NamedTuple):
    """What is asked: ``sql`` with a statement, or one of `console.sql.reports` with its arguments."""

    kind: str
    arguments: dict[str, Any]
    form: str
    """The form of the answer: ``json`` or ``csv``."""
    seconds: float
    rows_max: int
    bytes_max: int


class SqlReply(NamedTuple):
    """What came of it. `outcome` is ``ok``, or why there is no `body`: then `message` is a sentence.

    ``refused``: not a read of these tables; ``error``: DuckDB says no; ``time`` and ``memory``: more than
    allowed; ``ended``: the query process did not live to answer.
    """

    outcome: str
    body: bytes
    message: str
    """With ``ok``: what the reader should know of the result, as that it was cut; else the reason."""


def frame(value: tuple[Any, ...]) -> bytes:
    """Return a question or a reply as it is sent."""
    raw: bytes = msgpack.packb(tuple(value))
    return LENGTH.pack(len(raw)) + raw


def question_of(raw: bytes) -> SqlQuestion:
    """Return the question of a frame without its length; WireError if it is no msgpack."""
    return SqlQuestion(*unpack(raw, "a question", _LIMITS))


def reply_of(raw: bytes) -> SqlReply:
    """Return the reply of a frame without its length; WireError if it is no msgpack."""
    return SqlReply(*unpack(raw, "a reply", _LIMITS))
