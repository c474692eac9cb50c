"""What `Admin` asks about statistics, backlog and alarms, and how the answers of brokers are added up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import ClusterCalls
from holdmq.errors import HoldMQError, TransportError
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty
from holdmq.wire.statistics_headers import (
    AlarmListResponse,
    AlarmRow,
    BacklogRequest,
    BacklogResponse,
    BacklogRow,
    ChannelRow,
    CountsRow,
    GroupTopicRow,
    SegmentRow,
    StatisticsRequest,
    StatisticsResponse,
)

REPLAYED: Final = (8, 9)
REPLAYED_LATER: Final = (4, 5)
"""Columns of CountsRow's lists with messages and bytes replayed: those of hour and day have no latencies."""
BACK: Final = (10, 11, 12)
"""Columns with messages requeued, timed out, given back."""
LISTED_MAX: Final = 10_000
"""Rows that a broker tells of at most."""
BACKLOG_TIMEOUT_S: Final = 30.0
"""A broker may have to read the age of thousands of backlogs from disk."""


@dataclass(slots=True)
class StatisticsView:
    """What one broker counted; `covered_ms` as in StatisticsResponse."""

    covered_ms: list[int]
    broker: CountsRow
    topics: list[CountsRow]
    groups: list[CountsRow]
    queues: list[CountsRow]
    segments: list[SegmentRow]
    group_topics: list[GroupTopicRow]
    clients: list[CountsRow]
    users: list[CountsRow]


@dataclass(slots=True)
class BacklogView:
    """The backlogs at one broker, by its clock `now_ms`; `left_out` rows are not in it."""

    rows: list[BacklogRow]
    now_ms: int
    left_out: int


@dataclass(slots=True)
class AlarmsView:
    """The alarms that one broker has raised, where it tells of them, and those that are over: since when."""

    alarms: list[AlarmRow]
    channels: list[ChannelRow]
    over: list[tuple[AlarmRow, int]]


class TrafficRates(NamedTuple):
    """Holds what passes per second."""

    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float
    messages_replayed: float
    bytes_replayed: float


class CameBack(NamedTuple):
    """Counts messages that came back: to be delivered again, their time over, given back by consumers."""

    requeued: int
    timed_out: int
    given_back: int


@dataclass(slots=True)
class TrafficOf:
    """Rates of one topic, queue, group, client or access key over all brokers.

    `topic` is of a group's counts in one topic, else "". `back` counts since the brokers' starts,
    `back_minute` in the last minute. `put_ms` and `get_ms`: the mean time of a put and of a get in the last
    minute, None without any.
    """

    name: str
    queue_id: int
    second: TrafficRates
    minute: TrafficRates
    hour: TrafficRates
    day: TrafficRates
    put_ms: float | None
    get_ms: float | None
    topic: str
    back: CameBack
    back_minute: CameBack


@dataclass(slots=True)
class GroupBacklog:
    """What a group has yet to consume at all brokers; `age_ms` of the oldest message, 0 = nothing waits."""

    group: str
    mode: str
    messages: int
    age_ms: int
    topics: list[str]


class StatisticsCalls(ClusterCalls):
    """The part of `Admin` that is about what brokers count. Answers are by live broker, or its error."""

    async def statistics(
        self,
        topics: Collection[str] | None = None,
        groups: Collection[str] | None = None,
        *,
        queues: bool = False,
        group_topics: bool = False,
        sources: bool = False,
        rows_max: int = 100,
    ) -> dict[str, StatisticsView | HoldMQError]:
        """Counts of these topics and groups, None = the `rows_max` busiest; `queues`: of their queues too.

        `group_topics`: of each topic of the groups, too. `sources`: of the busiest clients and access keys.
        """
        # A tenant's busiest may be far behind others': brokers do not know that only its own are shown.
        asked = LISTED_MAX if self.tenant else rows_max

        def read(reply: Reply) -> StatisticsView:
            answer = reply.header(StatisticsResponse)
            return StatisticsView(
                answer.covered_ms,
                rows(CountsRow, answer.broker)[0],
                rows(CountsRow, answer.topics)[: None if topics is not None else rows_max],
                rows(CountsRow, answer.groups)[: None if groups is not None else rows_max],
                rows(CountsRow, answer.queues),
                rows(SegmentRow, answer.segments),
                rows(GroupTopicRow, answer.group_topics),
                rows(CountsRow, answer.clients)[:rows_max],
                rows(CountsRow, answer.users)[:rows_max],
            )

        request = StatisticsRequest(_listed(topics), _listed(groups), queues, group_topics, sources, asked)
        return await self._read_all(RequestCode.STATISTICS, request, read)

    async def backlog(
        self,
        groups: Collection[str] | None = None,
        rows_max: int = 1000,
        *,
        timeout_s: float = BACKLOG_TIMEOUT_S,
    ) -> dict[str, BacklogView | HoldMQError]:
        """What these groups, None = all, have yet to consume; the `rows_max` longest backlogs."""

        def read(reply: Reply) -> BacklogView:
            answer = reply.header(BacklogResponse)
            found = rows(BacklogRow, answer.backlog)
            if not self.tenant:
                return BacklogView(found, answer.now_ms, answer.left_out)
            # What the broker left out is others', too.
            return BacklogView(found[:rows_max], answer.now_ms, max(0, len(found) - rows_max))

        request = BacklogRequest(_listed(groups), LISTED_MAX if self.tenant else rows_max)
        return await self._read_all(RequestCode.BACKLOG, request, read, timeout_s)

    async def alarms(self) -> dict[str, AlarmsView | HoldMQError]:
        """The alarms that are raised, by broker, and those of registries by `registry HOST:PORT`.

        A registry that has raised none, nor has in a while, is left out. TransportError if no broker lives
        and no registry has raised any.
        """

        def read(reply: Reply) -> AlarmsView:
            answer = reply.header(AlarmListResponse)
            over = zip(rows(AlarmRow, answer.over), answer.over_ms, strict=True)
            return AlarmsView(rows(AlarmRow, answer.alarms), rows(ChannelRow, answer.channels), list(over))

        at_registries = {
            f"registry {address}": view
            for address, reply in (await self.routes.ask_registries(RequestCode.ALARM_LIST, Empty())).items()
            if (view := read(reply)).alarms or view.over
        }
        try:
            at_brokers = await self._read_all(RequestCode.ALARM_LIST, Empty(), read)
        except TransportError:
            if not at_registries:
                raise
            at_brokers = {}
        return {**at_brokers, **at_registries}


