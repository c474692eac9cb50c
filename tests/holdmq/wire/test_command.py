from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import WireError
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import ONE_WAY, RESPONSE, Command, decode_command
from holdmq.wire.headers import HelloRequest
from holdmq.wire.untrusted import STRANGER_LIMITS

FIELDS = [10, "python", 1, 5, 0, "remark", {"k": 1}]


def test_a_command_is_read_as_it_was_written() -> None:
    command = Command(10, 5, RESPONSE, "remark", {"n": None, "b": b"\x00", "l": [1, [2]], "ü": -1})
    assert decode_command(command.encode()) == command
    assert command.is_response
    assert not command.is_one_way
    assert Command(1, flag=ONE_WAY).is_one_way


def test_items_after_the_seventh_are_ignored() -> None:
    assert decode_command(msgpack.packb([*FIELDS, "later", 8])) == Command(10, 5, 0, "remark", {"k": 1})


def test_a_truncated_or_trailed_header_is_refused() -> None:
    data = Command(10, 5, 0, "remark", {"k": 1}).encode()
    for length in range(len(data)):
        with pytest.raises(WireError):
            decode_command(data[:length])
    with pytest.raises(WireError, match="not msgpack"):
        decode_command(data + b"\x00")


@pytest.mark.parametrize("fields", [FIELDS[:6], [], {"a": 1}, 7, None, "text", dict.fromkeys("abcdefg", 1)])
def test_what_is_no_array_of_seven_is_refused(fields: Any) -> None:
    with pytest.raises(WireError, match="seven fields"):
        decode_command(msgpack.packb(fields))


@pytest.mark.parametrize("index", range(7))
@pytest.mark.parametrize("value", [None, 1.5, b"x", []])
def test_a_field_of_the_wrong_type_is_refused(index: int, value: Any) -> None:
    fields = list(FIELDS)
    fields[index] = value
    with pytest.raises(WireError, match="wrong type"):
        decode_command(msgpack.packb(fields))


def test_depth_and_promised_lengths_do_not_hurt() -> None:
    with pytest.raises(WireError, match="arrays and maps deep"):
        decode_command(b"\x91" * 100_000)
    with pytest.raises(WireError, match=r"bytes of memory|the limit is"):
        decode_command(b"\xdd\xff\xff\xff\xff")
    with pytest.raises(WireError, match=r"bytes of memory|the limit is"):
        decode_command(b"\xdf\xff\xff\xff\xff")


def test_a_stranger_s_header_holds_what_hello_needs_and_little_more() -> None:
    hello = HelloRequest(1, "client", "c" * 100, "software", "key", bytes(32), bytes(32))
    command = Command(RequestCode.HELLO, 1, 0, "", hello.to_ext())
    assert decode_command(command.encode(), STRANGER_LIMITS) == command
    command.ext_fields["more"] = [0] * 64
    assert decode_command(command.encode()) == command
    with pytest.raises(WireError, match="the limit is 64"):
        decode_command(command.encode(), STRANGER_LIMITS)


@pytest.mark.parametrize("key", [1, None, 1.5, msgpack.Timestamp(1), ()])
def test_ext_fields_have_names(key: Any) -> None:
    for ext_fields in ({key: 1}, {"state": {"a": [{key: 1}]}}):
        with pytest.raises(WireError, match=r"no string|extension type"):
            decode_command(msgpack.packb([*FIELDS[:6], ext_fields]))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_command_or_a_wire_error(data: bytes) -> None:
    try:
        decode_command(data)
    except WireError:
        return
