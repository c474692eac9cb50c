"""Typed headers of consumer groups: membership, leases on queues, and the groups' settings.

A group's members are connections: who closes his is no member any more. A member of a
`clustering` group consumes a queue only under the broker's lease on (group, queue): each grant
has a generation, and pulls and reports of an older one are refused with GROUP_FENCED. A lease
ends when it is released, when its connection closes, or when it was not renewed for 20 s.
Source: broker.md, Three ways to consume.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

CLUSTERING: Final = "clustering"
BROADCAST: Final = "broadcast"
SHARED: Final = "shared"
MODES: Final = frozenset({CLUSTERING, BROADCAST, SHARED})


class GroupSubscription(NamedTuple):
    """What a member reads of a topic; `filter`: "*" = all, else tags joined by "||", or an MQTT filter."""

    topic: str
    filter: str


@header
class GroupJoinRequest(Header):
    """Become a member, or change what this member subscribes to; a repeat is a renewal.

    `mode` is one of MODES; all members of a group have the same (MODE_CONFLICT). `strategy` is shown to
    people only: members compute their allocation themselves, all with the same strategy. `room`: the machine
    room in which the member is, told to all members; "" = it says none.
    """

    group: str
    mode: str
    subscriptions: list[GroupSubscription]
    strategy: str = ""
    room: str = ""


@header
class GroupState(Header):
    """Answer to GROUP_JOIN, and what GROUP_CHANGED (one-way, broker → member) carries.

    `version` rises with every change of `members` (client ids, sorted; of the group's members that
    subscribe here), when a wanted queue became free, and when the group was paused or resumed. `rooms`: the
    machine rooms of those members that said theirs, by client id.
    """

    group: str
    version: int
    members: list[str]
    is_paused: bool = False
    retry_max_times: int = 16
    freed: bool = False
    rooms: dict[str, str] = field(default_factory=dict)


@header
class GroupRequest(Header):
    """Names a group: GROUP_LEAVE, GROUP_MEMBERS, GROUP_DELETE."""

    group: str


class MemberRow(NamedTuple):
    """One member as this broker knows it; `queues` counts the leases that it holds here.

    `room`: its machine room, "" = it says none.
    """

    client_id: str
    address: str
    language: str
    software: str
    mode: str
    strategy: str
    joined_ms: int
    queues: int
    subscriptions: list[GroupSubscription]
    room: str = ""


@header
class GroupMembersResponse(Header):
    """List the members of a group, a MemberRow each."""

    members: list[MemberRow]


class WantedQueue(NamedTuple):
    """A queue to lease or to keep leased. `generation` is that of the lease in hand, 0 = none."""

    topic: str
    queue_id: int
    generation: int


class LeasedQueue(NamedTuple):
    """`generation` 0 = not granted; `holder` then is the client id that has the lease ("" = nobody:
    `status`, an errors.Code, says why). `offset` is the saved offset, -1 = the group has none yet.
    """

    topic: str
    queue_id: int
    status: int
    generation: int
    offset: int
    log_epoch: int
    holder: str


@header
class QueueLeaseRequest(Header):
    """Ask for leases, and renew those in hand. `version` is that of the GroupState acted upon."""

    group: str
    queues: list[WantedQueue]
    version: int = 0


@header
class QueueLeaseResponse(Header):
    """Rows are LeasedQueue, in the order of the request; `lease_ms` is how long they hold unrenewed."""

    queues: list[LeasedQueue]
    lease_ms: int


class ReleasedQueue(NamedTuple):
    """A lease given back; `offset` is the next one to consume, -1 = report nothing."""

    topic: str
    queue_id: int
    generation: int
    offset: int
    log_epoch: int


@header
class QueueReleaseRequest(Header):
    """Report and give back leases in one step. Leases of another generation are left alone."""

    group: str
    queues: list[ReleasedQueue]


class GroupRow(NamedTuple):
    """A group's settings (subscriptionGroup.json) and how many members it has here.

    `delay_levels_ms` are the group's own retry delays, [] = the broker's table. `mode` is "" while nobody
    ever joined.
    """

    group: str
    mode: str
    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    retry_queue_nums: int
    retry_max_times: int
    broker_id: int
    which_broker_when_consume_slowly: int
    is_paused: bool
    delay_levels_ms: list[int]
    members: int


@header
class GroupListRequest(Header):
    """List groups: `names`, `search` and `column` (a field of GroupRow) as in TopicListRequest."""

    names: list[str] | None = None
    search: str = ""
    column: str = ""


@header
class GroupListResponse(Header):
    """Rows are GroupRow, by name; for a `column` there are `names` and `values` as in TopicListResponse."""

    groups: list[GroupRow]
    names: list[str] | None = None
    values: list[int | str] | None = None


@header
class GroupUpdateRequest(Header):
    """Create a group or change its settings; None leaves a setting as it is (or at its default).

    Answered with GroupListResponse of one row, durable in subscriptionGroup.json.
    """

    group: str
    consume_enable: bool | None = None
    consume_from_min_enable: bool | None = None
    consume_broadcast_enable: bool | None = None
    retry_queue_nums: int | None = None
    retry_max_times: int | None = None
    broker_id: int | None = None
    which_broker_when_consume_slowly: int | None = None
    delay_levels_ms: list[int] | None = None


@header
class GroupPauseRequest(Header):
    """Pause (`pause` True) or resume a group: while paused it keeps its offsets and gets nothing."""

    group: str
    pause: bool
