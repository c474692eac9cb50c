"""Frames: how commands and bodies lie on a connection.

::

    | length 4 | header length 4 | header (msgpack) | body |

Big-endian; `length` counts everything after itself and is checked against the limit before
anything is allocated. Nothing is skipped: bytes that cannot be a frame end the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np

from holdmq.errors import WireError
from holdmq.wire.command import Command, decode_command
from holdmq.wire.untrusted import PEER_LIMITS, UnpackLimits

_PREFIX: Final = struct.Struct(">II")
PREFIX_SIZE: Final = _PREFIX.size
HEADER_MAX_BYTES: Final = 4 << 20
FRAME_OVERHEAD_BYTES: Final = 4 << 20
"""A frame may be this much larger than record_max_bytes: header, sizes and neighbours."""

Buffer = bytes | bytearray | memoryview


Frame = tuple[Command, memoryview]
"""One command and its body; the body is writable and belongs to the receiver."""


class FrameDecoder:
    """Turns the bytes of one connection into frames.

    Each frame's bytes are copied once, into a buffer of their own: bodies may be kept and
    stamped in place. Before HELLO is done give `frame_max_bytes` and `limits` (of a header) small, raise them
    afterwards.
    """

    __slots__ = ("_filled", "_frame", "_header_length", "_prefix", "frame_max_bytes", "limits")

    def __init__(self, frame_max_bytes: int, limits: UnpackLimits = PEER_LIMITS) -> None:
        self.frame_max_bytes = frame_max_bytes
        self.limits = limits
        self._prefix = bytearray()
        self._frame: memoryview | None = None
        self._filled = 0
        self._header_length = 0

    @property
    def is_idle(self) -> bool:
        """Whether the connection stands between two frames."""
        return self._frame is None and not self._prefix

    def receive_data(self, data: Buffer) -> list[Frame]:
        """Take bytes as they came; return the frames that they complete, in order.

        Raises WireError on a length over the limit or a header that is no command; the
        connection must be closed then.
        """
        frames: list[Frame] = []
        view = memoryview(data)
        pos, end = 0, len(view)
        while pos < end:
            if self._frame is None:
                if not self._prefix and end - pos >= PREFIX_SIZE:
                    length, header_length = _PREFIX.unpack_from(view, pos)
                    self._check(length, header_length)
                    pos += PREFIX_SIZE
                    stop = pos + length - 4
                    if stop <= end:  # as most frames: no need to wait for the rest of it
                        at = pos + header_length
                        command = decode_command(view[pos:at], self.limits)
                        frames.append((command, memoryview(bytearray(view[at:stop]))))
                        pos = stop
                        continue
                    self._start_frame(length, header_length)
                else:
                    need = PREFIX_SIZE - len(self._prefix)
                    self._prefix += view[pos : pos + need]
                    pos += min(need, end - pos)
                    if len(self._prefix) < PREFIX_SIZE:
                        break
                    length, header_length = _PREFIX.unpack(self._prefix)
                    self._check(length, header_length)
                    self._prefix.clear()
                    self._start_frame(length, header_length)
            frame = self._frame
            assert frame is not None
            take = min(len(frame) - self._filled, end - pos)
            frame[self._filled : self._filled + take] = view[pos : pos + take]
            self._filled += take
            pos += take
            if self._filled == len(frame):
                frames.append(self._finish_frame(frame))
        return frames

    def _check(self, length: int, header_length: int) -> None:
        if length > self.frame_max_bytes:
            raise WireError(f"a frame of {length} bytes; the limit is {self.frame_max_bytes}")
        if header_length > min(length - 4, HEADER_MAX_BYTES):
            raise WireError(f"a header of {header_length} bytes in a frame of {length} bytes")

    def _start_frame(self, length: int, header_length: int) -> None:
        self._header_length = header_length
        # Of a bytearray each byte would be set to zero first.
        self._frame = np.empty(length - 4, np.uint8).data
        self._filled = 0

    def _finish_frame(self, frame: memoryview) -> Frame:
        self._frame = None
        return decode_command(frame[: self._header_length], self.limits), frame[self._header_length :]


def encode_frame(command: Command, body: Iterable[Buffer] = (), body_length: int = 0) -> list[Buffer]:
    """The buffers of one frame, for one `writelines`. `body_length` is the sum of `body`'s lengths."""
    header = command.encode()
    parts: list[Buffer] = [_PREFIX.pack(4 + len(header) + body_length, len(header)) + header]
    parts.extend(body)
    return parts
