"""Messages to records, one by one or many bodies at once, and records that move to another queue."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from holdmq.client.own_words import with_mount
from holdmq.errors import Code, RecordError
from holdmq.message import Message
from holdmq.names.tenants import in_tenant
from holdmq.record.bodies import ID_MASK, EncodedBodies, encode_each
from holdmq.record.codec import (
    CRC_AT,
    NO_HOST,
    QUEUE_ID_AT,
    SUFFIX_BYTES,
    SYS_COMPRESSED,
    RecordTemplate,
    encode_properties,
    encode_record,
    message_properties,
)
from holdmq.record.compression import BODY_MAX_BYTES, COMPRESS_LEVEL, COMPRESS_MIN_BYTES, compress
from holdmq.record.properties import UNIQUE

TAGS_CACHED_MAX: Final = 16_384
"""Tags whose encoding is remembered (about 200 bytes each)."""
TEMPLATES_MAX: Final = 4_096
"""Queues with a tag whose records' template is remembered (about 500 bytes each)."""

_mark = secrets.randbits(62) | 1

_PRODUCER_DIGITS: Final = 16
_U32: Final = np.dtype(">u4")

_OWN_ID: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{10}")
_tags: dict[str | None, bytes] = {}

Bytes = npt.NDArray[np.uint8]


def _renew_mark() -> None:
    global _mark
    _mark = secrets.randbits(62) | 1


# Of two processes with one mark, the broker could take one's records for what the other sent.
os.register_at_fork(after_in_child=_renew_mark)


def mark() -> int:
    """Field 14 of this process' records: by it a broker knows them again after a crash."""
    return _mark


def unique_id(producer_id: int, count: int) -> str:
    """The id of a producer's message: 27 characters."""
    return f"{producer_id:016x}-{count & ID_MASK:010x}"


class Packing:
    """From which size on bodies are compressed (0 = never), and how hard (zlib level 1 to 9).

    `tenant`: whose words the topics are in; records have whole names.
    """

    __slots__ = ("level", "min_bytes", "tenant")

    def __init__(
        self, min_bytes: int = COMPRESS_MIN_BYTES, level: int = COMPRESS_LEVEL, tenant: str = ""
    ) -> None:
        self.min_bytes = min_bytes
        self.level = level
        self.tenant = tenant

    def pack(self, body: bytes) -> tuple[bytes, int]:
        """The body as it travels, and its SysFlag; RecordError past BODY_MAX_BYTES."""
        if len(body) > BODY_MAX_BYTES:
            raise RecordError(
                f"a body of {len(body)} bytes: {BODY_MAX_BYTES} are allowed", Code.RECORD_TOO_LARGE
            )
        if self.min_bytes and len(body) > self.min_bytes:
            packed = compress(body, self.level)
            if packed is not None:
                return packed, SYS_COMPRESSED
        return body, 0


def encode(message: Message, queue_id: int, packing: Packing, due: str | None = None) -> bytes:
    """The record of a message whose `unique_id` and `born_ms` are set; `due` as in holdmq.client.delay."""
    topic = message.topic
    if packing.tenant:
        topic, message = in_tenant(packing.tenant, topic), with_mount(packing.tenant, message)
    body, sys_flag = message.body, 0
    if packing.min_bytes and len(body) > packing.min_bytes:
        body, sys_flag = packing.pack(body)
    properties = _plain_properties(message) or message_properties(message)
    if due is not None:
        properties += f"DUE\x01{due}\x02".encode()
    return encode_record(
        topic.encode(),
        queue_id,
        body,
        properties,
        message.born_ms,
        NO_HOST,
        sys_flag,
        message.flag,
        message.reconsume_times,
        _mark,
    )


def is_plain(message: Message) -> bool:
    """Whether a message has nothing but topic, tag and body, so that `encode_bodies` can make its record."""
    return (
        message.unique_id is None
        and not message.keys
        and not message.properties
        and message.client_id is None
        and not message.born_ms
        and not message.flag
        and not message.reconsume_times
    )


def _plain_properties(message: Message) -> bytes:
    """What `message_properties` gives for a tag and an id of this module; b"" for others."""
    own_id = message.unique_id
    if own_id is None or message.keys or message.properties or message.client_id is not None:
        return b""
    if not _OWN_ID.fullmatch(own_id):
        return b""
    tag = message.tag
    known = _tags.get(tag)
    if known is None:
        if len(_tags) >= TAGS_CACHED_MAX:
            _tags.clear()
        known = _tags[tag] = b"" if tag is None else encode_properties([("TAGS", tag)])
    return b"%bUNIQ_KEY\x01%b\x02" % (known, own_id.encode())


def encode_bodies(
    topic: str,
    queue_id: int,
    tag: str | None,
    bodies: Sequence[bytes],
    producer_id: int,
    first_count: int,
    born_ms: int,
) -> EncodedBodies:
    """Records of messages that differ in their bodies only.

    Their unique ids are `unique_id(producer_id, first_count)` and those that follow.
    """
    template, id_at = _template(topic, queue_id, tag, producer_id, _mark)
    return encode_each(template, id_at, first_count, born_ms, bodies)


@lru_cache(maxsize=TEMPLATES_MAX)
def _template(
    topic: str, queue_id: int, tag: str | None, producer_id: int, own_mark: int
) -> tuple[bytes, int]:
    """A record without a body, and where the count of its unique id stands."""
    like = Message(topic, b"", tag, unique_id=unique_id(producer_id, 0))
    properties = message_properties(like)
    record = RecordTemplate(topic.encode(), queue_id, properties, prepared=own_mark).encode(b"", 0)
    return record, record.rindex(UNIQUE) + len(UNIQUE) + _PRODUCER_DIGITS + 1


def move(records: bytes, sizes: npt.NDArray[np.int64], queue_id: int) -> bytes:
    """The same records for another queue."""
    out = np.frombuffer(bytearray(records), np.uint8)
    starts = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    own = np.frombuffer(queue_id.to_bytes(4, "big"), np.uint8)
    _scatter(out, starts + QUEUE_ID_AT, np.broadcast_to(own, (len(sizes), 4)).copy())
    _set_crcs(out, starts, sizes)
    return out.tobytes()


def _scatter(out: Bytes, at: npt.NDArray[np.int64], rows: Bytes) -> None:
    """Write each row at its place."""
    width = rows.shape[1]
    if not width:
        return
    kind = np.dtype(f"V{width}")
    view: npt.NDArray[np.void] = np.ndarray((len(out) - width + 1,), kind, out, strides=(1,))
    view[at] = np.ascontiguousarray(rows).view(kind)[:, 0]


def _set_crcs(out: Bytes, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> None:
    """Fill BodyCRC of records that no broker stamped yet."""
    view = memoryview(out)  # type: ignore[arg-type]
    begins = (starts + QUEUE_ID_AT).tolist()
    ends = (starts + sizes - SUFFIX_BYTES).tolist()
    crcs = [crc32(view[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    _scatter(out, starts + CRC_AT, np.array(crcs, _U32).view(np.uint8).reshape(len(crcs), 4))
