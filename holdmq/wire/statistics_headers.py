"""Typed headers of what a broker counts: statistics in windows, backlog of groups, alarms.

Counts are sums, never rates: with the time that they are of (`covered_ms`), those of several brokers can be
added. Source: broker.md, Statistics and connections.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from holdmq.wire.header import Header, header


class CountsRow(NamedTuple):
    """Counts of a topic, queue, group, client or access key; `queue_id` -1 = it is no queue.

    Each list is messages in, bytes in, messages out, bytes out; `total` (since the broker's start),
    `second` and `minute` go on with puts, the µs that they took together, gets, the µs that they took
    together; then in all come messages and bytes replayed; `total`, `second` and `minute` end with messages
    requeued, timed out, given back. A put is a batch's part from its arrival to its confirmation, a get a
    read that found something. Out is what consumers pulled, replayed what replays and Spark read; gateways
    read the log, not topics. Requeued are messages in flight that are delivered again, timed out those whose
    time was over at their consumer, given back those that it sent back. An older broker's lists are shorter.
    """

    name: str
    queue_id: int
    total: list[int]
    second: list[int]
    minute: list[int]
    hour: list[int]
    day: list[int]


class GroupTopicRow(NamedTuple):
    """Counts of a group in one topic, as in CountsRow. Those of temporary groups are together, as `#tmp`."""

    group: str
    topic: str
    total: list[int]
    second: list[int]
    minute: list[int]
    hour: list[int]
    day: list[int]


class SegmentRow(NamedTuple):
    """What happens in the log's segment that begins at `start`, per second: bytes, and reads from memory."""

    start: int
    read_bytes: int
    written_bytes: int
    hits: int


@header
class StatisticsRequest(Header):
    """`topics`, `groups`: those to tell of; None = the `rows_max` that were busiest in the last minute.

    `queues`: the queues of these topics too; `group_topics`: the topics of these groups, 10,000 rows at
    most; `sources`: the `rows_max` clients and as many access keys that sent and got most.
    """

    topics: list[str] | None = None
    groups: list[str] | None = None
    queues: bool = False
    group_topics: bool = False
    sources: bool = False
    rows_max: int = 100


@header
class StatisticsResponse(Header):
    """Rows are CountsRow, SegmentRow and GroupTopicRow; `broker` is one CountsRow of everything together.

    `covered_ms`: of how many ms the counts of second, minute, hour and day are: less after a start, and the
    longer windows reach back by whole slots (5 s, 5 minutes, an hour). `put_us` and `get_us` of the broker's
    counts are sums over queues.
    """

    covered_ms: list[int]
    broker: list[CountsRow]
    topics: list[CountsRow]
    groups: list[CountsRow]
    queues: list[CountsRow] = field(default_factory=list)
    segments: list[SegmentRow] = field(default_factory=list)
    group_topics: list[GroupTopicRow] = field(default_factory=list)
    clients: list[CountsRow] = field(default_factory=list)
    users: list[CountsRow] = field(default_factory=list)


class BacklogRow(NamedTuple):
    """What a group has yet to consume of a topic at this broker.

    `messages` wait or are in flight, in `queues` queues that the group has begun with; `oldest_ms` is the
    store time of the oldest of them, 0 = there is none, or it is not known yet.
    """

    group: str
    mode: str
    topic: str
    messages: int
    oldest_ms: int
    queues: int


@header
class BacklogRequest(Header):
    """`groups` None = all, of which the `rows_max` rows with most messages are answered."""

    groups: list[str] | None = None
    rows_max: int = 1000


@header
class BacklogResponse(Header):
    """Rows are BacklogRow, most messages first; `now_ms` is the broker's clock, to count ages by.

    `left_out`: rows beyond `rows_max`.
    """

    backlog: list[BacklogRow]
    now_ms: int
    left_out: int = 0


class AlarmRow(NamedTuple):
    """An alarm that is raised. `kind`: backlog_messages, backlog_age, and the same with topic_ and total_
    before it, dead_letters, log, lost_records, shared_window; of a leader with copies replica_lag,
    copies_missing, one_copy_left.

    `name` is the group, topic, queue, replica or broker that it is about; `value` now and `peak` since it was
    raised, in the unit of `threshold` (messages, s, or 1 for what is or is not). `is_told`: a notice of it
    was sent.
    """

    kind: str
    name: str
    since_ms: int
    value: int
    threshold: int
    peak: int
    text: str
    is_told: bool


class ChannelRow(NamedTuple):
    """A way on which notices go (mail, webhook): counts since the start, and the last error ("" = none)."""

    channel: str
    sent: int
    failed: int
    dropped: int
    waiting: int
    last_error: str


@header
class AlarmListResponse(Header):
    """Rows are AlarmRow, the longest raised first, and ChannelRow.

    `over`: AlarmRow of those that ended since the broker's start, the newest last; `over_ms`: when.
    """

    alarms: list[AlarmRow]
    channels: list[ChannelRow]
    over: list[AlarmRow] = field(default_factory=list)
    over_ms: list[int] = field(default_factory=list)
