"""The broker's requests: which code goes to which part, and what HELLO and status answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from broker.alerts.alarms import AlarmWatch
from broker.alerts.backlog import Backlogs
from broker.alerts.statistics_calls import StatisticsCalls
from broker.app.subscribers import (
    SHOWN_MAX,
    subscriptions,
)
from broker.groups.requests import Groups
from broker.kernel.core.windows import TRAFFIC
from broker.kernel.request_family import Part
from broker.kernel.statistics import Statistics
from broker.mqtt_shares.requests import ShareMode
from broker.produce.requests import Produce
from broker.reading.column_pulls import ColumnPulls
from broker.reading.pull import Pull
from broker.reading.queries import Queries
from broker.reading.reads import Reads
from broker.retained.requests import Retained
from broker.retry.copies import Copies
from broker.retry.dead_letters import DeadLetters
from broker.retry.moves import Moves
from broker.sessions.requests import SessionTable
from broker.shared_groups.requests import SharedMode
from broker.shared_groups.state import SharedRows
from broker.tables.requests import Tables
from broker.topics.requests import Topics
from holdmq.config.alarms import AlarmsSection
from holdmq.config.model import BrokerSection
from holdmq.record.origin import retry_topic
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest, Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.frame import FRAME_OVERHEAD_BYTES
from holdmq.wire.headers import (
    PROTOCOL_VERSION,
    BrokerStatusResponse,
    ConnectionListResponse,
    ConnectionRow,
    Empty,
    HeartbeatRequest,
    HelloRequest,
    HelloResponse,
    QueueBounds,
    QueueBoundsRequest,
    QueueBoundsResponse,
    TopicListRequest,
    TopicListResponse,
    TopicStats,
)
from storage.api.store import (
    Batch,
    MessageStore,
)


def _admitted(connection: Connection) -> dict[str, Any]:
    return {"principal": connection.grants.key.name} if connection.grants is not None else {}


def now_ms() -> int:
    """The wall clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class BrokerServer:
    """One broker over one store: everything that is asked of it by RPC."""

    def __init__(
        self,
        name: str,
        cluster: str,
        store: MessageStore,
        topics: Topics,
        record_max_bytes: int,
        groups: Groups,
        shared: SharedMode,
        clock_ms: Callable[[], int] = now_ms,
        alarms: AlarmsSection | None = None,
        settings: BrokerSection | None = None,
        share: ShareMode | None = None,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.statistics = Statistics(asyncio.get_running_loop().time())
        self.produce = Produce(store, topics.table, self.statistics, record_max_bytes)
        self.pull = Pull(store, topics.table, self.statistics)
        self.reads = Reads(store, topics.table)
        self.topics = topics
        self.produce.clock_ms = clock_ms
        copies = Copies(store, topics)
        self.moves = Moves(store, copies, topics, clock_ms)
        self.dead_letters = DeadLetters(store, copies, topics, clock_ms)
        self.parts: list[Part] = [self.produce, self.pull, self.reads, topics, self.moves, self.dead_letters]
        self.parts.append(ColumnPulls(store, topics.table, self.statistics))
        self.tables = Tables(store, topics.table, self.statistics, record_max_bytes)
        self.parts += [self.tables, Queries(store, topics.table)]
        settings = settings or BrokerSection()
        self.sessions = SessionTable(store, topics, clock_ms, user_max=settings.sessions_per_user_max)
        self.parts.append(self.sessions)
        self.retained = Retained(store, topics, settings, record_max_bytes, clock_ms)
        self.parts.append(self.retained)
        self.share = share
        if share is not None:
            self.parts.append(share)
            topics.on_changed.append(share.topic_changed)
        self.groups = groups
        self.parts += [groups, groups.offsets]
        self.pull.gate = groups
        groups.on_fenced = self.pull.fenced
        groups.on_pause.append(self.pull.group_paused)
        self.moves.policy = groups.retry_policy
        groups.offsets.on_reset = self._offsets_reset
        groups.on_delete.append(self.dead_letters.forget)
        self.shared = shared
        self.parts.append(shared)
        shared.gate = groups
        shared.pulls.statistics = self.statistics
        shared.moves.copy = self.moves.move
        groups.modes.append(shared.mode_of)
        groups.on_pause.append(shared.group_paused)
        groups.on_delete.append(shared.group_deleted)
        groups.on_handed_over = shared.group_deleted
        groups.drop_retries = lambda name, done: topics.give_up(retry_topic(name), done)
        shared.starts.kept_offset = groups.offsets.table.get
        self.backlogs = Backlogs(store, groups, shared)
        self.statistics_calls = StatisticsCalls(self.statistics, self.backlogs, topics.table)
        self.parts.append(self.statistics_calls)
        self.alarms = AlarmWatch(
            alarms or AlarmsSection(), name, self.backlogs, store.state, lambda: list(shared.core.full)
        )
        self.parts.append(self.alarms)
        copies.on_dead_letters.append(self.alarms.dead_letters)
        groups.on_delete.append(self.statistics_calls.group_deleted)
        topics.on_changed += [self.backlogs.topic_changed, self.statistics_calls.topic_changed]
        self._store = store
        self._record_max_bytes = record_max_bytes
        self._states: dict[Connection, dict[str, Any]] = {}
        self.produce.role_of = self._role_of
        self.pull.on_temporary = topics.temporary.subscribed
        topics.on_changed += [self.pull.topic_changed, self.reads.topic_changed, shared.topic_changed]
        store.subscribe(self._confirmed)
        routes: dict[RequestCode, OnRequest] = {
            RequestCode.HEARTBEAT: self._heartbeat,
            RequestCode.TOPIC_LIST: self._list_topics,
            RequestCode.QUEUE_BOUNDS: self._queue_bounds,
            RequestCode.BROKER_STATUS: self._status,
            RequestCode.CONNECTION_LIST: self._list_connections,
        }
        for part in self.parts:
            routes.update(part.routes())
        self.rpc = Server(
            routes,
            self._hello,
            record_max_bytes + FRAME_OVERHEAD_BYTES,
            on_closed=self._closed,
            on_writable=self._writable,
        )
        groups.hello_of = self.rpc.connections.get
        shared.hello_of = self.sessions.queries.hello_of = self.rpc.connections.get
        groups.shared = groups.offsets.shared = SharedRows(shared.core, self.rpc.connections.get)

    def _role_of(self, connection: Connection) -> str:
        hello = self.rpc.connections.get(connection)
        return "" if hello is None else hello.role

    async def drain(self) -> None:
        """Answer what is held, then close every connection."""
        for part in self.parts:
            part.release_all()
        await self.rpc.close()

    def numbers(self) -> dict[str, int | float]:
        """The broker's gauges and counters by metric name (without `holdmq_broker_`)."""
        found: dict[str, int | float] = {
            "connections": len(self.rpc.connections),
            "connections_refused_total": self.rpc.refused,
        }
        for part in self.parts:
            found.update(part.numbers())
        return found

    def _confirmed(self, batches: list[Batch]) -> None:
        self.topics.confirmed(batches)
        self.pull.confirmed(batches)
        self.reads.confirmed()
        self.shared.confirmed(batches)
        if self.share is not None:
            self.share.confirmed(batches)

    def _offsets_reset(self, group: str, topics: set[str]) -> None:
        self.dead_letters.forget(group, topics)
        self.shared.offsets_reset(group, topics)

    def _closed(self, connection: Connection) -> None:
        self._states.pop(connection, None)
        for part in self.parts:
            part.closed(connection)

    def _writable(self, connection: Connection) -> None:
        for part in self.parts:
            part.writable(connection)

    def _hello(self, connection: Connection, hello: HelloRequest) -> HelloResponse:
        return HelloResponse(
            PROTOCOL_VERSION,
            self.name,
            self.cluster,
            time.time_ns() // 1_000_000,
            self._store.store_id,
            self._store.epoch,
            self._record_max_bytes,
            self._record_max_bytes + FRAME_OVERHEAD_BYTES,
        )

    def _heartbeat(self, request: Request) -> None:
        state = request.header(HeartbeatRequest).state
        if self._role_of(request.connection) == "gateway":
            self.sessions.heard(request.connection)
        self._states[request.connection] = {
            k: v for k, v in state.items() if isinstance(v, (int, float, str))
        }
        request.reply(Empty())

    def _list_topics(self, request: Request) -> None:
        include_system = request.header(TopicListRequest).include_system
        topics = self.topics.table.rows(include_system)
        totals = self.statistics.topic_totals(row.topic for row in topics)
        stats = []
        for row in topics:
            stored = 0
            for queue_id in range(row.read_queues):
                first, end = self._store.bounds(row.topic, queue_id)
                stored += end - first
            traffic = totals[row.topic][:TRAFFIC]
            stats.append(TopicStats._make([row.topic, *traffic, stored]))
        request.reply(TopicListResponse(topics, stats))

    def _queue_bounds(self, request: Request) -> None:
        bounds = []
        for name in request.header(QueueBoundsRequest).topics:
            topic = self.topics.table.get(name)
            queue_ids = range(topic.read_queues if topic is not None else 0)
            bounds += [QueueBounds(name, q, *self._store.bounds(name, q)) for q in queue_ids]
        request.reply(QueueBoundsResponse(bounds, self._store.epoch))

    def _status(self, request: Request) -> None:
        writable, reason = self._store.state()
        request.reply(
            BrokerStatusResponse(
                self.name,
                self.cluster,
                self._store.store_id,
                self._store.epoch,
                self._store.first_position,
                self._store.confirmed_position,
                writable,
                reason,
                {**self.numbers(), **self._store.numbers()},
            )
        )

    def _list_connections(self, request: Request) -> None:
        rows = []
        subscribed = subscriptions(self.groups, self.shared)
        for connection, hello in self.rpc.connections.items():
            if hello is not None:
                wanted = subscribed.get(connection, [])
                state = self._states.get(connection, {}) | _admitted(connection)
                if wanted:
                    state = state | {"subscriptions": len(wanted)}
                rows.append(
                    ConnectionRow(
                        hello.role,
                        hello.client_id,
                        connection.address,
                        connection.context or "",
                        hello.software,
                        connection.connected_ms,
                        state,
                        wanted[:SHOWN_MAX],
                    )
                )
        request.reply(ConnectionListResponse(rows))
