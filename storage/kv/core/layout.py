"""The keys of a shard, and what they hold.

A shard is a broker's name. All of its keys carry one hash tag, so they are in one slot of a cluster and one
function changes them together. With `t` for `{<prefix>:<shard>}`::

    t:s                 hash    format, store_id, term, owner, lease_ms, end, first, store_ms, run_id, lost,
                                lost_lately, lost_ms
    t:e                 string  JSON: the log epochs, as [epoch, first position]
    t:l                 stream  the log: id 0-<position behind the batch>, r = stamped records, t = store ms
    t:b                 hash    <topic>/<queue> → the queue's next offset
    t:g                 hash    <topic>/<queue> → its first kept offset, once something went
    t:q:<topic>/<queue> stream  a queue: id 0-<offset behind the run>, p = where the run lies (RUN)
    t:f                 hash    state files of the broker's rooms, by path
    t:t, t:w            zset, hash   delayed messages: %TIMER offset, in 16 digits, by due time; their records
    t:T:<topic>         hash    a table: key → version (8 bytes) and value
    t:K:<topic>         zset    its keys, in order (as place_of has them)
    t:z                 hash    <topic>/rows and <topic>/bytes of each table
    t:x:<hour>:<bucket> string  the index of keys: KEY_ENTRY after KEY_ENTRY
    t:h                 hash    of an imported log: position behind a batch → where the next one begins, where
                                the two do not touch (the end of a segment was left blank)

`<prefix>:shards` is the set of all shards' names.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np
import xxhash

from storage.api.tables import ORDERED_KEY_BYTES

FORMAT: Final = 1
IMPORTING: Final = 1_000_000_000
"""The format of a shard whose import has not come to its end: no release of a broker opens it."""
RUN: Final = Struct(">QQII")
"""Log position of a run's first byte, store time in ms, bytes, records."""
KEY_ENTRY: Final = np.dtype([("hash", ">u4"), ("position", ">u8")])
KEY_BUCKETS: Final = 64
"""Parts of an hour's key index: one lookup reads a sixty-fourth of it."""
HOUR_MS: Final = 3_600_000
DIGEST_BYTES: Final = 16
VERSION: Final = Struct(">Q")
"""The first bytes of a table's value: the log position of the record that put it."""


class ShardKeys:
    """Names of a shard's keys."""

    def __init__(self, prefix: str, shard: str) -> None:
        self.shard = shard
        self.tag = f"{{{prefix}:{shard}}}"
        self.shards = f"{prefix}:shards"
        self.state = f"{self.tag}:s"
        self.epochs = f"{self.tag}:e"
        self.log = f"{self.tag}:l"
        self.ends = f"{self.tag}:b"
        self.firsts = f"{self.tag}:g"
        self.files = f"{self.tag}:f"
        self.due = f"{self.tag}:t"
        self.waiting = f"{self.tag}:w"
        self.sizes = f"{self.tag}:z"
        self.holes = f"{self.tag}:h"

    def queue(self, topic: str, queue_id: int) -> str:
        """The stream of a queue."""
        return f"{self.tag}:q:{topic}/{queue_id}"

    def table(self, topic: str) -> str:
        """The rows of a table."""
        return f"{self.tag}:T:{topic}"

    def table_order(self, topic: str) -> str:
        """The keys of a table, in order."""
        return f"{self.tag}:K:{topic}"

    def key_bucket(self, hour: int, bucket: int) -> str:
        """A part of the index of keys."""
        return f"{self.tag}:x:{hour}:{bucket}"


def waiting_name(offset: int) -> str:
    """The name of a delayed message: what is due at one moment is in the order of names, as of offsets."""
    return f"{offset:016d}"


def place_of(key: bytes) -> bytes:
    """What stands for a table's key in the set that orders them; `key_at` is the way back.

    Of more than 367 bytes the first so many and the digest of all decide (wire.table_headers); the others
    follow.
    """
    if len(key) <= ORDERED_KEY_BYTES:
        return key
    return key[:ORDERED_KEY_BYTES] + xxhash.xxh3_128_digest(key) + key[ORDERED_KEY_BYTES:]


def key_at(place: bytes) -> bytes:
    """The key that a place stands for."""
    return place[:ORDERED_KEY_BYTES] + place[ORDERED_KEY_BYTES + DIGEST_BYTES :]


def queue_field(topic: str, queue_id: int) -> str:
    """A queue's name in hashes."""
    return f"{topic}/{queue_id}"


def queue_of(field: str) -> tuple[str, int]:
    """The topic and queue id of a name in hashes."""
    topic, _, queue_id = field.rpartition("/")
    return topic, int(queue_id)


def offset_in(entry_id: bytes | str) -> int:
    """The number in a stream's id: an offset, or a log position."""
    text = entry_id if isinstance(entry_id, str) else entry_id.decode()
    return int(text.partition("-")[2])
