"""Typed headers of persistent MQTT sessions, between gateways and the owner broker of a client id.

The owner is chosen by `session_owner` among the brokers that have `%SESSION`; there a client id has one of
SESSION_QUEUES queues. A session that is open has an *epoch*: every CONNECT raises it, and what an older one
writes is refused. Epochs of one client id rise over restarts of the owner. Source: mqtt.md, Sessions are
cursors.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgpack

from holdmq.errors import WireError
from holdmq.names.topics import queue_of_key
from holdmq.wire.header import Header, header
from holdmq.wire.untrusted import unpack

SESSION_TOPIC: Final = "%SESSION"
SESSION_QUEUES: Final = 64
"""Queues at each broker, for ever the same."""
OPENINGS_MAX: Final = 1_000
"""Sessions that one SESSION_OPEN names."""
CHANGES_MAX: Final = 10_000
"""Changes that one SESSION_WRITE carries."""
NEVER_EXPIRES_S: Final = 0xFFFFFFFF

PUT_STATE: Final = "state"
PUT_FILTER: Final = "filter"
DROP_FILTER: Final = "unfilter"
END: Final = "end"
WILL_DONE: Final = "will"
KINDS: Final = frozenset((PUT_STATE, PUT_FILTER, DROP_FILTER, END, WILL_DONE))


def session_owner(client_id: str, brokers: Collection[str]) -> str:
    """The broker that keeps the session of a client id; `brokers` has at least one name."""
    if len(brokers) == 1:
        return next(iter(brokers))
    return queue_of_key(client_id, [(broker, 0) for broker in brokers])[0]


class Content(NamedTuple):
    """What a session has: its state (empty: none was written yet), and (topic filter, options)."""

    state: bytes
    filters: list[tuple[str, bytes]]

    def encode(self) -> bytes:
        """As bodies carry it."""
        packed: bytes = msgpack.packb((self.state, self.filters))
        return packed


def decode_content(body: bytes | memoryview) -> Content:
    """What a body carries; WireError if it is none."""
    found = unpack(body, "a session's content")
    is_pair = isinstance(found, list) and len(found) >= 2
    if not is_pair or not isinstance(found[0], bytes) or not isinstance(found[1], list):
        raise WireError("a session's content is malformed")
    filters = [tuple(pair) for pair in found[1] if isinstance(pair, list) and len(pair) == 2]
    if not all(isinstance(name, str) and isinstance(options, bytes) for name, options in filters):
        raise WireError("a filter of a session is malformed")
    return Content(found[0], [(name, options) for name, options in filters])


class SessionOpening(NamedTuple):
    """A client that connects, or with `epoch` > 0 one that goes on after its owner was away.

    `is_clean`: what the session had is dropped first. `expiry_s` counts from its disconnect; 0 = it ends
    there, and is not written down. `will` is the connection's (`holdmq.wire.session_will`), b"" = none; of
    one that goes on HAS_WILL, if the owner has it. `owns_id`: the client id is this principal's by name, so
    that a session that somebody else has with it is dropped, and not the client refused (NOT_PERMITTED).
    """

    client_id: str
    is_clean: bool
    expiry_s: int
    principal: str
    epoch: int
    will: bytes = b""
    owns_id: bool = False


class SessionOpened(NamedTuple):
    """The answer for one opening: `code` is OK or why not, with a sentence in `reason`.

    `is_present`: there was a session, and `length_bytes` of the body are its content (`decode_content`); -1:
    the answer was full, and SESSION_SHOW has it. `uid` is the session's own number, the same until it is
    dropped.
    """

    code: int
    reason: str
    epoch: int
    uid: int
    is_present: bool
    length_bytes: int


class SessionChange(NamedTuple):
    """What becomes of an open session; `kind` is one of KINDS.

    PUT_STATE: `value` is its state. PUT_FILTER: `value` are the options of the topic filter `name`;
    DROP_FILTER takes it away. END: it is disconnected and expires in `expiry_s`, 0 = now; a `value` that is
    not empty is its state, and `name` says what becomes of its will (`holdmq.wire.session_will`).
    WILL_DONE: the log has the will of the connection with this epoch, or never will; anybody may say so.
    """

    client_id: str
    epoch: int
    kind: str
    name: str
    value: bytes
    expiry_s: int


class SessionRow(NamedTuple):
    """A session as people are shown it; times in ms since the epoch, `ended_ms` 0 = it is connected.

    `owner` is the gateway that it is connected to, "" = none; `is_stored`: it is written down.
    """

    client_id: str
    principal: str
    epoch: int
    expiry_s: int
    created_ms: int
    ended_ms: int
    owner: str
    is_stored: bool


@header
class SessionOpenRequest(Header):
    """1 to OPENINGS_MAX rows of SessionOpening."""

    sessions: list[SessionOpening]


@header
class SessionOpenResponse(Header):
    """Rows of SessionOpened, in the order of the request, when all are decided and written down.

    Body: what the sessions have, in the order of the rows.
    """

    sessions: list[SessionOpened]


@header
class SessionWriteRequest(Header):
    """1 to CHANGES_MAX rows of SessionChange, done in their order."""

    changes: list[SessionChange]


@header
class SessionWriteResponse(Header):
    """The log has the changes, but for those at the indices `fenced`: their session has another epoch."""

    fenced: list[int]


@header
class SessionTakenRequest(Header):
    """Pushed by the owner: this session is opened elsewhere, or dropped, or kicked. Close it, then END it.

    After `wait_ms` its epoch is refused, unless it was kicked. `by_operator`: nobody else connected.
    """

    client_id: str
    epoch: int
    wait_ms: int
    by_operator: bool = False


class DueWill(NamedTuple):
    """A will that is due: of the connection with this epoch. `will` is as its gateway gave it."""

    client_id: str
    epoch: int
    will: bytes


@header
class SessionWillsRequest(Header):
    """Pushed by the owner: publish these (rows of DueWill), and tell by WILL_DONE.

    Another gateway may have been told before; who does not tell in time is not the last one that is.
    """

    wills: list[DueWill]


@header
class SessionListRequest(Header):
    """Sessions whose client id begins with `prefix`, behind the client id `after`, in their order.

    `only_open`: only those that are connected. A broker that does not know this answers with the others too.
    """

    prefix: str = ""
    after: str = ""
    max_count: int = 1_000
    only_open: bool = False


@header
class SessionListResponse(Header):
    """Rows of SessionRow; `next_after` None = that was all."""

    sessions: list[SessionRow]
    next_after: str | None


@header
class SessionShowRequest(Header):
    """Ask for one session and what it has."""

    client_id: str


@header
class SessionShowResponse(Header):
    """One row of SessionRow, none if there is no such session. Body: what it has (`decode_content`)."""

    sessions: list[SessionRow]


@header
class SessionDropRequest(Header):
    """Disconnect a client, and forget its session."""

    client_id: str


@header
class SessionDropResponse(Header):
    """Whether there was one."""

    was_present: bool


@header
class SessionKickRequest(Header):
    """Disconnect a client; its session stays as after any other end."""

    client_id: str


@header
class SessionKickResponse(Header):
    """Whether it was connected; if so, its gateway was told."""

    was_connected: bool


@header
class SessionRecordsRequest(Header):
    """The records at these log positions, which were learnt in the log epoch `log_epoch` or before."""

    log_epoch: int
    positions: list[int]


@header
class SessionRecordsResponse(Header):
    """Of the first `answered` positions (at least one) the records that are still there: the body."""

    answered: int
    records: int
