"""The one way from msgpack that somebody else wrote to Python objects.

What msgpack can say is more than anybody here means, and some of it costs the reader far more than the
writer. So there are

* no extension types: hashes of timestamps can be chosen, and a map with colliding ones takes a time that
  grows with the square of its size;
* only strings, of text or bytes, as keys of maps: so can those of numbers. Strings' are seeded anew for each
  process (which of the two it is where, typed headers say);
* bounds of what it comes to, as an empty map is one byte there and 64 here, and a list that was only
  announced takes its place at once. What is larger than some KiB is walked first, without making anything of
  it: items, depth, and the bytes that the objects will take.

Source: the msgpack specification (msgpack/spec.md); "Efficient Denial of Service Attacks on Web Application
Platforms" (28C3, 2011).
"""

from __future__ import annotations

from typing import Any, Final, final

from msgpack import unpackb

from holdmq.errors import WireError

ITEMS_MAX: Final = 1 << 20
"""Items of what is unpacked, each key and value one: five times what the largest request here has."""
DEPTH_MAX: Final = 32
"""Arrays and maps within each other: four times the deepest header's."""
DECODED_MAX_BYTES: Final = 64 << 20
"""What the objects may take: 64 bytes an item, sixteen times the bytes of the largest header."""
WALKED_FROM_BYTES: Final = 16 << 10
"""What is no larger is not walked: 80 bytes of memory for each of its bytes are no harm, and usual headers,
which are a hundredth of it, must cost nothing more."""
_PROMISE_MAX: Final = 128
"""Items of an array in what is not walked; one that has more is walked after all. An array is as large as its
length says before its first item is there, and the decoder goes 1,024 deep: 3 KB could ask for 512 MB."""

# What objects of CPython take, for each item in a list or map its place there included. They are never too
# small: tests compare them with what is allocated.
_ITEM_BYTES: Final = 8
_SCALAR_BYTES: Final = 32
_LONG_BYTES: Final = 48
_TEXT_BYTES: Final = 96
_TEXT_BYTES_EACH: Final = 4
"""One character beyond the first 65,536 of Unicode makes all of its string so wide."""
_BINARY_BYTES: Final = 48
_LIST_BYTES: Final = 64
_MAP_BYTES: Final = 80
_ENTRIES_BYTES: Final = 192
_ENTRY_BYTES: Final = 112


@final
class UnpackLimits:
    """Bounds of what is unpacked.

    `items_max` and `depth_max` are counts, `decoded_max_bytes` what the objects may take. Only what is
    larger than `walked_from_bytes` is walked, and so held to them; 0 = everything is.
    """

    __slots__ = ("decoded_max_bytes", "depth_max", "items_max", "walked_from_bytes")

    def __init__(
        self,
        items_max: int = ITEMS_MAX,
        depth_max: int = DEPTH_MAX,
        decoded_max_bytes: int = DECODED_MAX_BYTES,
        walked_from_bytes: int = WALKED_FROM_BYTES,
    ) -> None:
        self.items_max: Final = items_max
        self.depth_max: Final = depth_max
        self.decoded_max_bytes: Final = decoded_max_bytes
        self.walked_from_bytes: Final = walked_from_bytes


PEER_LIMITS: Final = UnpackLimits()
"""For peers that were admitted, and for records of the log."""
STRANGER_LIMITS: Final = UnpackLimits(
    items_max=64, depth_max=4, decoded_max_bytes=256 << 10, walked_from_bytes=0
)
"""For peers that were not admitted yet: HELLO has 27 items, three deep."""


def unpack(data: bytes | memoryview, what: str, limits: UnpackLimits = PEER_LIMITS) -> Any:
    """The object that `data` is: None, bool, int, float, str, bytes, list, dict.

    Raises WireError, which names `what`, if it is no msgpack, holds more than `limits`, an extension type, a
    key that is no string, or has more bytes behind it.
    """
    # The decoder takes nothing but str and bytes as keys, if not told otherwise. Timestamps reach no hook,
    # and other types without any data pass the bound of 0: so both.
    if len(data) <= limits.walked_from_bytes:
        try:
            return unpackb(data, max_array_len=_PROMISE_MAX, max_ext_len=0, ext_hook=_refuse_extension)
        except ValueError:
            pass  # the walk tells why, unless it has only a longer array than usual
    weigh(bytes(data), what, limits)
    try:
        return unpackb(data, max_ext_len=0, ext_hook=_refuse_extension)
    except ValueError as e:
        raise WireError(f"{what} is not msgpack: {e}") from e


