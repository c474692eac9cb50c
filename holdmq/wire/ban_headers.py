"""Typed headers of bans that hold in the whole fleet, and of those that gateways have made by themselves.

A broker keeps its bans as rows of `%BAN`, and pushes every change to the gateway workers connected to it;
one that connects asks for all of them. What any broker has is in force.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final, NamedTuple

from holdmq.wire.header import Header, header

BAN_TOPIC: Final = "%BAN"
BAN_QUEUES: Final = 1
"""Queues at each broker, for ever the same."""
CLIENT_ID: Final = "client_id"
USER: Final = "user"
ADDRESS: Final = "address"
PATTERN: Final = "pattern"
KINDS: Final = (CLIENT_ID, USER, ADDRESS, PATTERN)
LIST_MAX: Final = 1_000
"""Bans in one answer."""


class BanRow(NamedTuple):
    """A ban of all clients whose `kind` is `value`; times in ms since the epoch.

    `kind`: CLIENT_ID (a whole client id), USER (the name of who was authenticated), ADDRESS (an address or a
    network as 10.0.0.0/8), PATTERN (client ids, with * and ?, `holdmq.names.patterns`). `until_ms` 0 = for
    ever. `by` made it, for the `reason`, which clients are not told.
    """

    kind: str
    value: str
    reason: str = ""
    by: str = ""
    made_ms: int = 0
    until_ms: int = 0


@header
class BanAddRequest(Header):
    """Ban from now on (a row of BanRow; the broker sets `made_ms`); a ban of the same is replaced.

    Answered when the log has it.
    """

    ban: list[Any]


@header
class BanAddResponse(Header):
    """The ban as it is in force."""

    ban: list[Any]


@header
class BanRemoveRequest(Header):
    """Lift a ban; answered when the log has that."""

    kind: str
    value: str
    by: str = ""


@header
class BanRemoveResponse(Header):
    """Whether this broker had it."""

    was_present: bool


@header
class BanListRequest(Header):
    """The bans of this broker behind the key `after` ("" = from the first), in their order."""

    after: str = ""
    max_count: int = LIST_MAX


@header
class BanListResponse(Header):
    """Rows of BanRow; `next_after` None = that was all."""

    bans: list[Any]
    next_after: str | None


@header
class BanChangedRequest(Header):
    """Pushed to gateways: rows of BanRow that were made, and [kind, value] of those that were lifted."""

    made: list[Any]
    lifted: list[Any]


class FlappingRow(NamedTuple):
    """A ban that a gateway has made by itself, as a client connected too often: until `left_s` from now."""

    gateway: str
    principal: str
    address: str
    connects: int
    left_s: int


@header
class FlappingListRequest(Header):
    """Ask for the first `max_count` bans that gateways have made, at workers that are not `besides`."""

    max_count: int = LIST_MAX
    besides: list[str] = field(default_factory=list)


@header
class FlappingListResponse(Header):
    """Rows of FlappingRow; workers as in ClientListResponse."""

    bans: list[Any]
    workers: list[str]
    silent: list[str]
