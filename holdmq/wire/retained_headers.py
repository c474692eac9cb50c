"""Typed headers of retained MQTT messages, between gateways and the brokers that keep them; and their value.

Each MQTT topic has one owner, `retained_owner` among the brokers that have the table `%RETAIN`, and there one
of RETAINED_QUEUES queues. A row's key is the MQTT topic, its value::

    | format 1 | QoS 1 | client id length 2 | properties length 2 | published ms 8 | expires ms 8 |
    | client id | MQTT 5 property block as sent | payload to the end |                   big-endian

Times are the owner's clock, in ms since the epoch; it fills them in. `expires` 0 = never. Source: mqtt.md,
Retained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

import xxhash

from holdmq.errors import WireError
from holdmq.names.topics import queue_of_key
from holdmq.wire.header import Header, header

RETAINED_TOPIC: Final = "%RETAIN"
RETAINED_QUEUES: Final = 64
"""Queues at each broker, for ever the same."""
PUTS_MAX: Final = 10_000
"""Rows that one RETAINED_PUT carries."""
ITEMS_MAX: Final = 1_000
"""Filters that one RETAINED_SCAN asks for, and rows of one RETAINED_GET."""
NEVER: Final = -1
"""As an expiry: it does not expire. As a version: the newest. As a length: the row is to go."""
LOG_END: Final = -1
"""As the end of a scan: what the owner's log has when the request comes."""

FORMAT: Final = 1
_HEAD: Final = Struct(">BBHHQQ")
_TIMES_AT: Final = 6
_TIMES: Final = Struct(">QQ")
HEAD_BYTES: Final = _HEAD.size


def retained_owner(mqtt_topic: str, brokers: Collection[str]) -> str:
    """The broker that keeps the retained message of a topic; `brokers` has at least one name."""
    if len(brokers) == 1:
        return next(iter(brokers))
    return queue_of_key(mqtt_topic, [(broker, 0) for broker in brokers])[0]


def retained_queue(mqtt_topic: str) -> int:
    """The queue of a topic at its owner: xxh3-64 of its UTF-8 bytes, modulo the number of queues."""
    return xxhash.xxh3_64_intdigest(mqtt_topic.encode()) % RETAINED_QUEUES


class RetainedMessage(NamedTuple):
    """A retained message, times in ms since the epoch; `expires_ms` 0 = never.

    `block` is the publisher's MQTT 5 property block, `client_id` the publisher's.
    """

    qos: int
    client_id: str
    block: bytes
    payload: bytes
    published_ms: int = 0
    expires_ms: int = 0

    def encode(self) -> bytes:
        """As a row has it."""
        client = self.client_id.encode()
        head = _HEAD.pack(FORMAT, self.qos, len(client), len(self.block), self.published_ms, self.expires_ms)
        return b"".join((head, client, self.block, self.payload))

    def left_s(self, now_ms: int) -> int | None:
        """What is left of its expiry, in s, 0 = it has expired; None = it never does [MQTT-3.3.2-6]."""
        return None if not self.expires_ms else max(0, self.expires_ms - now_ms + 999) // 1000


def decode_retained(value: bytes | memoryview) -> RetainedMessage:
    """The message of a row; WireError if it is none that this version knows."""
    if len(value) < HEAD_BYTES or value[0] != FORMAT:
        raise WireError("a retained message has a format that this version does not know")
    _, qos, client_bytes, block_bytes, published_ms, expires_ms = _HEAD.unpack_from(value)
    middle = HEAD_BYTES + client_bytes
    end = middle + block_bytes
    if qos > 2 or end > len(value):
        raise WireError("a retained message is malformed")
    try:
        client_id = bytes(value[HEAD_BYTES:middle]).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"the publisher of a retained message is no text: {error}") from None
    return RetainedMessage(
        qos, client_id, bytes(value[middle:end]), bytes(value[end:]), published_ms, expires_ms
    )