def traffic(
    views: Iterable[StatisticsView],
    pick: Callable[[StatisticsView], Iterable[CountsRow | GroupTopicRow]],
) -> list[TrafficOf]:
    """Add up the rows that `pick` takes of each broker's; the busiest of the last minute first."""
    found: dict[tuple[str, str, int], list[tuple[CountsRow | GroupTopicRow, list[int]]]] = {}
    for view in views:
        for row in pick(view):
            if isinstance(row, GroupTopicRow):
                key = (row.group, row.topic, -1)
            else:
                key = (row.name, "", row.queue_id)
            found.setdefault(key, []).append((row, view.covered_ms))
    added = [_traffic(*key, parts) for key, parts in found.items()]
    return sorted(
        added,
        key=lambda one: (
            -one.minute.messages_in - one.minute.messages_out, one.name, one.topic, one.queue_id
        ),
    )  # fmt: skip


def group_backlogs(views: Iterable[BacklogView]) -> list[GroupBacklog]:
    """Add up the backlogs of groups over topics and brokers; the longest first."""
    found: dict[str, GroupBacklog] = {}
    for view in views:
        for row in view.rows:
            group = found.setdefault(row.group, GroupBacklog(row.group, row.mode, 0, 0, []))
            group.mode = group.mode or row.mode
            group.messages += row.messages
            if row.oldest_ms:
                group.age_ms = max(group.age_ms, view.now_ms - row.oldest_ms)
            if row.topic not in group.topics:
                group.topics.append(row.topic)
    return sorted(found.values(), key=lambda group: (-group.messages, group.group))


def _traffic(
    name: str, topic: str, queue_id: int, parts: list[tuple[CountsRow | GroupTopicRow, list[int]]]
) -> TrafficOf:
    covered = [covered_ms for _, covered_ms in parts]
    counted = [row for row, _ in parts]
    puts, put_us, gets, get_us = (sum(row.minute[column] for row in counted) for column in range(4, 8))
    return TrafficOf(
        name,
        queue_id,
        _rates([row.second for row in counted], [ms[0] for ms in covered], REPLAYED),
        _rates([row.minute for row in counted], [ms[1] for ms in covered], REPLAYED),
        _rates([row.hour for row in counted], [ms[2] for ms in covered], REPLAYED_LATER),
        _rates([row.day for row in counted], [ms[3] for ms in covered], REPLAYED_LATER),
        put_us / puts / 1000 if puts else None,
        get_us / gets / 1000 if gets else None,
        topic,
        _came_back([row.total for row in counted]),
        _came_back([row.minute for row in counted]),
    )


def _came_back(counts: list[list[int]]) -> CameBack:
    return CameBack(*(sum(_at(counted, column) for counted in counts) for column in BACK))


def _at(counted: list[int], column: int) -> int:
    """One column; older brokers have fewer."""
    return counted[column] if column < len(counted) else 0


def _rates(counts: list[list[int]], covered_ms: list[int], replayed: tuple[int, int]) -> TrafficRates:
    """Rates of what each broker counted in as many ms as it says; `replayed`: columns of what was."""
    each = [
        [_at(counted, column) * 1000 / max(1, ms) for column in (0, 1, 2, 3, *replayed)]
        for counted, ms in zip(counts, covered_ms, strict=True)
    ]
    return TrafficRates(*(sum(column) for column in zip(*each, strict=True)))


def _listed(names: Collection[str] | None) -> list[str] | None:
    return None if names is None else list(names)
