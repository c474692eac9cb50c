from __future__ import annotations

import itertools
import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.errors import WireError
from holdmq.wire.command import RESPONSE, Command
from holdmq.wire.frame import HEADER_MAX_BYTES, Frame, FrameDecoder, encode_frame

LIMIT = 1 << 20


def wire(command: Command, *body: bytes) -> bytes:
    return b"".join(bytes(part) for part in encode_frame(command, body, sum(map(len, body))))


FRAMES = [
    (Command(10, 1, 0, "", {"a": 1, "b": b"\x00", "c": [["t", 1]]}), b"body"),
    (Command(0, 1, RESPONSE, "fine"), b""),
    (Command(22, 2**40, 2, "", {}), b"\x00" * 300),
]
STREAM = b"".join(wire(command, body) for command, body in FRAMES)


def same(frames: list[Frame]) -> None:
    assert [(command, bytes(body)) for command, body in frames] == FRAMES


def test_golden_bytes() -> None:
    header = msgpack.packb([20, "python", 1, 7, 0, "", {"max_bytes": 9}])
    assert wire(Command(20, 7, 0, "", {"max_bytes": 9}), b"xyz") == (
        struct.pack(">II", 4 + len(header) + 3, len(header)) + header + b"xyz"
    )
    assert wire(Command(2)).hex() == "000000120000000e" + "9702a6707974686f6e010000a080"


def test_a_stream_is_read_whole() -> None:
    decoder = FrameDecoder(LIMIT)
    same(decoder.receive_data(STREAM))
    assert decoder.is_idle


def test_a_stream_is_read_byte_by_byte() -> None:
    decoder = FrameDecoder(LIMIT)
    frames: list[Frame] = []
    for i in range(len(STREAM)):
        frames += decoder.receive_data(STREAM[i : i + 1])
    same(frames)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    decoder = FrameDecoder(LIMIT)
    frames: list[Frame] = []
    places = [0, *sorted(cuts), len(STREAM)]
    for begin, end in itertools.pairwise(places):
        frames += decoder.receive_data(STREAM[begin:end])
    same(frames)


def test_a_truncated_stream_gives_the_whole_frames_and_waits() -> None:
    for length in range(len(STREAM)):
        decoder = FrameDecoder(LIMIT)
        frames = decoder.receive_data(STREAM[:length])
        assert [command for command, _ in frames] == [c for c, _ in FRAMES][: len(frames)]
        assert len(frames) < len(FRAMES)
        rest = decoder.receive_data(STREAM[length:])
        same(frames + rest)


def test_trailing_bytes_begin_the_next_frame() -> None:
    decoder = FrameDecoder(LIMIT)
    same(decoder.receive_data(STREAM + b"\x00\x00"))
    assert not decoder.is_idle


def test_a_body_belongs_to_its_receiver() -> None:
    data = bytearray(STREAM)
    decoder = FrameDecoder(LIMIT)
    frames = decoder.receive_data(data)
    data[:] = bytes(len(data))
    same(frames)
    assert not frames[0][1].readonly


@pytest.mark.parametrize(
    ("prefix", "fault"),
    [
        (struct.pack(">II", LIMIT + 1, 10), "the limit is"),
        (struct.pack(">II", 0xFFFFFFFF, 10), "the limit is"),
        (struct.pack(">II", 0, 0), "a header of 0 bytes"),
        (struct.pack(">II", 3, 0), "a header of 0 bytes"),
        (struct.pack(">II", 100, 97), "a header of 97 bytes"),
        (struct.pack(">II", 4, 0), "not msgpack"),
        (b"GET / HTTP/1.1\r\n\r\n", "the limit is"),
    ],
)
def test_a_prefix_that_cannot_be_is_refused(prefix: bytes, fault: str) -> None:
    with pytest.raises(WireError, match=fault):
        FrameDecoder(LIMIT).receive_data(prefix)


def test_a_header_over_its_own_limit_is_refused() -> None:
    with pytest.raises(WireError, match="a header of"):
        FrameDecoder(64 << 20).receive_data(struct.pack(">II", 32 << 20, HEADER_MAX_BYTES + 1))


def test_the_limit_is_checked_before_anything_is_allocated() -> None:
    decoder = FrameDecoder(LIMIT)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decoder.receive_data(struct.pack(">II", 300 << 20, 16))
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_a_raised_limit_holds_from_the_next_frame_on() -> None:
    big = wire(Command(1), bytes(1000))
    decoder = FrameDecoder(100)
    with pytest.raises(WireError):
        decoder.receive_data(big)
    decoder = FrameDecoder(100)
    assert len(decoder.receive_data(wire(Command(1)))) == 1
    decoder.frame_max_bytes = 2000
    assert len(decoder.receive_data(big)) == 1


@given(st.binary(max_size=200), st.integers(1, 40))
def test_any_bytes_are_frames_or_a_wire_error(data: bytes, step: int) -> None:
    decoder = FrameDecoder(1000)
    try:
        for i in range(0, len(data), step):
            decoder.receive_data(data[i : i + step])
    except WireError:
        return


@given(st.data())
def test_a_damaged_stream_is_frames_or_a_wire_error(data: st.DataObject) -> None:
    damaged = bytearray(STREAM)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        FrameDecoder(LIMIT).receive_data(damaged)
    except WireError:
        return
