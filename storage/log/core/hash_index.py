"""Hash index of keys: layout, hashes, and what a batch has to say. Pure.

::

    keyindex/<20 digits: the log offset from which on it speaks>
    | header 40 | slots, 4 bytes each | entries, 20 bytes each |        big-endian

    header  magic "HMQK" 4 | slots 4 | entries 4 | CRC-32 of the other 36 bytes 4
            | first position 8 | end position 8 | store time of its first entry, ms 8
    slot    number of the newest entry of its chain, from 1; 0 = none
    entry   hash 4 | log offset 8 | seconds since the header's store time 4
            | number of the entry before it in its chain 4, 0 = none

An entry belongs to slot hash % slots. Slots are on disk once a file is full; those of the file
that is being filled follow from its entries. The header speaks of what is durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from holdmq.record_batch import properties_bounds
from storage.store import Batch

MAGIC: Final = b"HMQK"
HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ENTRY_SIZE: Final = 20
ENTRY: Final = np.dtype([("hash", ">u4"), ("position", ">i8"), ("seconds", ">u4"), ("before", ">u4")])
SLOT: Final = np.dtype(">u4")

KEY: Final = b"KEYS\x01"
UNIQUE: Final = b"UNIQ_KEY\x01"

_HEADER: Final = Struct(">4sII4xqqq")
_CRC: Final = Struct(">I")
_CRC_AT: Final = 12

Slots = npt.NDArray[np.uint32]


class Header(NamedTuple):
    """What is durable of a file: `entries` of them, for the log from `first` to `end`."""

    slots: int
    entries: int
    first: int
    end: int
    first_ms: int

    def pack(self) -> bytes:
        """The 40 bytes."""
        raw = bytearray(_HEADER.pack(MAGIC, *self))
        _CRC.pack_into(raw, _CRC_AT, crc32(raw))
        return bytes(raw)

    @classmethod
    def unpack(cls, raw: bytes | bytearray) -> Header | None:
        """Read 40 bytes; None when they are no header."""
        if len(raw) != HEADER_SIZE or raw[:4] != MAGIC:
            return None
        crc: int = _CRC.unpack_from(raw, _CRC_AT)[0]
        plain = bytes(raw[:_CRC_AT]) + bytes(4) + bytes(raw[_CRC_AT + 4 :])
        return cls(*_HEADER.unpack(plain)[1:]) if crc32(plain) == crc else None


class Entry(NamedTuple):
    """A key of a record at `position`, stored at `store_ms`."""

    hash: int
    position: int
    store_ms: int


def hash_of(marker: bytes, topic: bytes, escaped: bytes) -> int:
    """The 32-bit hash of a key (`KEY`) or unique id (`UNIQUE`) of a topic, as its properties write it."""
    return xxh3_64_intdigest(b"\0".join((marker, topic, escaped))) & 0xFFFFFFFF


def entries_of(batch: Batch) -> Iterator[Entry]:
    """An entry for each different key and unique id of each record, in log order."""
    if not batch.has_keys:
        return
    data = bytes(batch.records)
    if KEY not in data and UNIQUE not in data:
        return
    raw = np.frombuffer(data, np.uint8)
    begins, ends = properties_bounds(raw, batch.starts, batch.sizes)
    bounds = zip(batch.starts.tolist(), begins.tolist(), ends.tolist(), strict=True)
    for run in batch.runs:
        topic = run.topic.encode("utf-8", "surrogateescape")
        for _ in range(run.count):
            start, begin, end = next(bounds)
            found = keys_in(data, begin, end)
            for marker, value in dict.fromkeys(found):
                yield Entry(hash_of(marker, topic, value), batch.position + start, batch.store_ms)


def keys_in(data: bytes, begin: int, end: int) -> list[tuple[bytes, bytes]]:
    """Marker and value, as written, of every key and unique id in encoded properties."""
    found: list[tuple[bytes, bytes]] = []
    mqtt = data.find(b"\0", begin, end)
    if mqtt >= 0:
        end = mqtt
    for marker in (KEY, UNIQUE):
        at = data.find(marker, begin, end)
        while at >= 0:
            stop = data.find(b"\x02", at, end)
            if stop < 0:
                break
            # Only where a pair begins: a value may end like a key.
            if at == begin or data[at - 1] == 2:
                found.append((marker, data[at + len(marker) : stop]))
            at = data.find(marker, stop, end)
    return found


def link(entries: list[Entry], first_number: int, first_ms: int, slots: Slots) -> npt.NDArray[np.void]:
    """The entries as they are written behind `first_number` - 1 others; `slots` stay as they are."""
    made = np.empty(len(entries), ENTRY)
    heads: dict[int, int] = {}
    count = len(slots)
    before = []
    for number, entry in enumerate(entries, first_number):
        slot = entry.hash % count
        head = heads.get(slot)
        before.append(int(slots[slot]) if head is None else head)
        heads[slot] = number
    made["hash"] = [entry.hash for entry in entries]
    made["position"] = [entry.position for entry in entries]
    made["seconds"] = [max(0, entry.store_ms - first_ms) // 1000 for entry in entries]
    made["before"] = before
    return made


def add_to_slots(slots: Slots, entries: npt.NDArray[np.void], first_number: int) -> None:
    """Make entries the newest of their slots' chains, in their order."""
    at = entries["hash"].astype(np.int64) % len(slots)
    # Of several entries of one slot the last must win; which one does in an assignment is not promised.
    _, newest = np.unique(at[::-1], return_index=True)
    last = len(at) - 1 - newest
    slots[at[last]] = first_number + last
