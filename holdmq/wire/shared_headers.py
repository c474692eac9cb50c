"""Typed headers of the `shared` mode: any member of a group gets any message, until one acknowledges it.

A member is opened on a connection and ends with it. What a SHARED_PULL hands out is invisible to others
until it is acknowledged, given back, or its time is over; a *receipt* names one delivery, a run of one
queue's messages, and the messages in it are named by their queue offsets. Source: broker.md, Three ways
to consume.
"""

from __future__ import annotations

from dataclasses import field
from typing import Final, NamedTuple

from holdmq.wire.group_headers import GroupSubscription
from holdmq.wire.header import Header, header

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class SharedStart(NamedTuple):
    """Where a group begins in a queue that it had never read here."""

    topic: str
    queue_id: int
    offset: int


@header
class SharedOpenRequest(Header):
    """Become a member of a shared group on this connection.

    All members have the same filter for a topic (MODE_CONFLICT). `ready_max`: messages in flight at this
    member at most, 1 to 65,536. `invisible_ms`: what a delivery has, 100 ms to 12 h. `start`: EARLIEST or
    LATEST, where the group begins in a topic that it never read; queues that a topic gains later are read
    from their beginning, and so is a topic that does not exist yet. `is_own_start`: a member said so;
    without, a topic may have its first group begin at the beginning. `begun`: topics that it has begun at
    other brokers, and which are new here: it reads them from their beginning.
    """

    group: str
    subscriptions: list[GroupSubscription]
    ready_max: int = 1024
    invisible_ms: int = 30_000
    start: str = LATEST
    is_own_start: bool = True
    begun: list[str] = field(default_factory=list)


@header
class SharedOpenResponse(Header):
    """`member_id` is valid on this connection; `started` (SharedStart) is durable."""

    member_id: int
    started: list[SharedStart] = field(default_factory=list)


@header
class SharedPullRequest(Header):
    """Ask for up to `messages_max` messages, held up to `hold_ms` when there are none.

    One at a time per member. `invisible_ms` 0 = the member's own.
    """

    member_id: int
    messages_max: int
    max_bytes: int
    hold_ms: int = 0
    invisible_ms: int = 0


class SharedDelivery(NamedTuple):
    """A run of one queue's messages, all with the same attempts: earlier deliveries that failed."""

    receipt: int
    topic: str
    queue_id: int
    attempts: int
    records: int
    length_bytes: int


@header
class SharedPullResponse(Header):
    """Rows are SharedDelivery; body: their records one after the other, with their queue offsets.

    `invisible_ms` counts from when the broker sent the answer.
    """

    deliveries: list[SharedDelivery]
    invisible_ms: int


class SharedRange(NamedTuple):
    """Messages of a delivery: those with offsets from `offset` on, so many."""

    receipt: int
    offset: int
    messages: int


@header
class SharedAckRequest(Header):
    """Done with these messages (SharedRange); answered when the log has it."""

    member_id: int
    ranges: list[SharedRange]


@header
class SharedSettleResponse(Header):
    """`refused` are the SharedRange rows of which something was not in flight here any more
    (RECEIPT_UNKNOWN); the rest of such a row was taken.
    """

    refused: list[SharedRange]


class SharedNack(NamedTuple):
    """Messages of a delivery that come again after `delay_ms`, 0 = at once."""

    receipt: int
    offset: int
    messages: int
    delay_ms: int


@header
class SharedNackRequest(Header):
    """Give messages back (SharedNack). `is_attempt` False: nobody tried them, attempts stay as they are."""

    member_id: int
    ranges: list[SharedNack]
    is_attempt: bool = True


@header
class SharedExtendRequest(Header):
    """Let these deliveries (SharedRange) end `invisible_ms` from now; shorter is possible too."""

    member_id: int
    ranges: list[SharedRange]
    invisible_ms: int


@header
class SharedCloseRequest(Header):
    """End a member: what is in flight at it comes again, its attempts as they are."""

    member_id: int


@header
class SharedStateRequest(Header):
    """How a group is doing here; "" = every group that is known."""

    group: str = ""


class SharedQueueRow(NamedTuple):
    """One queue of a group. Counts are of messages.

    `floor`: all below is done; `acknowledged`: done above it; `in_flight`: at members; `waiting`: given
    back, to be handed out again; `end_offset`: of the queue; `is_full`: no new message is handed out until
    the one at the floor is done, as `shared_window` offsets lie between.
    """

    group: str
    topic: str
    queue_id: int
    floor: int
    end_offset: int
    acknowledged: int
    in_flight: int
    waiting: int
    is_full: bool


class SharedMemberRow(NamedTuple):
    """One member; `is_parked`: a pull of it waits for messages."""

    group: str
    client_id: str
    address: str
    in_flight: int
    ready_max: int
    is_parked: bool


@header
class SharedStateResponse(Header):
    """Rows are SharedQueueRow and SharedMemberRow."""

    queues: list[SharedQueueRow]
    members: list[SharedMemberRow]
