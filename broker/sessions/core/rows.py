"""How a session lies in the table `%SESSION`. Pure.

::

    key                                  value
    m client id                          msgpack [format, then the fields of Meta]
    s client id                          the state, as its gateway wrote it
    f client id U+0000 topic filter      the filter's options, as its gateway wrote them
    w client id U+0000 epoch, in hex     the will of a connection that may not have ended yet

No client id holds U+0000 [MQTT-1.5.4-2]. `ended_ms` 0: it is connected, or its broker ended before it knew
otherwise.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

from holdmq.errors import RecordError, WireError
from holdmq.wire.session_headers import NEVER_EXPIRES_S
from holdmq.wire.untrusted import unpack

FORMAT: Final = 1
META: Final = "m"
STATE: Final = "s"
FILTER: Final = "f"
WILL: Final = "w"

RowChange = tuple[str, str, bytes | None]
"""(client id, row's key, value); None = the row goes."""


class Meta(NamedTuple):
    """What the owner knows of a session; times in ms since the epoch."""

    epoch: int
    expiry_s: int
    principal: str
    uid: int
    created_ms: int
    ended_ms: int

    def encode(self) -> bytes:
        """As its row has it."""
        found: bytes = msgpack.packb((FORMAT, *self))
        return found

    def is_expired(self, now_ms: int, up_since_ms: int) -> bool:
        """Whether it is over, unless it is connected; one that never ended did so when its broker did."""
        if self.expiry_s == NEVER_EXPIRES_S:
            return False
        return (self.ended_ms or up_since_ms) + self.expiry_s * 1000 <= now_ms


def decode_meta(value: bytes) -> Meta:
    """The meta of a row; RecordError if it is none that this version knows."""
    try:
        fields = unpack(value, "a row of a session")
    except WireError as error:
        raise RecordError(str(error)) from None
    if not isinstance(fields, list) or len(fields) < 7 or fields[0] != FORMAT:
        raise RecordError("a row of a session has a format that this version does not know")
    numbers = (fields[1], fields[2], *fields[4:7])
    if not isinstance(fields[3], str) or not all(isinstance(number, int) for number in numbers):
        raise RecordError("a row of a session is malformed")
    return Meta(*fields[1:7])


class FoundSession(NamedTuple):
    """A session as its rows have it; `filters` are (topic filter, options)."""

    meta: Meta
    state: bytes
    filters: list[tuple[str, bytes]]


def meta_key(client_id: str) -> str:
    """The key of what the owner knows."""
    return META + client_id


def state_key(client_id: str) -> str:
    """The key of the state."""
    return STATE + client_id


def filter_key(client_id: str, topic_filter: str) -> str:
    """The key of a filter; with "" what the keys of all its filters begin with."""
    return f"{FILTER}{client_id}\0{topic_filter}"


def will_key(client_id: str, epoch: int) -> str:
    """The key of the will of a connection."""
    return f"{WILL}{client_id}\0{epoch:016x}"


def split_will_key(key: str) -> tuple[str, int]:
    """Client id and epoch of a will's key; RecordError if it is none."""
    client_id, _, epoch = key[len(WILL) :].rpartition("\0")
    try:
        return client_id, int(epoch, 16)
    except ValueError:
        raise RecordError(f"{key[:64]!r} is no key of a will") from None


def rows_of(client_id: str, found: FoundSession) -> list[RowChange]:
    """What takes all rows of a session away."""
    gone: list[RowChange] = [(client_id, filter_key(client_id, name), None) for name, _ in found.filters]
    return [*gone, (client_id, state_key(client_id), None), (client_id, meta_key(client_id), None)]
