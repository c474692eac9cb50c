"""Tag hashes: what a consume-queue entry knows of a tag (storage.md, Consume queue).

::

    | high 32 bits of xxh3-64(first key_levels levels) | low 32 bits of xxh3-64(whole tag) |

No tag is 0, the empty tag is hashed like any other, and a computed 0 becomes 1. Exact filters
compare the whole hash, prefix filters (`42/#`) its high half; both may pass what does not
match, so readers always test again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, write_i64_le
from xxhash import xxh3_64_intdigest

from holdmq.record.properties import KEY, UNIQUE, escaped_tag_of, unescape_tag

if TYPE_CHECKING:
    from mypy_extensions import i64

TAG_CACHE_MAX: Final = 65_536
"""Tags whose hash is remembered per key level: a fleet's active topics, in about 10 MB."""
PROPERTIES_CACHE_MAX: Final = 32_768
"""Whole properties whose tag's hash is remembered: a device that publishes repeats them; about 8 MB."""

_HIGH: Final = 0xFFFFFFFF_00000000
_LOW: Final = 0xFFFFFFFF
_SPAN: Final = 1 << 64


def tag_hash(tag: bytes | None, key_levels: int = 1) -> int:
    """The 64-bit hash of a tag (UTF-8, None = no tag) in a topic of `key_levels` (≥ 1)."""
    if tag is None:
        return 0
    return (prefix_hash(tag, key_levels) | xxh3_64_intdigest(tag) & _LOW) or 1


def prefix_hash(prefix: bytes, key_levels: int = 1) -> int:
    """The high half, in place (the low one is 0), of every tag that begins with these levels.

    `prefix` has at least `key_levels` levels, or is a whole tag of fewer; more are ignored.
    """
    if prefix.count(b"/") >= key_levels:
        prefix = b"/".join(prefix.split(b"/", key_levels)[:key_levels])
    return xxh3_64_intdigest(prefix) & _HIGH


def has_keys(properties: bytes) -> bool:
    """Whether there may be a key or unique id in encoded properties of one record or of many, joined."""
    return UNIQUE in properties or KEY in properties


class TagCache:
    """Hashes of the tags seen lately in topics of one `key_levels`, at most `TAG_CACHE_MAX`.

    Tags are asked for as they stand in a record's properties (escaped): no work for a known one.
    """

    __slots__ = ("_by_properties", "_hashes", "key_levels")

    def __init__(self, key_levels: int) -> None:
        self.key_levels = key_levels
        self._by_properties: dict[bytes, int] = {}
        self._hashes: dict[bytes, int] = {}

    def hash(self, escaped: bytes) -> int:
        """`tag_hash` of the tag that is written so, remembered."""
        found = self._hashes.get(escaped)
        if found is None:
            if len(self._hashes) >= TAG_CACHE_MAX:
                # Starting over costs one hash per active tag; keeping order would cost on every hit.
                self._hashes.clear()
            found = self._hashes[escaped] = tag_hash(unescape_tag(escaped), self.key_levels)
        return found

    def hashes(self, properties: list[bytes], has_keys: bool) -> bytes | None:
        """The hashes of the tags in encoded properties, 8 bytes each, little-endian; None = none has a tag.

        `has_keys`: a key or unique id may be among them. Such properties come in one batch only, and are
        not remembered.
        """
        made = BytesWriter()
        all_bits: i64 = 0
        known = {} if has_keys else self._by_properties
        for one in properties:
            found = known.get(one)
            if found is None:
                if len(known) >= PROPERTIES_CACHE_MAX:
                    known.clear()
                found = known[one] = self.hash_in(one)
            value: i64 = found
            write_i64_le(made, value)
            all_bits |= value
        return made.getvalue() if all_bits else None

    def hash_in(self, properties: bytes) -> int:
        """The hash of the tag in encoded properties, as a signed number; 0 = there is none."""
        escaped = escaped_tag_of(properties)
        value = 0 if escaped is None else self.hash(escaped)
        return value - _SPAN if value >> 63 else value

    def __len__(self) -> int:
        return len(self._hashes)
