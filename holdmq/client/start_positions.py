"""Where a group begins in queues for which it has no offset: said once, saved at the brokers, and logged.

A group's first start in a topic is at the end (`latest`) unless told otherwise: at the beginning, or at a
time; or unless the topic says that its first group begins at the beginning, and this is the first. What is
new to a group that has begun is read from its beginning: queues that were added, brokers that joined, topics
that were created while it waited for them. So where the first start is, is written down for all queues of the
topic before the first lease is asked for; from then on, a queue without an offset is a new one. The beginning
of a topic that was waited for is written down as well: a member that comes later would take its own start for
the group's first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from holdmq.client.begun_topics import SETTLE_S, BegunTopics
from holdmq.client.bounds import starts_of
from holdmq.client.first_groups import FirstGroupClaims
from holdmq.client.lifecycle import StartAt
from holdmq.client.route import RouteTable
from holdmq.message import TopicQueue
from holdmq.names.topics import is_temporary
from holdmq.wire.codes import RequestCode
from holdmq.wire.offset_headers import OffsetReport, OffsetReportRequest

TIMEOUT_S: Final = 5.0
SAVE_TIMEOUT_S: Final = 15.0
"""A saved offset waits until the log up to it is on disk."""

log = structlog.get_logger("holdmq.client")


class StartPositions:
    """Prepares the topics of one group, broker by broker.

    `first` is where its first start is, None = nobody said so.
    """

    def __init__(self, routes: RouteTable, group: str, first: StartAt | None) -> None:
        self._routes = routes
        self._group = group
        self._first = first
        self._firsts = FirstGroupClaims(routes, group)
        self._begun = BegunTopics(routes, group)
        self._beginning: set[str] = set()
        self._brokers: dict[str, frozenset[str]] = {}
        # One broker after the other: what this member begins at one must not look at another as
        # if the group had begun long ago.
        self._lock = asyncio.Lock()

    def first_seen(self, topic: str) -> None:
        """A subscription begins: brokers that have the topic now are those of a first start."""
        route = self._routes.get(topic)
        queues = () if route is None else route.read_queues
        self._brokers.setdefault(topic, frozenset(queue.broker for queue in queues))

    async def prepare(self, broker: str, topics: Iterable[str]) -> None:
        """Make sure that this broker knows where the group begins. Raises RemoteError, TransportError."""
        async with self._lock:
            every = sorted(topics)
            await self._prepare(broker, [t for t in every if broker in self._brokers.get(t, ())])
            await self._prepare_awaited(broker, [t for t in every if self._brokers.get(t) == frozenset()])

    async def _prepare(self, broker: str, wanted: list[str]) -> None:
        without = sorted(set(wanted) - await self._begun.at(broker, wanted, TIMEOUT_S))
        others = [topic for topic in without if topic not in self._beginning]
        elsewhere = await self._begun.elsewhere(broker, others)
        if elsewhere:
            await asyncio.sleep(SETTLE_S)
            begun = await self._begun.at(broker, elsewhere, TIMEOUT_S)
            for topic in sorted(elsewhere - begun):
                log.info("a group finds new queues of a topic; it reads them from their beginning",
                         group=self._group, topic=topic, broker=broker)  # fmt: skip
        first = [topic for topic in without if topic not in elsewhere]
        if not first:
            return
        # Who said where to begin is a topic's first group all the same.
        claimed = await self._firsts.claim(first)
        self._beginning.update(first)
        own = first if self._first is not None else [topic for topic in first if topic not in claimed]
        start = self._first or "latest"
        if own and start != "earliest":
            await self._begin(broker, own, start)
        from_beginning = [topic for topic in first if topic not in own]
        if from_beginning:
            await self._begin(broker, from_beginning, "earliest")
        for topic in first:
            log.info("first start of a group in a topic", group=self._group, topic=topic, broker=broker,
                     start=str(start) if topic in own else "earliest")  # fmt: skip

    async def _prepare_awaited(self, broker: str, wanted: list[str]) -> None:
        """Topics that nobody had when their subscription began."""
        without = sorted(set(wanted) - await self._begun.at(broker, wanted, TIMEOUT_S))
        if without:
            await self._firsts.claim(without)
            await self._begin(broker, without, "earliest")

    async def _begin(self, broker: str, topics: list[str], start: StartAt) -> None:
        """Write down where the group begins in these topics."""
        queues: list[TopicQueue] = []
        for topic in topics:
            route = self._routes.get(topic)
            queues += [q for q in (() if route is None else route.read_queues) if q.broker == broker]
        starts = await starts_of(self._routes, queues, start, TIMEOUT_S)
        reports = [
            OffsetReport(queue.topic, queue.queue_id, 0, offset, log_epoch)
            for queue, (log_epoch, offset) in sorted(starts.items())
        ]
        # On disk, or a crash of the broker would make what was sent meanwhile a thing of the past.
        kept = [report for report in reports if not is_temporary(report.topic)]
        if is_temporary(self._group):
            kept = []
        if len(kept) < len(reports):
            await self._report(broker, [report for report in reports if report not in kept], False)
        if kept:
            await self._report(broker, kept, True)

    async def _report(self, broker: str, reports: list[OffsetReport], wait_for_disk: bool) -> None:
        request = OffsetReportRequest(self._group, reports, wait_for_disk, only_first=True)
        await self._routes.link(broker).client.call(RequestCode.OFFSET_REPORT, request, SAVE_TIMEOUT_S)
