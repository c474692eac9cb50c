"""Where a push consumer begins and how it says how far it is: at the brokers, or in a file of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import structlog

from holdmq.client.bounds import starts_of
from holdmq.client.cursors import Position
from holdmq.client.first_groups import FirstGroupClaims
from holdmq.client.lifecycle import StartAt
from holdmq.client.offset_store import OffsetStore
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.route import RouteTable
from holdmq.client.start_positions import StartPositions
from holdmq.errors import StorageError, TransportError
from holdmq.message import TopicQueue
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.offset_headers import (
    OffsetReport,
    OffsetReportRequest,
    OffsetReportResponse,
    OffsetResult,
)

TIMEOUT_S: Final = 5.0

log = structlog.get_logger("holdmq.client")

Queues = Mapping[TopicQueue, ProcessQueue]


class BrokerProgress:
    """Clustering: brokers keep the offsets; reports are one-way and only say what is new."""

    def __init__(self, routes: RouteTable, group: str, start: StartAt | None) -> None:
        self.failures = 0
        self._routes = routes
        self._group = group
        self._starts = StartPositions(routes, group, start)

    async def open(self) -> None:
        """Open nothing: the brokers have the positions."""

    def first_seen(self, topic: str) -> None:
        """Note that a subscription begins, and which brokers have its topic now."""
        self._starts.first_seen(topic)

    async def prepare(self, broker: str, topics: Iterable[str]) -> None:
        """Begin the topics at this broker, as `StartPositions.prepare` does."""
        await self._starts.prepare(broker, topics)

    async def report(self, queues: Queues) -> None:
        """Tell the brokers how far their queues are."""
        by_broker: dict[str, list[OffsetReport]] = {}
        for queue, process in queues.items():
            floor = process.floor
            if floor != process.reported and floor:
                process.reported = floor
                row = OffsetReport(queue.topic, queue.queue_id, process.generation, floor, process.log_epoch)
                by_broker.setdefault(queue.broker, []).append(row)
        for broker, reports in by_broker.items():
            try:
                connection = self._routes.link(broker).client.connection
            except TransportError:
                continue  # its leases are lost with it
            if connection is not None:
                connection.send_one_way(RequestCode.OFFSET_REPORT, OffsetReportRequest(self._group, reports))

    async def commit(self, queues: Queues, wait_for_disk: bool, timeout_s: float) -> set[TopicQueue]:
        """Tell the brokers how far their queues are, and come back when they know.

        Returns the queues that are other members' now.
        Raises TransportError or RemoteError: then nothing is known of that broker's queues.
        """
        by_broker: dict[str, list[OffsetReport]] = {}
        for queue, process in queues.items():
            if process.floor != process.committed and process.floor:
                row = OffsetReport(
                    queue.topic, queue.queue_id, process.generation, process.floor, process.log_epoch
                )
                by_broker.setdefault(queue.broker, []).append(row)

        async def tell(broker: str, reports: list[OffsetReport]) -> set[TopicQueue]:
            request = OffsetReportRequest(self._group, reports, wait_for_disk)
            reply = await self._routes.link(broker).client.call(RequestCode.OFFSET_REPORT, request, timeout_s)
            refused = {
                (row.topic, row.queue_id)
                for row in rows(OffsetResult, reply.header(OffsetReportResponse).refused)
            }
            lost: set[TopicQueue] = set()
            for report in reports:
                queue = TopicQueue(report.topic, broker, report.queue_id)
                process = queues.get(queue)
                if (report.topic, report.queue_id) in refused:
                    lost.add(queue)
                elif process is not None and process.generation == report.generation:
                    process.committed = process.reported = report.offset
            return lost

        found: set[TopicQueue] = set()
        for part in await asyncio.gather(*(tell(*one) for one in by_broker.items())):
            found |= part
        return found

    async def close(self, queues: Queues) -> None:
        """Leases that were given back carried the last report."""


class FileProgress:
    """Broadcast: positions are in an OffsetStore, which a thread writes."""

    def __init__(self, routes: RouteTable, group: str, start: StartAt | None, store: OffsetStore) -> None:
        self.failures = 0
        self._routes = routes
        self._group = group
        self._first = start
        self._firsts = FirstGroupClaims(routes, group)
        self._store = store
        self._positions: dict[TopicQueue, Position] = {}
        self._saved: dict[TopicQueue, Position] = {}
        self._begun: set[str] = set()
        self._brokers: dict[str, frozenset[str]] = {}
        self._is_open = False

    async def open(self) -> None:
        """Read the file. Raises UsageError, StorageError."""
        self._positions = await asyncio.to_thread(self._store.open)
        self._is_open = True
        self._saved = dict(self._positions)
        self._begun = {queue.topic for queue in self._positions}

    def first_seen(self, topic: str) -> None:
        """Note that a subscription begins, and which brokers have its topic now."""
        route = self._routes.get(topic)
        queues = () if route is None else route.read_queues
        self._brokers.setdefault(topic, frozenset(queue.broker for queue in queues))

    def position(self, queue: TopicQueue) -> Position:
        """Where to begin in a queue: what is new is read from its beginning."""
        return self._positions.get(queue, Position(0, 0))

    async def prepare(self, broker: str, topics: Iterable[str]) -> None:
        """Write down where a first start in these topics is. Raises RemoteError, TransportError,
        StorageError."""
        first = [t for t in topics if t not in self._begun and broker in self._brokers.get(t, ())]
        if not first:
            return
        claimed = await self._firsts.claim(first)
        own = first if self._first is not None else [topic for topic in first if topic not in claimed]
        start = self._first or "latest"
        if own and start != "earliest":
            queues = [q for t in own for q in self._queues_of(t) if q.broker == broker]
            starts = await starts_of(self._routes, queues, start, TIMEOUT_S)
            for queue, (log_epoch, offset) in starts.items():
                self._positions.setdefault(queue, Position(log_epoch, offset))
            await self._save()
        for topic in first:
            log.info("first start of a consumer in a topic", group=self._group, topic=topic, broker=broker,
                     start=str(start) if topic in own else "earliest",
                     path=str(self._store.path))  # fmt: skip

    async def report(self, queues: Queues) -> None:
        """Save what is new."""
        for queue, process in queues.items():
            self._positions[queue] = Position(process.log_epoch, process.floor)
        if self._positions == self._saved:
            return
        try:
            await self._save()
        except StorageError as error:
            self.failures += 1
            log.error("positions are not saved; they will be tried again", path=str(self._store.path),
                      reason=str(error))  # fmt: skip

    async def close(self, queues: Queues) -> None:
        """Save, and let go of the file."""
        if self._is_open:
            self._is_open = False
            await self.report(queues)
            await asyncio.to_thread(self._store.close)

    def _queues_of(self, topic: str) -> tuple[TopicQueue, ...]:
        route = self._routes.get(topic)
        return () if route is None else route.read_queues

    async def _save(self) -> None:
        positions = dict(self._positions)
        await asyncio.to_thread(self._store.save, positions)
        self._saved = positions
