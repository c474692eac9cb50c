"""The body of a PRODUCE (wire.md): how many records, their sizes, the records; and the CRC-32 of it all."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from holdmq.wire.frame import Buffer

_U32 = struct.Struct(">I")


class ProduceBody(NamedTuple):
    """Parts that are written one after the other, `length_bytes` together."""

    parts: list[Buffer]
    length_bytes: int
    crc: int


def produce_body(count: int, sizes: Sequence[bytes], records: Sequence[Buffer]) -> ProduceBody:
    """The body of `count` records. `sizes` and `records` may each be cut anywhere; records are not copied."""
    head = b"".join((_U32.pack(count), *sizes))
    crc, length_bytes = crc32(head), len(head)
    for part in records:
        crc = crc32(part, crc)
        length_bytes += len(part)
    return ProduceBody([head, *records], length_bytes, crc)