def stamp_retained(value: bytes | memoryview, now_ms: int, expiry_s: int) -> bytes:
    """A value as its owner stores it: published now, to expire in `expiry_s` (NEVER = never).

    Raises WireError for what is no value.
    """
    if len(value) < HEAD_BYTES or value[0] != FORMAT:
        raise WireError("a retained message has a format that this version does not know")
    expires_ms = 0 if expiry_s < 0 else max(1, now_ms + expiry_s * 1000)
    times = _TIMES.pack(now_ms, expires_ms)
    return b"".join((value[:_TIMES_AT], times, value[HEAD_BYTES:]))


def expires_ms_of(value: bytes | memoryview) -> int:
    """When a row expires, in ms since the epoch; 0 = never, or it is no row of ours."""
    if len(value) < HEAD_BYTES or value[0] != FORMAT:
        return 0
    expires_ms: int = _TIMES.unpack_from(value, _TIMES_AT)[1]
    return expires_ms


class RetainedPut(NamedTuple):
    """The retained message of `topic` from now on: `length_bytes` of the body, times not filled in.

    NEVER: it has none any more. `expiry_s` counts from now, NEVER = it does not expire.
    """

    topic: str
    expiry_s: int
    length_bytes: int


class RetainedItem(NamedTuple):
    """What a scan is to look for: topics that match a filter, behind the topic `after` ("" = from the first).

    Only messages stored below log position `before` (LOG_END: below the end of the log when the request
    comes); at most `max_count`.
    """

    topic_filter: str
    after: str
    before: int
    max_count: int


class RetainedFound(NamedTuple):
    """The answer for an item: so many `rows`. `next_after`: ask again behind this topic; None = that was all.

    `before` is the item's, or for LOG_END the position that it became: the next request for it says so.
    """

    rows: int
    next_after: str | None
    before: int


class RetainedRow(NamedTuple):
    """A topic's retained message: `version` is the log position of its record, the value is in the body."""

    topic: str
    version: int
    length_bytes: int


def with_values(found: Iterable[RetainedRow], body: memoryview) -> Iterator[tuple[RetainedRow, memoryview]]:
    """Rows with their values, which lie one behind the other in an answer's body."""
    at = 0
    for row in found:
        end = at + row.length_bytes
        yield row, body[at:end]
        at = end


class RetainedVersion(NamedTuple):
    """A topic, and the version that is wanted of it; NEVER = whichever it has."""

    topic: str
    version: int


@header
class RetainedPutRequest(Header):
    """1 to PUTS_MAX rows of RetainedPut, done in their order. Body: their values, one behind the other.

    A repeat of a request puts again what it put: harmless, as a publisher has one under way at a time.
    """

    puts: list[RetainedPut]


@header
class RetainedPutResponse(Header):
    """The log has the rows whose code is 0; others are refused for good: LIMIT_EXCEEDED, RECORD_TOO_LARGE."""

    codes: list[int]


@header
class RetainedScanRequest(Header):
    """1 to ITEMS_MAX rows of RetainedItem. An answer has at most `max_rows` and `max_bytes`, but one row."""

    items: list[RetainedItem]
    max_rows: int = 256
    max_bytes: int = 256 << 10


@header
class RetainedScanResponse(Header):
    """`found` are RetainedFound of the first items, at least one; ask again for the others.

    `rows` are RetainedRow, item by item, by the bytes of their topics. Body: their values. They show
    everything that was confirmed when the request came; what has expired is not among them.
    """

    found: list[RetainedFound]
    rows: list[RetainedRow]


@header
class RetainedGetRequest(Header):
    """Rows of RetainedVersion: messages as they were sent before, from the table or else from the log."""

    wanted: list[RetainedVersion]


@header
class RetainedGetResponse(Header):
    """Of the first `answered` (at least one) what is still there, as RetainedRow. Body: the values."""

    answered: int
    rows: list[RetainedRow]
