"""STATISTICS and BACKLOG: what was counted, and what is left to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from broker.alerts.backlog import Backlogs
from broker.alerts.core.backlog_readings import TopicBacklog
from broker.kernel.core.windows import Recent, Windows
from broker.kernel.request_family import RequestFamily
from broker.kernel.statistics import Statistics
from broker.kernel.statistics_ticks import StatisticsTicks
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.statistics_headers import (
    BacklogRequest,
    BacklogResponse,
    BacklogRow,
    CountsRow,
    GroupTopicRow,
    SegmentRow,
    StatisticsRequest,
    StatisticsResponse,
)

ROWS_MAX: Final = 10_000
"""Rows of one answer, each some 300 bytes: it fits any frame."""


class BusySegment(Protocol):
    """What is known of a busy segment, per second."""

    @property
    def start(self) -> int: ...
    @property
    def read_bytes(self) -> float: ...
    @property
    def written_bytes(self) -> float: ...
    @property
    def hits(self) -> float: ...


class StatisticsRequests(RequestFamily):
    """Answers what was counted, since `start` in windows; `segments` says which parts of the log are busy."""

    def __init__(
        self,
        statistics: Statistics,
        backlogs: Backlogs,
        topics: TopicTable,
        segments: Callable[[], Sequence[BusySegment]],
    ) -> None:
        self._segments = segments
        self._ticks = StatisticsTicks(statistics)
        self._statistics = statistics
        self._backlogs = backlogs
        self._topics = topics

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.STATISTICS: self.statistics, RequestCode.BACKLOG: self.backlog}

    def numbers(self) -> Mapping[str, int]:
        return {
            **self._statistics.numbers(),
            **self._backlogs.numbers(),
            "statistics_ticks_total": self._ticks.ticks,
        }

    def start(self) -> None:
        """Tick once a second from now on."""
        self._ticks.start()

    def release_all(self) -> None:
        self._ticks.stop()

    def topic_changed(self, before: Topic | None, after: Topic | None) -> None:
        """The counts of a topic go with it."""
        if before is not None and after is None:
            self._statistics.forget_topic(before.name, before.queues_in_store)

    def group_deleted(self, group: str) -> None:
        """The counts of a group go with it."""
        self._statistics.forget_group(group)

    # Requests

    def statistics(self, request: Request) -> None:
        """Answer STATISTICS with the windows that were asked for."""
        header = request.header(StatisticsRequest)
        rows_max = _rows_max(header.rows_max, header.topics, header.groups)
        counted = self._statistics
        topics = _names(header.topics, lambda: counted.topics.busiest(rows_max))
        groups = _names(header.groups, lambda: counted.groups.busiest(rows_max))
        queues = self._queues_of(topics) if header.queues else []
        request.reply(
            StatisticsResponse(
                counted.broker.covered_ms(),
                [_row("", -1, counted.broker.recent(""))],
                [_row(topic, -1, counted.topics.recent(topic)) for topic in topics],
                [_row(group, -1, counted.groups.recent(group)) for group in groups],
                [_row(*queue, counted.queues.recent(queue)) for queue in queues],
                [
                    SegmentRow(s.start, int(s.read_bytes), int(s.written_bytes), int(s.hits))
                    for s in self._segments()
                ],
                self._group_topics_of(groups) if header.group_topics else [],
                _busiest(counted.clients, rows_max) if header.sources else [],
                _busiest(counted.users, rows_max) if header.sources else [],
            )
        )

    def backlog(self, request: Request) -> None:
        """BACKLOG: answered when the ages are known."""
        header = request.header(BacklogRequest)
        rows_max = _rows_max(header.rows_max, header.groups)
        names = self._backlogs.groups() if header.groups is None else [str(name) for name in header.groups]

        def measured(found: list[TopicBacklog] | HoldMQError) -> None:
            if isinstance(found, HoldMQError):
                request.refuse(found)
                return
            found.sort(key=lambda one: (-one.messages, one.oldest_ms, one.group, one.topic))
            listed = [BacklogRow(*one) for one in found[:rows_max]]
            now_ms = time.time_ns() // 1_000_000
            request.reply(BacklogResponse(listed, now_ms, len(found) - len(listed)))

        self._backlogs.measure(names, measured)

    def _group_topics_of(self, groups: list[str]) -> list[GroupTopicRow]:
        counted = self._statistics
        keys = counted.topics_of(frozenset(groups))
        if len(keys) > ROWS_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"{len(keys)} topics of {len(groups)} groups; {ROWS_MAX} are possible",
            )
        return [GroupTopicRow(*key, *counted.group_topics.recent(key)) for key in keys]

    def _queues_of(self, names: list[str]) -> list[tuple[str, int]]:
        topics = [topic for name in names if (topic := self._topics.get(name)) is not None]
        queues = [(topic.name, queue_id) for topic in topics for queue_id in range(topic.read_queues)]
        if len(queues) > ROWS_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"{len(queues)} queues of {len(topics)} topics; {ROWS_MAX} are possible"
            )
        return queues


def _row(name: str, queue_id: int, recent: Recent) -> CountsRow:
    return CountsRow(name, queue_id, *recent)


def _busiest(sources: Windows[str], count: int) -> list[CountsRow]:
    return [_row(name, -1, sources.recent(name)) for name in sources.busiest(count)]


def _names(given: list[str] | None, others: Callable[[], Iterable[str]]) -> list[str]:
    return list(others()) if given is None else [str(name) for name in given]


def _rows_max(wanted: int, *named: list[str] | None) -> int:
    if wanted < 1 or max((len(names) for names in named if names is not None), default=0) > ROWS_MAX:
        raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {ROWS_MAX} rows are possible")
    return min(wanted, ROWS_MAX)
