"""Where a moved message came from: the ORIGIN property of copies, and the topics that moves write to.

::

    ORIGIN 0x01 topic/queue/first offset/attempt 0x02

A copy in `%RETRY%<group>` or `%DLQ%<group>` says where the message first was and which move made it:
1 = the first retry. One that the timer released has a second ORIGIN, of its wait in `%TIMER`, which
is nobody's concern but the timer's. Pure. Source: storage.md, Moves.
"""

from __future__ import annotations

from typing import Final, NamedTuple

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"

_ORIGIN: Final = b"ORIGIN\x01"
_TIMER: Final = b"%TIMER/"


class Origin(NamedTuple):
    """The place where a message first was, and the number of the move that made this copy of it."""

    topic: str
    queue_id: int
    offset: int
    attempt: int

    def pair(self) -> bytes:
        """The property as records hold it."""
        return f"ORIGIN\x01{self.topic}/{self.queue_id}/{self.offset}/{self.attempt}\x02".encode()


def retry_topic(group: str) -> str:
    """The topic from which a group consumes its retries."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of a group's dead letters."""
    return DLQ_PREFIX + group


def origin_of(properties: bytes) -> Origin | None:
    """The latest ORIGIN in encoded properties that is not the timer's; None = there is none."""
    pairs = properties.partition(b"\0")[0]
    if _ORIGIN not in pairs:
        return None
    for pair in reversed(pairs.split(b"\x02")):
        if not pair.startswith(_ORIGIN):
            continue
        value = pair[len(_ORIGIN) :]
        if value.startswith(_TIMER):
            continue
        parts = value.decode("utf-8", "replace").rsplit("/", 3)
        if len(parts) == 4 and all(part.isdigit() for part in parts[1:]):
            return Origin(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))
    return None


def value_in(properties: bytes, key: str) -> str | None:
    """The value of a key's first pair, where keys and values have no character that is escaped."""
    start = key.encode() + b"\x01"
    for pair in properties.partition(b"\0")[0].split(b"\x02"):
        if pair.startswith(start):
            return pair[len(start) :].decode("utf-8", "replace")
    return None
