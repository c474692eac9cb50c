"""Bodies that travel compressed (SysFlag 0x2): zlib, made by producers, undone by whoever reads.

The broker keeps a body as it came. Readers bound what they take out, so that a few bytes that claim to
be gigabytes are refused and not unpacked.
"""

from __future__ import annotations

import zlib
from typing import Final

from holdmq.errors import RecordError

BODY_MAX_BYTES: Final = 12 << 20
"""Largest body after decompression: the largest record that any broker may be set to take."""
COMPRESS_MIN_BYTES: Final = 4096
"""Bodies above this are compressed: below it the header and the time cost more than is saved."""
COMPRESS_LEVEL: Final = 1
"""zlib's fastest: about 100 MB/s, for nine tenths of what its default saves on text and JSON."""


def compress(body: bytes, level: int = COMPRESS_LEVEL) -> bytes | None:
    """The compressed body; None if that saves less than a sixteenth. `level` 1 (fast) to 9 (small)."""
    packed = zlib.compress(body, level)
    return packed if len(packed) <= len(body) - len(body) // 16 else None


def decompress(body: bytes, max_bytes: int = BODY_MAX_BYTES) -> bytes:
    """The body of a compressed record; RecordError if it is damaged, cut short or over `max_bytes`."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, max_bytes)
        if not stream.eof and not stream.unconsumed_tail:
            data += stream.flush(1)
    except zlib.error as error:
        raise RecordError(f"a compressed body that cannot be read: {error}") from None
    if stream.unconsumed_tail or (not stream.eof and len(data) >= max_bytes):
        raise RecordError(f"a compressed body of more than {max_bytes} bytes")
    if not stream.eof:
        raise RecordError("a compressed body that ends too early")
    return data
