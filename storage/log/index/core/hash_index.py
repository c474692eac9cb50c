"""Hash index of keys: layout, hashes, and what a batch has to say. Pure.

::

    keyindex/<20 digits: the log offset from which on it speaks>
    | header 40 | slots, 4 bytes each | entries, 20 bytes each |        big-endian

    header  magic "HMK2" 4 | slots 4 | entries 4 | CRC-32 of the other 36 bytes 4
            | first position 8 | end position 8 | store time of its first entry, ms 8
    slot    number of the newest entry of its chain, from 1; 0 = none
    entry   hash 4 | log offset 8 | seconds since the header's store time 4
            | number of the entry before it in its chain 4, 0 = none

An entry belongs to slot hash % slots. Slots are on disk once a file is full; those of the file
that is being filled follow from its entries. The header speaks of what is durable.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
from librt.strings import BytesWriter

from storage.api.batches import Batch
from storage.core.keys import add_hashes

MAGIC: Final = b"HMK2"
HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ENTRY_SIZE: Final = 20
ENTRY: Final = np.dtype([("hash", ">u4"), ("position", ">i8"), ("seconds", ">u4"), ("before", ">u4")])
SLOT: Final = np.dtype(">u4")

KEYS: Final = np.dtype([("hash", np.uint32), ("position", np.int64), ("store_ms", np.int64)])
"""What the log says of a key: its hash, and log offset and store time of its record."""

SLICE: Final = 2048
"""Records whose keys are looked for in one go: about 0.2 ms."""

_HEADER: Final = Struct(">4sII4xqqq")
_CRC: Final = Struct(">I")
_CRC_AT: Final = 12

Slots = npt.NDArray[np.uint32]
Keys = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]


class IndexHeader(NamedTuple):
    """What is durable of a file: `entries` of them, for the log from `first` to `end`."""

    slots: int
    entries: int
    first: int
    end: int
    first_ms: int

    def pack(self) -> bytes:
        """Pack the header's 40 bytes."""
        raw = bytearray(_HEADER.pack(MAGIC, *self))
        _CRC.pack_into(raw, _CRC_AT, crc32(raw))
        return bytes(raw)

    @classmethod
    def unpack(cls, raw: bytes | bytearray) -> IndexHeader | None:
        """Read 40 bytes; None when they are no header."""
        if len(raw) != HEADER_SIZE or raw[:4] != MAGIC:
            return None
        crc: int = _CRC.unpack_from(raw, _CRC_AT)[0]
        plain = bytes(raw[:_CRC_AT]) + bytes(4) + bytes(raw[_CRC_AT + 4 :])
        return cls(*_HEADER.unpack(plain)[1:]) if crc32(plain) == crc else None


def keys_of(batch: Batch) -> Keys:
    """A row for each different key and unique id of each record, in log order."""
    written = BytesWriter()
    if batch.has_keys:
        data = bytes(batch.records)
        start = 0
        for run in batch.runs:
            topic = run.topic.encode("utf-8", "surrogateescape")
            # In slices: compiled code gives no other thread a turn.
            for at in range(0, run.count, SLICE):
                start = add_hashes(topic, data, start, min(SLICE, run.count - at), written)
    pairs = np.frombuffer(written.getvalue(), "<i8").reshape(-1, 2)
    found = np.empty(len(pairs), KEYS)
    found["hash"] = pairs[:, 0]
    found["position"] = pairs[:, 1] + batch.position
    found["store_ms"] = batch.store_ms
    return found


def link(keys: Keys, first_number: int, first_ms: int, slots: Slots) -> npt.NDArray[np.void]:
    """The entries as they are written behind `first_number` - 1 others; `slots` stay as they are."""
    made = np.empty(len(keys), ENTRY)
    of_slot, order = _by_slot(keys["hash"], slots)
    before = slots[of_slot].astype(np.int64)
    # Of several entries of one slot each but the first has the one in front of it before it.
    follows = np.flatnonzero(of_slot[1:] == of_slot[:-1]) + 1
    before[follows] = order[follows - 1] + first_number
    made["before"][order] = before
    made["hash"] = keys["hash"]
    made["position"] = keys["position"]
    made["seconds"] = np.maximum(keys["store_ms"] - first_ms, 0) // 1000
    return made


def add_to_slots(slots: Slots, entries: npt.NDArray[np.void], first_number: int) -> None:
    """Make entries the newest of their slots' chains, in their order."""
    of_slot, order = _by_slot(entries["hash"], slots)
    # Of several entries of one slot the last must win; which one does in an assignment is not promised.
    is_last = np.append(of_slot[1:] != of_slot[:-1], True)[: len(of_slot)]
    slots[of_slot[is_last]] = first_number + order[is_last]


def _by_slot(hashes: npt.NDArray[np.uint32], slots: Slots) -> tuple[Numbers, Numbers]:
    """Slots and numbers of entries, sorted by both: plain numbers are sorted in a fraction of an argsort."""
    at = hashes.astype(np.int64) % len(slots)
    both = np.sort(at << 32 | np.arange(len(at)))
    return both >> 32, both & 0xFFFFFFFF
