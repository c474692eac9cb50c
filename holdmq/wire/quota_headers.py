"""Typed headers of quotas: what a tenant, a user or an access key may use of the whole cluster.

Every broker keeps all of them as rows of `%QUOTA`, and pushes each change to the gateway workers connected to
it; one that connects asks for all. Workers tell brokers what users have sent, and hear who has to wait.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdmq.wire.header import Header, header

QUOTA_TOPIC: Final = "%QUOTA"
QUOTA_QUEUES: Final = 1
"""Queues at each broker, for ever the same."""
TENANT: Final = "tenant"
USER: Final = "user"
KEY: Final = "key"
KINDS: Final = (TENANT, USER, KEY)
EVERYBODY: Final = "*"
"""The name of the quota that each of a kind has who has none of his own."""
LIST_MAX: Final = 1_000
"""Quotas in one answer, and principals in one report of what was used."""


class QuotaRow(NamedTuple):
    """The limits of `kind:name`, of the whole cluster; 0 = none of that.

    `publish_rate` in messages per second, `publish_bytes_rate` in bytes per second, the others are numbers.
    `by` set it at `changed_ms` (ms since the epoch).
    """

    kind: str
    name: str
    publish_rate: int = 0
    publish_bytes_rate: int = 0
    topics: int = 0
    sessions: int = 0
    connections: int = 0
    kept_bytes: int = 0
    by: str = ""
    changed_ms: int = 0


class QuotaUse(NamedTuple):
    """What a principal (`kind:name`) uses at one broker.

    Messages and bytes per second are of the last seconds, `connections` those of MQTT clients and of an
    access key; `waited` counts what was told to wait, `refused` what was refused, since the broker's start.
    """

    principal: str
    messages_per_s: int = 0
    bytes_per_s: int = 0
    topics: int = 0
    sessions: int = 0
    connections: int = 0
    kept_bytes: int = 0
    waited: int = 0
    refused: int = 0


class QuotaSpent(NamedTuple):
    """What clients of a principal have sent since the last report; each broker counts its part of it."""

    principal: str
    messages: int
    size_bytes: int


class QuotaOwed(NamedTuple):
    """A principal whose clients must not be read for so long."""

    principal: str
    owed_ms: int


@header
class QuotaSetRequest(Header):
    """Have a quota from now on (a row of QuotaRow; the broker sets `changed_ms`); one of before is replaced.

    Answered when the log has it.
    """

    quota: list[Any]


@header
class QuotaSetResponse(Header):
    """The quota as it is in force."""

    quota: list[Any]


@header
class QuotaRemoveRequest(Header):
    """Take a quota away; answered when the log has that."""

    kind: str
    name: str
    by: str = ""


@header
class QuotaRemoveResponse(Header):
    """Whether this broker had it."""

    was_present: bool


@header
class QuotaListRequest(Header):
    """The quotas of this broker behind the key `after` ("" = from the first), in their order."""

    after: str = ""
    max_count: int = LIST_MAX


@header
class QuotaListResponse(Header):
    """Rows of QuotaRow, and of QuotaUse for those that are used; `next_after` None = that was all.

    `used` names principals whose quota is among `quotas`, or who have the one of everybody of their kind.
    `parts` is into how many parts this broker divides what the whole cluster shares.
    """

    quotas: list[Any]
    used: list[Any]
    parts: int
    next_after: str | None


@header
class QuotaChangedRequest(Header):
    """Pushed to gateways: rows of QuotaRow that were set, and [kind, name] of those that were taken away."""

    made: list[Any]
    removed: list[Any]


@header
class QuotaSpendRequest(Header):
    """A gateway worker says what principals have sent: rows of QuotaSpent."""

    spent: list[Any]


@header
class QuotaSpendResponse(Header):
    """Rows of QuotaOwed: of these principals nobody may be read for a while."""

    owed: list[Any]
