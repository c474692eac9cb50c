from __future__ import annotations

import os
import zlib

import pytest

from holdmq.errors import RecordError
from holdmq.message import Message
from holdmq.record.codec import SYS_COMPRESSED, decode_record, encode_message
from holdmq.record.compression import compress, decompress


@pytest.mark.parametrize("size", [0, 1, 5000, 3 << 20])
def test_what_is_compressed_comes_back(size: int) -> None:
    body = b"21.5 degrees; " * (size // 14) + b"x" * (size % 14)
    packed = compress(body) if size else zlib.compress(body)
    assert packed is None or decompress(packed) == body


def test_what_does_not_get_smaller_is_left_alone() -> None:
    assert compress(os.urandom(10_000)) is None


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zlib.compress(bytes(100 << 20), 9)
    with pytest.raises(RecordError, match="more than 12582912 bytes"):
        decompress(bomb)
    with pytest.raises(RecordError, match="more than 999 bytes"):
        decompress(zlib.compress(bytes(1000)), 999)
    assert decompress(zlib.compress(bytes(1000)), 1000) == bytes(1000)


def test_every_truncation_and_other_bytes_are_refused() -> None:
    packed = zlib.compress(b"abc" * 100)
    for end in range(len(packed)):
        with pytest.raises(RecordError):
            decompress(packed[:end])
    with pytest.raises(RecordError, match="cannot be read"):
        decompress(b"not zlib")


def test_a_record_s_message_has_the_body_that_was_sent() -> None:
    body = b"squeeze me" * 1000
    record = encode_message(Message("t", zlib.compress(body)), 0, 1, sys_flag=SYS_COMPRESSED)
    assert decode_record(record).to_message().body == body
    assert decode_record(record).body == zlib.compress(body)
    with pytest.raises(RecordError):
        decode_record(encode_message(Message("t", b"no"), 0, 1, sys_flag=SYS_COMPRESSED)).to_message()
