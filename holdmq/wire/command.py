"""The command: the msgpack header of every frame.

::

    [code, language, version, opaque, flag, remark, ext_fields]

`code` is a `RequestCode` in a request and an `errors.Code` in a response. A request and its
response share `opaque`. `flag` bit 0 = response, bit 1 = one-way (no response is sent).
`ext_fields` is the map of a typed header (holdmq.wire.headers).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from holdmq.errors import WireError
from holdmq.wire.untrusted import PEER_LIMITS, UnpackLimits, unpack

RESPONSE: Final = 1
ONE_WAY: Final = 2
LANGUAGE: Final = "python"
VERSION: Final = 1


@dataclass(slots=True)
class Command:
    """One request or response, without its body."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str = ""
    ext_fields: dict[str, Any] = field(default_factory=dict)
    language: str = LANGUAGE
    version: int = VERSION

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY)

    def encode(self) -> bytes:
        """Return the header as msgpack bytes."""
        packed: bytes = msgpack.packb(
            (self.code, self.language, self.version, self.opaque, self.flag, self.remark, self.ext_fields)
        )
        return packed


def decode_command(data: bytes | memoryview, limits: UnpackLimits = PEER_LIMITS) -> Command:
    """Read a header. WireError if it is no command or over `limits`; items after the seventh are ignored."""
    fields = unpack(data, "the frame's header", limits)
    if not isinstance(fields, list) or len(fields) < 7:
        raise WireError("the frame's header is not a command of seven fields")
    code, language, version, opaque, flag, remark, ext_fields = fields if len(fields) == 7 else fields[:7]
    if not (
        isinstance(code, int)
        and isinstance(language, str)
        and isinstance(version, int)
        and isinstance(opaque, int)
        and isinstance(flag, int)
        and isinstance(remark, str)
        and isinstance(ext_fields, dict)
    ):
        raise WireError("a field of the command header has the wrong type")
    return Command(code, opaque, flag, remark, ext_fields, language, version)
