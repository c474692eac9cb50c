"""The nouns every part of HoldMQ shares: Message, TopicQueue, MessageId.

A `Message` is what an application sends or receives. `TopicQueue` names one queue of a
topic at one broker. `MessageId` is where a message is, for any broker to answer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdmq.errors import UsageError

_MESSAGE_ID: Final = struct.Struct(">8sq")


class TopicQueue(NamedTuple):
    """One queue of a topic at one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}"


class MessageId(NamedTuple):
    """The place of a message: its store's id (8 bytes) and its offset in that store's log.

    Its text is 32 hex digits: store id, then the offset, big-endian.
    """

    store_id: bytes
    physical_offset: int

    def __str__(self) -> str:
        return _MESSAGE_ID.pack(self.store_id, self.physical_offset).hex()

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read the hex form; UsageError if it is not 32 hex digits."""
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if len(raw) != _MESSAGE_ID.size:
            raise UsageError(f"{text!r} is not a message id: 32 hex digits are")
        return cls(*_MESSAGE_ID.unpack(raw))


@dataclass(slots=True)
class Message:
    """What an application sends or receives.

    `topic` and `tag` together are an MQTT topic (`devices` + `42/temp` = `devices/42/temp`);
    tag None is an MQTT topic of one level, "" one that ends in a slash. `properties` are the
    user's own. The fields from `queue_id` on are filled by the log: -1, 0 or None before it
    has the message. Times are milliseconds since the epoch.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    client_id: str | None = None
    born_ms: int = 0
    queue_id: int = -1
    queue_offset: int = -1
    store_ms: int = 0
    reconsume_times: int = 0
    unique_id: str | None = None
    message_id: MessageId | None = None
    broker: str | None = None
