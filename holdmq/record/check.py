"""Whether the properties of a batch may be stored: readers must never meet what they cannot decode.

The usual batch is decided with a few passes over all its property bytes at once; only records
that carry an MQTT 5 block, an escape or a character that no tag may have are looked at singly.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from holdmq.errors import HoldMQError
from holdmq.mqtt.publish import decode_publish_properties
from holdmq.names.topics import tag_fault
from holdmq.record.each import BadEntry
from holdmq.record.properties import decode_properties, tag_of
from holdmq.record.tags import PROPERTIES_CACHE_MAX, has_keys

_good: Final[set[bytes]] = {b""}
"""Properties without keys found good lately, at most `PROPERTIES_CACHE_MAX`: a device repeats its own."""
_BROKERS_OWN: Final = frozenset({"ORIGIN", "DEST", "REAL_TOPIC"})
"""Keys that only the broker writes: by them a start finds in the log what was released and moved."""
_SINGLY: Final = (b"\x00", b"\x03", b"+", b"#", b"ORIGIN\x01", b"DEST\x01", b"REAL_TOPIC\x01")


class Checked(NamedTuple):
    """The first record whose properties may not be stored, or None; whether a record may have a key."""

    bad: BadEntry | None
    has_keys: bool


def check_properties(properties: list[bytes]) -> Checked:
    """Whether the property pairs, tag and MQTT 5 block of every record can be decoded, and if not, why.

    `properties` are the encoded ones of each record of a batch.
    """
    if _good.issuperset(properties):
        return Checked(None, False)
    unknown = [one for one in dict.fromkeys(properties) if one not in _good]
    joined = b"".join(unknown)
    if not _is_plain(joined, unknown):
        for index, one in enumerate(properties):
            if one not in _good and (fault := properties_fault(one)) is not None:
                return Checked(BadEntry(index, fault), False)
    keys = has_keys(joined)
    if not keys:  # those with keys come once, and would only drive out what comes again
        if len(_good) + len(unknown) > PROPERTIES_CACHE_MAX:
            _good.clear()
            _good.add(b"")
        _good.update(unknown[:PROPERTIES_CACHE_MAX])
    return Checked(None, keys)


def properties_fault(properties: bytes) -> str | None:
    """What is wrong with one record's properties; None = nothing."""
    try:
        decoded = decode_properties(properties)
        tag = tag_of(properties)
        if tag is not None and (fault := tag_fault(tag)) is not None:
            return f"its tag {fault}"
        for key, _ in decoded.pairs:
            if key in _BROKERS_OWN:
                return f"its property {key} is the broker's to write"
        if decoded.mqtt:
            decode_publish_properties(decoded.mqtt)
    except HoldMQError as error:
        return f"its properties: {error}"
    return None


def _is_plain(joined: bytes, properties: list[bytes]) -> bool:
    """Whether all is well without looking at single records; False = perhaps not. None of them is empty."""
    if any(mark in joined for mark in _SINGLY):
        return False
    raw = np.frombuffer(joined, np.uint8)
    ends = np.cumsum(np.fromiter(map(len, properties), np.int64, len(properties)))
    if (raw[ends - 1] != 2).any():
        return False
    at = np.flatnonzero(raw <= 2)
    marks = raw[at]
    # Every record ends with U+0002, so marks that alternate over all of them alternate in each.
    if len(marks) % 2 or (marks[0::2] != 1).any() or (marks[1::2] != 2).any():
        return False
    # A key must not be empty: U+0001 right at the start or right behind U+0002.
    firsts = at[0::2]
    if firsts[0] == 0 or (firsts[1:] == at[1:-1:2] + 1).any():
        return False
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return True
