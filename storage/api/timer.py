"""Messages that appear later: the timer, and the record that waits in a message's place.

A waiting record is the message under `%TIMER`, queue 0, with these pairs behind its own::

    … | DUE 0x01 ms since the epoch 0x02 | DEST 0x01 topic/queue 0x02 | ORIGIN 0x01 … 0x02, when rolled |

Source: storage.md, Moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from holdmq.errors import Code, RecordError
from holdmq.record.codec import (
    COPY_MARK,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_LIMIT,
    Buffer,
    Record,
    decode_record,
    encode_record,
)

if TYPE_CHECKING:
    from storage.api.batches import Appended

TIMER_TOPIC: Final = "%TIMER"
"""Where delayed messages wait: one queue, as only their due times order them."""
TIMER_QUEUE: Final = 0
DUE_LIMIT_MS: Final = 1 << 62
"""Due times are below: far past any horizon, and sums of two fit 64 bits."""
ORIGIN_ROOM: Final = 64
"""Bytes of a record kept free for the copy's ORIGIN."""
TIMER_ORIGIN: Final = b"ORIGIN\x01%TIMER/0/"
"""What the pair begins with that names the timer's message for ever."""

_TOPIC: Final = TIMER_TOPIC.encode()


class DelayedRecord(NamedTuple):
    """A message and its due time: `record` is what its topic and queue would get, unstamped."""

    record: bytes | memoryview
    due_ms: int


class MessageTimer(Protocol):
    """Messages that appear in their queues later."""

    def schedule(self, delayed: Sequence[DelayedRecord], done: Appended) -> None:
        """Store messages that appear in their queues when they are due, at once if that is past.

        `done` is called as by `MessageStore.append`: stored means that they will be released, once,
        whatever happens. Raises RecordError for a message that cannot wait.
        """


def value_of(properties: bytes, key: bytes) -> bytes | None:
    """The value of a key's last pair, as written (escaped); None = there is none."""
    pairs = properties.partition(b"\0")[0]
    at = pairs.rfind(b"\x02" + key + b"\x01")
    if at < 0:
        if not pairs.startswith(key + b"\x01"):
            return None
        at = -1
    begin = at + len(key) + 2
    return pairs[begin : pairs.find(b"\x02", begin)]


def pairs_without(pairs: bytes, *starts: bytes) -> bytes:
    """The pairs but for those that begin so."""
    if not any(start in pairs for start in starts):
        return pairs
    kept = [pair for pair in pairs.split(b"\x02")[:-1] if not pair.startswith(starts)]
    return b"".join([pair + b"\x02" for pair in kept])


def waiting_record(record: Buffer, due_ms: int, check_topic: Callable[[bytes], None] | None = None) -> bytes:
    """The record that lets a message wait until `due_ms`.

    `record` is the message as its topic and queue would get it, unstamped. Raises RecordError for
    a due time that is none, and for what has no room for the timer's properties, and what `check_topic`
    raises for the message's topic.
    """
    if not 0 <= due_ms < DUE_LIMIT_MS:
        raise RecordError(f"a due time of {due_ms} ms: 0 to {DUE_LIMIT_MS - 1} are allowed")
    message = decode_record(record)
    if check_topic is not None:
        check_topic(message.topic)
    pairs, separator, mqtt = message.properties.partition(b"\0")
    # Marks of an earlier wait: the message is new to this one.
    pairs = pairs_without(pairs, b"DUE\x01", b"DEST\x01", TIMER_ORIGIN)
    own = b"DUE\x01%d\x02DEST\x01%b/%d\x02" % (due_ms, message.topic, message.queue_id)
    properties = pairs + own + separator + mqtt
    size = len(record) - len(message.topic) + len(_TOPIC) + len(properties) - len(message.properties)
    if len(properties) > PROPERTIES_BYTES_MAX - ORIGIN_ROOM:
        raise RecordError(
            f"properties of {len(properties)} bytes: a delayed message may have "
            f"{PROPERTIES_BYTES_MAX - ORIGIN_ROOM}",
            Code.LIMIT_EXCEEDED,
        )
    if size > RECORD_BYTES_LIMIT - ORIGIN_ROOM:
        raise RecordError(
            f"a delayed record of {size} bytes: {RECORD_BYTES_LIMIT - ORIGIN_ROOM} are allowed",
            Code.RECORD_TOO_LARGE,
        )
    return encode_copy(message, _TOPIC, TIMER_QUEUE, properties, message.sys_flag)


def encode_copy(message: Record, topic: bytes, queue_id: int, properties: bytes, sys_flag: int) -> bytes:
    """The message again, unstamped, for another queue: who sent it and when stays."""
    return encode_record(
        topic,
        queue_id,
        message.body,
        properties,
        message.born_ms,
        message.born_host,
        sys_flag,
        message.flag,
        message.reconsume_times,
        COPY_MARK,
    )
