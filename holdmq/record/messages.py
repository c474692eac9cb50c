"""Messages of many records at once, as an application gets them: a loop that mypyc compiles.

Records of a queue mostly have the topic and properties of the one before, perhaps but for the unique id:
what is alike is decoded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from librt.strings import read_i64_be

from holdmq.errors import HoldMQError
from holdmq.message import Message, MessageId
from holdmq.record.codec import (
    BODY_LENGTH_AT,
    BORN_MS_AT,
    FIXED_SIZE,
    IPV6_EXTRA,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_AT,
    STORE_HOST_AT,
    STORE_MS_AT,
    SUFFIX_BYTES,
    SYS_BORN_IPV6,
    SYS_COMPRESSED,
    SYS_FLAG_AT,
    decode_record,
)
from holdmq.record.compression import decompress
from holdmq.record.each import NOT_ALIKE, id_span, is_alike, is_same, layout_fault

if TYPE_CHECKING:
    from mypy_extensions import i64

_U32: Final = 0xFFFFFFFF


class Undecodable(NamedTuple):
    """A record that is no message: where it begins, and what is wrong with it."""

    at: int
    reason: str


def decode_messages(data: bytes, broker: str | None) -> tuple[list[Message], list[Undecodable]]:
    """The messages of records that lie one after the other, as `Record.to_message` gives them.

    Those that cannot be decoded are left out and named; behind one whose size is wrong nothing can be found.
    """
    messages: list[Message] = []
    bad: list[Undecodable] = []
    add = messages.append
    length: i64 = len(data)
    start: i64 = 0
    # Of the record before: its decoded properties, and where they lie.
    like: Message | None = None
    like_at: i64 = 0
    like_size: i64 = NOT_ALIKE
    id_begin: i64 = 0
    id_end: i64 = 0
    topic_at: i64 = 0
    topic_size: i64 = NOT_ALIKE
    host: i64 = 0
    store_id = b""
    while start < length:
        size: i64 = read_i64_be(data, start) >> 32 if length - start >= FIXED_SIZE else 0
        if size < FIXED_SIZE or start + size > length:
            bad.append(Undecodable(start, f"a record of {size} bytes where {length - start} are left"))
            break
        end: i64 = start + size
        fault = layout_fault(data, start, end)
        extra: i64 = IPV6_EXTRA if data[start + SYS_FLAG_AT + 3] & SYS_BORN_IPV6 else 0
        body_at: i64 = start + BODY_LENGTH_AT + 4 + extra
        at: i64 = 0 if fault else body_at + (read_i64_be(data, body_at - 8) & _U32)
        name_size: i64 = 0 if fault else data[at]
        properties_at: i64 = at + 3 + name_size
        properties_size: i64 = end - SUFFIX_BYTES - properties_at
        if (
            like is None
            or fault
            or name_size != topic_size
            or properties_size != like_size
            or not is_same(data, at + 1, data, topic_at, name_size)
            or not is_alike(data, properties_at, like_at, like_size, id_begin, id_end)
        ):
            try:
                like = decode_record(data, start).to_message(broker)
            except (HoldMQError, UnicodeDecodeError) as error:
                bad.append(Undecodable(start, str(error)))
                start = end
                continue
            add(like)
            start = end
            if fault:
                like = None  # readable, but not laid out as what brokers take
                continue
            id_begin, id_end = id_span(data[properties_at : end - SUFFIX_BYTES])
            like_at, like_size = properties_at, properties_size
            topic_at, topic_size = at + 1, name_size
            continue
        body = data[body_at:at]
        if data[start + SYS_FLAG_AT + 3] & SYS_COMPRESSED:
            try:
                body = decompress(body)
            except HoldMQError as error:
                bad.append(Undecodable(start, str(error)))
                start = end
                continue
        host_at: i64 = start + STORE_HOST_AT + extra
        own_host: i64 = read_i64_be(data, host_at)
        if own_host != host or not store_id:
            host = own_host
            store_id = data[host_at : host_at + 8]
        unique_id = like.unique_id
        if id_end:
            unique_id = data[properties_at + id_begin : properties_at + id_end].decode()
        queue_and_flag: i64 = read_i64_be(data, start + QUEUE_ID_AT)
        born_ms: i64 = read_i64_be(data, start + BORN_MS_AT)
        add(
            Message(
                like.topic,
                body,
                like.tag,
                like.keys,
                dict(like.properties),
                queue_and_flag & _U32,
                like.client_id,
                born_ms if born_ms >= 0 else int(born_ms) + (1 << 64),
                queue_and_flag >> 32 & _U32,
                read_i64_be(data, start + QUEUE_OFFSET_AT),
                read_i64_be(data, start + STORE_MS_AT + extra),
                read_i64_be(data, start + RECONSUME_AT + extra - 4) & _U32,
                unique_id,
                MessageId(store_id, read_i64_be(data, start + PHYSICAL_OFFSET_AT)),
                broker,
            )
        )
        start = end
    return messages, bad
