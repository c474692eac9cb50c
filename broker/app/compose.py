"""All wiring of a broker: which room gets which others, and who is told of what.

Rooms are made from the bottom up, so that a constructor names what it needs; a forgotten wire is a TypeError
at start. What flows upwards is an event, subscribed to in `_subscribe`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from broker.alerts.alarms import AlarmWatch
from broker.alerts.backlog import Backlogs
from broker.alerts.core.registry_sight import RegistrySight
from broker.alerts.core.shard_copies import KnowsCopies
from broker.alerts.statistics_calls import BusySegment, StatisticsRequests
from broker.app.calls import BrokerCalls, Identity
from broker.app.lead_fence import fenced
from broker.app.order_refusals import refusals
from broker.app.progress import Progress
from broker.app.subscribers import activity, subscriptions
from broker.app.tenant_keys import TenantKeys
from broker.app.topic_lists import TopicLists
from broker.app.topic_readers import TopicReaderList
from broker.bans.requests import BanTable
from broker.gateways.requests import GatewayRequests
from broker.groups.core.settings import GroupTable
from broker.groups.requests import Groups
from broker.groups.settings import GroupSettings
from broker.joining.book import SpreadBook
from broker.joining.keeping import Keeping
from broker.joining.spread_tables import GROUPS, TOPICS, SpreadGroups, SpreadTopics
from broker.joining.spreading import Spreading
from broker.kernel.request_family import HelloOf, RequestFamily
from broker.kernel.snapshot_file import SnapshotFile
from broker.kernel.statistics import Statistics, TrafficSource
from broker.mqtt_shares.requests import ShareMode
from broker.produce.bounds import MessageBounds
from broker.produce.producers import Producers
from broker.produce.requests import Produce
from broker.quotas.requests import Quotas
from broker.quotas.spread import QUOTAS, SpreadQuotas
from broker.readers.readers import TopicReaders
from broker.reading.column_pulls import ColumnPulls
from broker.reading.core.far_reads import NextReads
from broker.reading.pull import Pull
from broker.reading.queries import Queries
from broker.reading.reads import Reads
from broker.retained.requests import Retained
from broker.retry.copies import Copies
from broker.retry.core.dead_letters import Marks
from broker.retry.dead_letters import DeadLetterRequests
from broker.retry.moves import Moves
from broker.sessions.core.counts import SessionUse
from broker.sessions.requests import SessionTable
from broker.shared_groups.core.shared import Shared
from broker.shared_groups.requests import SharedMode
from broker.shared_groups.state import SharedRows
from broker.state.state_file import StateFile
from broker.tables.requests import TableRequests
from broker.topics.core.table import KIND_LOG, NOT_DELETING, Topic
from broker.topics.first_groups import FirstGroups
from broker.topics.requests import TopicRequests
from holdmq.config.alarms import AlarmsSection
from holdmq.config.model import BrokerSection
from holdmq.errors import HoldMQError
from holdmq.files.disk import Disk
from holdmq.names.topics import is_system_topic
from holdmq.record.origin import retry_topic
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.config_reload import Reload
from holdmq.rpc.connection import Connection
from holdmq.rpc.server import OnRequest, Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.frame import FRAME_OVERHEAD_BYTES
from holdmq.wire.headers import HelloRequest
from storage.api.batches import Batch
from storage.api.log_order import LogOrder
from storage.api.retention import Need
from storage.api.store import OrderedStore, RecordLoss

ClockMs = Callable[[], int]


def now_ms() -> int:
    """The wall clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Broker:
    """One broker over an open store, with loaded topics: every room, made and wired.

    `readers` are told by the rooms who reads what. `directory` of `disk` has the rooms' state files,
    `is_state_in_log` in the store's own log;
    `busy_segments` is what is read from the disk now, `loss` what the store lost last of what was confirmed.
    `order` is the store's log order; None = its engine has none, and what needs one is refused.
    `is_fenced`: other copies of the log may lead, so that every request asks the store first;
    `copies` says what is known of them, `next_reads` who is to read from them.
    Then in this order: `load` (blocking), `start`, `rpc.listen`, `drain`, `close` (blocking).
    """

    def __init__(
        self,
        identity: Identity,
        store: OrderedStore,
        order: LogOrder | None,
        readers: TopicReaders,
        topics: TopicRequests,
        directory: Path,
        disk: Disk,
        busy_segments: Callable[[], Sequence[BusySegment]],
        loss: Callable[[], RecordLoss],
        is_state_in_log: bool,
        settings: BrokerSection,
        alarms: AlarmsSection,
        security: ServerSecurity | None,
        copies: KnowsCopies,
        next_reads: NextReads,
        is_fenced: bool,
        reload: Reload,
        clock_ms: ClockMs = now_ms,
    ) -> None:
        table = topics.table
        record_max_bytes = identity.record_max_bytes
        self.store = store
        self.topics = topics
        self.readers = readers
        self._is_state_in_log = is_state_in_log

        def state_file(name: str) -> StateFile:
            return StateFile(directory / name, disk)

        def snapshot_file(name: str) -> SnapshotFile:
            return SnapshotFile(directory / name, disk, is_state_in_log)

        self._dead_letters_file = state_file("deadLetters.json")
        connections: dict[Connection, HelloRequest | None] = {}
        hello_of = connections.get
        self.statistics = Statistics(
            asyncio.get_running_loop().time(), source_of=partial(_source_of, hello_of)
        )

        session_use = SessionUse()
        self.quotas = Quotas(
            store,
            topics,
            connections,
            session_use,
            table.all,
            clock_ms,
        )
        self.bounds = MessageBounds(settings.message_bytes_min, connections, time.monotonic)
        self.produce = Produce(
            store,
            table,
            self.statistics,
            record_max_bytes,
            self.bounds,
            partial(_role_of, hello_of),
            self.quotas,
            clock_ms,
        )
        self.producers = Producers(
            store, self.produce.sequences, self.produce.received, snapshot_file("producers.json")
        )

        marks = Marks()
        self.copies = Copies(store, topics, marks)
        self.dead_letters = DeadLetterRequests(store, self.copies, topics, marks, clock_ms)

        group_settings = GroupSettings(
            state_file("subscriptionGroup.json"),
            GroupTable(settings.groups_max, settings.auto_create_groups),
        )
        # A receipt of an earlier start is never one of this start's.
        first_receipt = now_ms() << 20
        shared_core = Shared(
            store.bounds, group_settings.retry_max_times, first_receipt, settings.shared_window
        )
        self.groups = Groups(
            settings,
            group_settings,
            state_file("consumerOffset.json"),
            store,
            table,
            store.index.offset_at,
            shared=SharedRows(shared_core, hello_of),
            hello_of=hello_of,
            drop_retries=partial(_drop_retries, topics),
            readers=readers,
            is_state_in_log=is_state_in_log,
        )
        self.moves = Moves(store, self.copies, topics, self.groups.retry_policy, self.statistics, clock_ms)
        self.shared = SharedMode(
            shared_core,
            self.groups,
            store,
            store,
            table,
            snapshot_file("shared.json"),
            self.statistics,
            kept_offset=self.groups.offsets.table.get,
            move=self.moves.move,
            may_hand_out=store.is_owned,
            hello_of=hello_of,
            readers=readers,
        )

        self.pull = Pull(store, table, self.statistics, self.groups, readers, next_reads)
        self.reads = None if order is None else Reads(store, order, table, self.statistics)
        self.share = (
            None
            if order is None
            else ShareMode(
                store,
                order,
                table,
                snapshot_file("shareGroups.json"),
                store.is_owned,
                clock_ms=clock_ms,
            )
        )
        self.sessions = SessionTable(
            store,
            topics,
            clock_ms,
            hello_of,
            session_use,
            self.quotas,
            user_max=settings.sessions_per_user_max,
        )
        self.retained = Retained(store, topics, settings, record_max_bytes, clock_ms)
        self.bans = BanTable(store, topics, connections, settings.bans_max, clock_ms)
        self.tables = TableRequests(store, table, self.statistics, record_max_bytes)

        self.keeping = Keeping(
            identity.name,
            store,
            table,
            lambda: len(self.sessions.core),
            lambda: session_use.stored,
            [self.sessions, self.retained],
            state_file("joining.json"),
        )

        self._spread_groups = SpreadGroups(self.groups)
        self.book = SpreadBook(
            {
                GROUPS: self._spread_groups,
                QUOTAS: SpreadQuotas(self.quotas),
                TOPICS: SpreadTopics(topics, store),
            },
            state_file("spread.json"),
            clock_ms,
        )
        self.spreading = Spreading(self.book, self._spread_groups.settle)

        self.backlogs = Backlogs(store, self.groups, self.shared)
        self.statistics_calls = StatisticsRequests(self.statistics, self.backlogs, table, busy_segments)
        self.registry_sight = RegistrySight()
        self.alarms = AlarmWatch(
            alarms,
            identity.name,
            self.backlogs,
            store.state,
            loss,
            lambda: list(shared_core.full),
            copies,
            self.registry_sight,
        )
        calls = BrokerCalls(
            identity,
            store,
            table,
            connections,
            numbers=self.numbers,
            gateway_heard=self.sessions.heard,
            subscriptions=partial(subscriptions, self.groups, self.shared),
            activity=partial(activity, self.produce.producing, readers.table),
            copies=copies,
            admit=self.quotas.admit,
            bounds=self.bounds,
            reload=reload,
        )
        by_filter = [room for room in (self.reads, self.share) if room is not None]
        topic_readers = TopicReaderList(table, readers.table, by_filter, hello_of)
        self._progress = Progress(store, self.groups, self.shared)

        self._families: list[RequestFamily] = [
            calls, TopicLists(store, table, self.statistics), topic_readers, self.produce, self.producers,
            self.pull, topics, self.moves, self.dead_letters, self.tables,
            ColumnPulls(store, table, self.statistics, readers, next_reads),
            Queries(store, table, readers, next_reads), readers, self.sessions, self.retained, self.groups,
            self.groups.offsets, self.shared, self.statistics_calls, self.alarms,
            GatewayRequests(connections), FirstGroups(topics, self._progress), self.bans, self.quotas,
            self.keeping, self.book, self.spreading,
            TenantKeys(lambda: () if security is None else security.keys()),
        ]  # fmt: skip
        self._families += [family for family in (self.reads, self.share) if family is not None]
        routes: dict[RequestCode, OnRequest] = {}
        for family in self._families:
            routes.update(family.routes())
        if order is None:
            routes.update(refusals(store.engine))
        self.rpc = Server(
            fenced(routes, store.is_owned) if is_fenced else routes,
            calls.hello,
            record_max_bytes + FRAME_OVERHEAD_BYTES,
            on_closed=self._closed,
            on_writable=self._writable,
            security=security,
            connections=connections,
        )
        self._subscribe()

    def _subscribe(self) -> None:
        """Let rooms hear of what happens below them."""
        topics, groups = self.topics, self.groups
        for room in (
            self.share, self.backlogs, self.statistics_calls, self.pull, self.reads, self.shared
        ):  # fmt: skip
            if room is not None:
                topics.topic_changed.subscribe(room.topic_changed)
        topics.topic_changed.subscribe(partial(_forget_readers, self.readers))
        groups.leases_ended.subscribe(self.pull.fenced)
        groups.paused.subscribe(self.pull.group_paused)
        groups.paused.subscribe(self.shared.group_paused)
        groups.deleted.subscribe(self.dead_letters.forget)
        groups.deleted.subscribe(self.shared.group_deleted)
        groups.deleted.subscribe(self.statistics_calls.group_deleted)
        groups.handed_over.subscribe(self.shared.group_deleted)
        groups.offsets.reset_done.subscribe(self.dead_letters.forget)
        groups.offsets.reset_done.subscribe(self.shared.offsets_reset)
        topics.topic_changed.subscribe(partial(_note_topic, self.book))
        groups.settings.created.subscribe(lambda name: self.book.row_changed(GROUPS, name, True))
        groups.deleted.subscribe(lambda name: self.book.row_changed(GROUPS, name, False))
        self.quotas.row_changed.subscribe(partial(self.book.row_changed, QUOTAS))
        self.copies.letters_written.subscribe(self.alarms.dead_letters)
        self.store.subscribe(self._confirmed)
        self.store.retention.keep_for(self._needs)

    # Life

    def load(self, accept_backup: bool = False) -> None:
        """Read all files but that of topics (blocking); StorageError when the broker must not start."""
        # Nobody takes a single file out of a log: what is missing there was never made.
        has_lost_files = self.store.confirmed_position > 0 and not self._is_state_in_log
        self.groups.load(has_lost_files, accept_backup)
        self.shared.load(accept_backup)
        if self.share is not None:
            self.share.load(accept_backup)
        self.dead_letters.load(self._dead_letters_file, accept_backup)
        self.producers.load()
        self.keeping.load(accept_backup)
        self.book.load(accept_backup)

    def start(self) -> None:
        """Begin what happens by itself: deletions go on, files are saved, deadlines run."""
        self.topics.start(self.store, self._progress, self.quotas)
        self._spread_groups.begin()
        for topic in self.topics.table.leaving():
            _note_topic(self.book, replace(topic, deleting_to=NOT_DELETING), None)
        self.producers.start()
        self.moves.start()
        self.statistics_calls.start()
        self.alarms.start()
        self.bans.start()
        self.quotas.start()
        self.groups.start()
        self.shared.start()
        if self.share is not None:
            self.share.start()

    def start_tables(self, is_keeper: bool) -> None:
        """Serve sessions and retained messages as a keeper of them, or without any. Once, behind `start`."""
        self.keeping.begin(is_keeper)

    async def tables_opened(self) -> None:
        """Wait until they can be used."""
        await self.sessions.opened.wait()
        await self.retained.opened.wait()

    async def settle(self) -> None:
        """Make durable what only memory has and a clean end must not lose; raises HoldMQError."""
        await self.groups.offset_file.settle()

    async def drain(self) -> None:
        """Answer what is held, close every connection, and save what consumers have done."""
        for family in self._families:
            family.release_all()
        await self.rpc.close()
        await self.groups.close()

    def close(self) -> None:
        """Finish the writes under way (blocking); the store is closed after it."""
        self.shared.close()
        if self.share is not None:
            self.share.close()
        self.producers.close()
        self.topics.close()
        self.dead_letters.close()
        self.alarms.close()
        self.keeping.close()
        self.book.close()

    def numbers(self) -> dict[str, int | float]:
        """The broker's gauges and counters by metric name (without `holdmq_broker_`)."""
        found: dict[str, int | float] = {
            "connections": len(self.rpc.connections),
            "connections_refused_total": self.rpc.refused,
        }
        for family in self._families:
            found.update(family.numbers())
        return found

    # What the store and the server tell

    def _confirmed(self, batches: list[Batch]) -> None:
        self.topics.confirmed(batches)
        self.pull.confirmed(batches)
        if self.reads is not None:
            self.reads.confirmed()
        self.shared.confirmed(batches)
        if self.share is not None:
            self.share.confirmed(batches)

    def _needs(self) -> Iterator[Need]:
        shares = () if self.share is None else self.share.needs()
        return chain(self.groups.offset_file.needs(), self.shared.needs(), shares)

    def _closed(self, connection: Connection) -> None:
        for family in self._families:
            family.closed(connection)

    def _writable(self, connection: Connection) -> None:
        for family in self._families:
            family.writable(connection)


def _role_of(hello_of: HelloOf, connection: Connection) -> str:
    hello = hello_of(connection)
    return "" if hello is None else hello.role


def _source_of(hello_of: HelloOf, connection: Connection) -> TrafficSource:
    hello = hello_of(connection)
    return TrafficSource("" if hello is None else hello.client_id, connection.principal)


def _forget_readers(readers: TopicReaders, before: Topic | None, after: Topic | None) -> None:
    if before is not None and after is None:
        readers.topic_gone(before.name)


def _note_topic(book: SpreadBook, before: Topic | None, after: Topic | None) -> None:
    """Let others know of a topic that was deleted, once, or is there again."""
    if (before is None) == (after is None):
        return
    topic = before or after
    assert topic is not None
    if topic.kind == KIND_LOG and not (topic.is_leaving or is_system_topic(topic.name)):
        book.row_changed(TOPICS, topic.name, after is not None)


def _drop_retries(topics: TopicRequests, group: str, done: Callable[[HoldMQError | None], None]) -> None:
    topics.give_up(retry_topic(group), done)
