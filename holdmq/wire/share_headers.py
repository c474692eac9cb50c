"""Typed headers of MQTT shared subscriptions (`$share/<name>/<filter>`), between gateways and brokers.

Each broker keeps a group's part for its own log: a position, and what is at members. A gateway joins a
session to its group at every broker, under a number of its own choice that is valid on the connection, and
says how many messages it has room for (*credit*). Messages come as the answers of held SHARE_READs. A message
is the member's until it is settled, given back, or the member's connection ends. Source: mqtt.md, Shared.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

JOINS_MAX: Final = 1_000
"""Rows of one SHARE_JOIN or SHARE_LEAVE."""
SETTLED_MAX: Final = 100_000
"""Positions in one SHARE_SETTLE."""
AT_END: Final = -1
"""As a position: where the log ends when the broker takes the request."""


class ShareJoin(NamedTuple):
    """A session that is connected becomes a member of its group, or says so again with other options.

    `name` is the whole `$share/<name>/<filter>`; `uid` the session's own number: another one of the same
    client is another session, and ends the older. `expiry_s`: how long it stays after its connection. A group
    that is new here begins at `position` of `log_epoch`, or AT_END. `planned` are log positions of QoS 2
    messages that the session's row has, and of all that it has settled; `held` those at the client that are
    not settled. What the broker thinks that the session has with QoS 2, and is in neither, is free.
    """

    member_id: int
    name: str
    client_id: str
    uid: int
    expiry_s: int
    qos: int
    log_epoch: int
    position: int
    planned: list[int]
    held: list[int]


class ShareJoined(NamedTuple):
    """The answer for one row: OK, or why not."""

    code: int
    reason: str


@header
class ShareJoinRequest(Header):
    """1 to JOINS_MAX rows of ShareJoin."""

    joins: list[ShareJoin]


@header
class ShareJoinResponse(Header):
    """Rows of ShareJoined, in order, when the log has them."""

    joined: list[ShareJoined]


class ShareLeave(NamedTuple):
    """A client's session is no member any more, unless it has the number `keep_uid` (0 = whichever)."""

    name: str
    client_id: str
    keep_uid: int


@header
class ShareLeaveRequest(Header):
    """1 to JOINS_MAX rows of ShareLeave; answered when the log has them."""

    leaves: list[ShareLeave]


class SharePositions(NamedTuple):
    """Messages of one member, by their log positions."""

    member_id: int
    positions: list[int]


class ShareCredit(NamedTuple):
    """A member has room for so many messages more."""

    member_id: int
    messages: int


class ShareOffline(NamedTuple):
    """A member's connection ended: its session lasts for `expiry_s`, 0 = it is over.

    `begun` are positions of QoS 2 messages that it has; others, which may be on their way to it, are free.
    """

    member_id: int
    expiry_s: int
    begun: list[int]


@header
class ShareSettleRequest(Header):
    """Done in this order: `done` and `back` (SharePositions) are settled or for others, `offline`
    (ShareOffline), `credits` (ShareCredit). What is not known any more changes nothing. Answered when the log
    has what is done: until then it is said again as `planned` of a SHARE_JOIN.
    """

    done: list[SharePositions] = field(default_factory=list)
    back: list[SharePositions] = field(default_factory=list)
    offline: list[ShareOffline] = field(default_factory=list)
    credits: list[ShareCredit] = field(default_factory=list)


@header
class ShareReadRequest(Header):
    """Ask for messages of all members on this connection, up to about `credit_bytes`; held for `hold_ms`."""

    credit_bytes: int
    hold_ms: int


class ShareGiven(NamedTuple):
    """One member's messages in an answer; each was taken off its credit. QoS 0 ones are settled."""

    member_id: int
    records: int
    length_bytes: int


@header
class ShareReadResponse(Header):
    """Rows of ShareGiven; body: their records, in log order within a row."""

    given: list[ShareGiven]


@header
class ShareListRequest(Header):
    """Groups whose name (`$share/…`) begins with `prefix`, behind the name `after`, in their order."""

    prefix: str = ""
    after: str = ""
    max_count: int = 1_000


class ShareGroupRow(NamedTuple):
    """One group here. `sessions` hold it, of which `online` are connected; `in_flight` messages are at
    members, `returned` wait to be handed out again; `behind_bytes` of the log were not looked at yet.
    """

    name: str
    sessions: int
    online: int
    in_flight: int
    returned: int
    behind_bytes: int


@header
class ShareListResponse(Header):
    """Rows of ShareGroupRow; `next_after` None = that was all."""

    groups: list[ShareGroupRow]
    next_after: str | None
