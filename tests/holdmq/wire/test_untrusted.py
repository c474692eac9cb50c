"""What msgpack of somebody else may cost: work is counted in items looked at and bytes allocated."""

from __future__ import annotations

import ast
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import WireError
from holdmq.wire.untrusted import (
    DECODED_MAX_BYTES,
    DEPTH_MAX,
    PEER_LIMITS,
    STRANGER_LIMITS,
    WALKED_FROM_BYTES,
    UnpackLimits,
    unpack,
    weigh,
)

WALKED = UnpackLimits(walked_from_bytes=0)
NEVER_WALKED = UnpackLimits(walked_from_bytes=1 << 30)
EITHER_WAY = pytest.mark.parametrize("limits", [PEER_LIMITS, WALKED, STRANGER_LIMITS])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
    | st.binary(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text() | st.binary(), inside),
)  # fmt: skip


def size_of(value: Any) -> int:
    """Bytes of an object and of all in it, as CPython allocates them."""
    rounded = sys.getsizeof(value) + 15 & ~15
    if isinstance(value, dict):
        return rounded + sum(size_of(key) + size_of(item) for key, item in value.items())
    return rounded + (sum(map(size_of, value)) if isinstance(value, list) else 0)


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


@given(VALUES)
def test_what_was_packed_is_unpacked(value: Any) -> None:
    data = msgpack.packb(value)
    assert unpack(data, "it") == value
    assert unpack(memoryview(data), "it", WALKED) == value


@given(VALUES)
def test_the_walk_never_takes_objects_for_smaller_than_they_are(value: Any) -> None:
    data = msgpack.packb(value)
    assert weigh(data, "it", WALKED) >= size_of(unpack(data, "it"))


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 1000,
        [{}] * 1000,
        [{"": None}] * 1000,
        [{str(i): i for i in range(n)} for n in range(300)],
        ["😀" + "a" * 1000, "é" * 1000, "a" * 1000],
        [b"", b"a", b"a" * 1000],
        [2**63] * 1000,
        [0.5] * 1000,
        list(range(1000)),
    ],
)
def test_nor_are_the_dearest_shapes(value: Any) -> None:
    data = msgpack.packb(value)
    assert weigh(data, "it", WALKED) >= size_of(unpack(data, "it"))


@EITHER_WAY
@pytest.mark.parametrize(
    "data",
    [
        b"\xd6\xff" + bytes(4),
        b"\xd7\xff" + bytes(8),
        b"\xc7\x0c\xff" + bytes(12),
        b"\xc7\x00\x05",
        b"\xd4\x05a",
        b"\xd8\x05" + bytes(16),
        b"\xc8\x00\x01\x05a",
        b"\xc9\x00\x00\x00\x01\x05a",
        b"\x92\x01\x81\xa1k\xd6\xff" + bytes(4),
    ],
)
def test_extension_types_are_refused_wherever_they_are(data: bytes, limits: UnpackLimits) -> None:
    with pytest.raises(WireError, match="extension type"):
        unpack(data, "it", limits)


@EITHER_WAY
@pytest.mark.parametrize(
    "key",
    [
        b"\x01",
        b"\xff",
        b"\xcf" + bytes(8),
        b"\xca" + bytes(4),
        b"\xc0",
        b"\xc3",
        b"\xd6\xff" + bytes(4),
        b"\x90",
    ],
)
@pytest.mark.parametrize("around", [b"", b"\x91", b"\x81\xa1k", b"\x91\x82\xa1a\x01\xa1b"])
def test_only_strings_are_keys_at_every_depth(key: bytes, around: bytes, limits: UnpackLimits) -> None:
    for data in (around + b"\x81" + key + b"\x01", around + b"\x82\xa1k\x01" + key + b"\x01"):
        with pytest.raises(WireError, match=r"no string|extension type"):
            unpack(data, "it", limits)


def test_a_header_of_colliding_timestamps_makes_none_of_them() -> None:
    count = 5_000
    entries = b"".join(b"\xd6\xff" + struct.pack(">I", i) + b"\xc0" for i in range(count))
    data = b"\xdf" + struct.pack(">I", count) + entries
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="extension type"):
            unpack(data, "it")
        assert tracemalloc.get_traced_memory()[1] < 16 << 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("item", [b"\x90", b"\x80", b"\x81\xa0\xc0"])
