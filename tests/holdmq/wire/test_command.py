from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import WireError
from holdmq.wire.command import ONE_WAY, RESPONSE, Command, decode_command

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


@pytest.mark.parametrize("fields", [FIELDS[:6], [], {"a": 1}, 7, None, "text", dict(enumerate(FIELDS))])
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
    with pytest.raises(WireError, match="not msgpack"):
        decode_command(b"\x91" * 100_000)
    with pytest.raises(WireError, match="not msgpack"):
        decode_command(b"\xdd\xff\xff\xff\xff")
    with pytest.raises(WireError, match="not msgpack"):
        decode_command(b"\xdf\xff\xff\xff\xff")


@given(st.binary(max_size=100))
def test_any_bytes_are_a_command_or_a_wire_error(data: bytes) -> None:
    try:
        decode_command(data)
    except WireError:
        return
