"""Keys and unique ids in encoded properties, and their hashes: a loop over records that mypyc compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

KEY: Final = b"KEYS\x01"
UNIQUE: Final = b"UNIQ_KEY\x01"

_HASH: Final = 0xFFFFFFFF


def hash_of(marker: bytes, topic: bytes, escaped: bytes) -> int:
    """The 32-bit hash of a key (`KEY`) or unique id (`UNIQUE`) of a topic, as its properties write it."""
    return xxh3_64_intdigest(b"\0".join((marker, topic, escaped))) & _HASH


def keys_in(properties: bytes) -> list[tuple[bytes, bytes]]:
    """Marker and value, as written, of every key and unique id in encoded properties."""
    found: list[tuple[bytes, bytes]] = []
    end = properties.find(b"\0")
    if end < 0:
        end = len(properties)
    for marker in (KEY, UNIQUE):
        at = properties.find(marker, 0, end)
        while at >= 0:
            stop = properties.find(b"\x02", at, end)
            if stop < 0:
                break
            # Only where a pair begins: a value may end like a key.
            if at == 0 or properties[at - 1] == 2:
                found.append((marker, properties[at + len(marker) : stop]))
            at = properties.find(marker, stop, end)
    return found


def add_hashes(
    topic: bytes, properties: Sequence[bytes], first: int, hashes: list[int], numbers: list[int]
) -> None:
    """Add the hash of each different key of each record, and the record's number, counted from `first`."""
    id_prefix = b"\0".join((UNIQUE, topic, b""))
    number = first
    for one in properties:
        # The usual record of a producer: its own id, last, no other key and nothing of MQTT's.
        at = one.find(UNIQUE)
        stop = len(one) - 1
        is_last = at >= 0 and one.find(b"\x02", at) == stop and (at == 0 or one[at - 1] == 2)
        if is_last and KEY not in one and b"\0" not in one:
            hashes.append(xxh3_64_intdigest(id_prefix + one[at + len(UNIQUE) : stop]) & _HASH)
            numbers.append(number)
        elif at >= 0 or KEY in one:
            for marker, value in dict.fromkeys(keys_in(one)):
                hashes.append(hash_of(marker, topic, value))
                numbers.append(number)
        number += 1