def test_empty_containers_are_refused_before_they_are_made(item: bytes) -> None:
    count = (4 << 20) // len(item)
    data = b"\xdd" + struct.pack(">I", count) + item * count
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"the limit is|bytes of memory"):
            unpack(data, "it")
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_nor_are_those_of_many_lists_that_are_short_enough_each() -> None:
    data = b"\xdc" + struct.pack(">H", 30) + (b"\xdc" + struct.pack(">H", 4000) + b"\x90" * 4000) * 30
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="bytes of memory"):
            unpack(data, "it", UnpackLimits(decoded_max_bytes=4 << 20))
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [128, 4096, 0xFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("times", [200, 2000])
def test_lists_that_are_only_promised_take_no_place(length: int, times: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            unpack((b"\xdd" + struct.pack(">I", length)) * times, "it")
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_list_longer_than_usual_is_read_all_the_same() -> None:
    for count in (15, 128, 129, 5_000, 100_000):
        assert unpack(msgpack.packb(list(range(count))), "it") == list(range(count))


def test_depth_is_bounded_in_what_is_walked() -> None:
    limits = UnpackLimits(depth_max=3, walked_from_bytes=0)
    assert unpack(nested(3), "it", limits) == [[[None]]]
    with pytest.raises(WireError, match="more than 3 arrays and maps deep"):
        unpack(nested(4), "it", limits)
    assert unpack(b"\x90" * 1, "it", limits) == []
    long = msgpack.packb(bytes(WALKED_FROM_BYTES))
    with pytest.raises(WireError, match=f"more than {DEPTH_MAX} arrays"):
        unpack(b"\x92" + long + nested(DEPTH_MAX), "it")
    with pytest.raises(WireError, match="deep"):
        unpack(nested(100_000), "it")


@pytest.mark.parametrize("count", [62, 63, 64])
def test_items_are_bounded_together(count: int) -> None:
    data = msgpack.packb([[0] * (count // 2), [0] * (count - count // 2 - 2)])  # one more for the outer list
    if count < 64:
        assert unpack(data, "it", STRANGER_LIMITS)
    else:
        with pytest.raises(WireError, match="it holds 65 items or more; the limit is 64"):
            unpack(data, "it", STRANGER_LIMITS)
    keys = msgpack.packb({str(i): 0 for i in range(count // 2 + 1)})
    with pytest.raises(WireError, match="the limit is 64") if count > 62 else pytest.raises(WireError):
        unpack(keys, "it", STRANGER_LIMITS)


def test_memory_is_bounded() -> None:
    limits = UnpackLimits(decoded_max_bytes=10_000, walked_from_bytes=0)
    assert unpack(msgpack.packb(b"a" * 9_000), "it", limits)
    with pytest.raises(WireError, match="it would take more than 10000 bytes of memory"):
        unpack(msgpack.packb(b"a" * 10_000), "it", limits)
    assert DECODED_MAX_BYTES == 64 << 20


@given(VALUES, st.data())
def test_truncated_or_trailed_bytes_are_refused(value: Any, data: st.DataObject) -> None:
    packed = msgpack.packb(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    for limits in (PEER_LIMITS, WALKED):
        with pytest.raises(WireError, match="it is not msgpack"):
            unpack(packed[:cut], "it", limits)
        with pytest.raises(WireError, match="it is not msgpack"):
            unpack(packed + b"\xc0", "it", limits)


@given(st.binary(max_size=300))
def test_any_bytes_are_the_same_walked_or_not(data: bytes) -> None:
    found: list[Any] = []
    for limits in (WALKED, NEVER_WALKED):
        try:
            found.append(msgpack.packb(unpack(data, "it", limits)))
        except WireError:
            found.append(None)
    # The walk alone bounds depth; bytes of this length are not deep enough for another difference.
    assert found[0] == found[1] or b"deep" in str(found).encode()


def test_nothing_else_in_the_product_unpacks_msgpack() -> None:
    root = Path(__file__).parents[3]
    packages = [
        "broker",
        "console",
        "gateway",
        "holdmq",
        "loadtest",
        "pyspark_holdmq",
        "registry",
        "spark_streaming",
    ]
    names = {"unpackb", "unpack", "Unpacker", "loads", "load"}
    found = set()
    for path in (path for package in [*packages, "storage"] for path in (root / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if is_attribute and node.value.id == "msgpack" and node.attr in names:
                found.add(path.name)
            if isinstance(node, ast.ImportFrom) and node.module == "msgpack":
                found.add(path.name)
    assert found == {"untrusted.py"}