def weigh(data: bytes, what: str, limits: UnpackLimits) -> int:
    """At most how many bytes the object takes that `data` begins with; nothing is made of it.

    Looks at each item once, and at no item that only a length promises. Raises WireError as `unpack` does,
    and if `data` ends before the object does.
    """
    items_max, depth_max, decoded_max_bytes = limits.items_max, limits.depth_max, limits.decoded_max_bytes
    end = len(data)
    at = 0
    items = 1
    decoded = _ITEM_BYTES
    left = 1
    is_map = False
    above: list[int] = []  # what is left of the containers around this one, twice, and 1 more if it is a map
    while True:
        while left == 0:
            if not above:
                if at > end:
                    raise WireError(f"{what} is not msgpack: it ends within an item")
                return decoded
            left = above.pop()
            is_map = (left & 1) == 1
            left >>= 1
        if at >= end:
            raise WireError(f"{what} is not msgpack: it ends within an item")
        kind = data[at]
        at += 1
        left -= 1
        is_key = is_map and (left & 1) == 1
        size = 0
        count = -1
        is_string = is_text = False
        if kind < 0x80 or kind >= 0xE0:
            decoded += _SCALAR_BYTES
        elif kind < 0xA0:
            count = kind & 0x0F
        elif kind < 0xC0:
            is_string = is_text = True
            size = kind & 0x1F
        elif kind >= 0xDC:
            width = 2 if kind in (0xDC, 0xDE) else 4
            count = _number(data, at, width)
            at += width
        elif kind >= 0xD9:
            is_string = is_text = True
            width = 1 << (kind - 0xD9)
            size = _number(data, at, width)
            at += width
        elif 0xC4 <= kind <= 0xC6:
            width = 1 << (kind - 0xC4)
            size = _number(data, at, width)
            at += width
            is_string = True
            decoded += _BINARY_BYTES + size
        elif kind <= 0xC3:
            decoded += _SCALAR_BYTES  # nothing, false, true; what no msgpack has is the decoder's to refuse
        elif kind <= 0xC9 or kind >= 0xD4:
            raise WireError(f"{what} holds an extension type; nothing here has one")
        else:
            size = 4 if kind == 0xCA else 8 if kind == 0xCB else 1 << (kind & 3)
            decoded += _SCALAR_BYTES if size < 8 else _LONG_BYTES
        if is_text:
            decoded += _TEXT_BYTES + _TEXT_BYTES_EACH * size
        if is_key and not is_string:
            raise WireError(f"{what} holds a map with a key that is no string")
        at += size
        if count >= 0:
            maps = (kind & 0xF0) == 0x80 or kind >= 0xDE
            if not maps:
                decoded += _LIST_BYTES + count * _ITEM_BYTES
            else:
                decoded += _MAP_BYTES + count * _ENTRY_BYTES + (_ENTRIES_BYTES if count else 0)
                count *= 2
            items += count
            if len(above) >= depth_max:
                raise WireError(f"{what} is more than {depth_max} arrays and maps deep")
            above.append(left * 2 + (1 if is_map else 0))
            left = count
            is_map = maps
        if items > items_max:
            raise WireError(f"{what} holds {items} items or more; the limit is {items_max}")
        if decoded > decoded_max_bytes:
            raise WireError(f"{what} would take more than {decoded_max_bytes} bytes of memory")


def _number(data: bytes, at: int, width: int) -> int:
    """An unsigned number, big-endian; what is not there counts as 0, and ends the walk in the next step."""
    found = 0
    for i in range(at, min(at + width, len(data))):
        found = found << 8 | data[i]
    return found


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code}; nothing here has one")
