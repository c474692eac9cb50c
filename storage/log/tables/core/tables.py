"""Tables as rows: how a key and its value lie in the table's database.

::

    key    | topic | 0x00 | key, UTF-8 |                                       up to 367 bytes of key
           | topic | 0x00 | first 367 bytes of it | xxh3-128 of the key 16 |   longer ones
    value  | version 8 | length of the key 2 | key | value |                   big-endian

The key is repeated only when it is longer than 367 bytes (else its length is 0): LMDB's keys end at
511. `version` is the log position of the record: what a reader compares, never where it reads.
Source: storage.md, Tables.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import xxhash

from storage.api.tables import ORDERED_KEY_BYTES, VersionedRow, WalkedRow

PLAIN_KEY_MAX: Final = ORDERED_KEY_BYTES
"""LMDB's 511 bytes less a topic (127), the zero behind it, and a hash (16)."""

_HEAD: Final = Struct(">QH")


def row_key(topic: str, key: bytes) -> bytes:
    """The key of a row in the database."""
    if len(key) <= PLAIN_KEY_MAX:
        return b"%b\0%b" % (topic.encode(), key)
    return b"%b\0%b%b" % (topic.encode(), key[:PLAIN_KEY_MAX], xxhash.xxh3_128_digest(key))


def scan_prefix(topic: str, prefix: bytes) -> bytes:
    """What the database's keys of all keys with this prefix begin with."""
    return b"%b\0%b" % (topic.encode(), prefix[:PLAIN_KEY_MAX])


def encode_row(key: bytes, value: bytes, version: int) -> bytes:
    """The value of a row in the database."""
    if len(key) <= PLAIN_KEY_MAX:
        return _HEAD.pack(version, 0) + value
    return _HEAD.pack(version, len(key)) + key + value


def decode_row(topic: str, row_key_: bytes, raw: bytes) -> VersionedRow:
    """The row of a database's key and value."""
    version, length = _HEAD.unpack_from(raw)
    end = _HEAD.size + length
    key = raw[_HEAD.size : end] if length else row_key_[len(topic) + 1 :]
    return VersionedRow(key.decode(), raw[end:], version)


def split_row(topic: str, row_key_: bytes, raw: memoryview) -> WalkedRow:
    """The row of a database's key and value, its value as a view of it."""
    version, length = _HEAD.unpack_from(raw)
    end = _HEAD.size + length
    key = bytes(raw[_HEAD.size : end]) if length else row_key_[len(topic) + 1 :]
    return WalkedRow(key, raw[end:], version)
