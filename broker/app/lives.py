"""The life of a broker over its store: opened, served, drained, closed; and the next one when its shard is
lost.

A process lives one life at home, under its own name. Over an engine whose shards move it may live others
beside it, for brokers that are silent (takeover.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from broker.alerts.core.shard_copies import KnowsCopies, OneCopy
from broker.app.calls import Identity
from broker.app.compose import Broker
from broker.app.engine import StorageEngine, engine_of
from broker.app.reconfiguring import ROOMS, BrokerAdjustment
from broker.app.registration import Registration
from broker.app.runtime import CHECK_INTERVAL_S, FullCollections, collect
from broker.joining.cluster import ClusterInquiry
from broker.joining.joining import Joining
from broker.readers.readers import TopicReaders
from broker.reading.core.far_reads import FarReads, NextReads, ReadCounts
from broker.topics.core.table import TopicTable
from broker.topics.requests import TopicRequests
from holdmq.config.model import Config
from holdmq.errors import ShardLostError, StoreFormatError
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.config_reload import Reload
from holdmq.rpc.security import Security
from holdmq.service.build import running_build
from holdmq.service.process import Service
from holdmq.wire.headers import BrokerRegisterRequest
from storage.api.log_order import LogOrder

EXPIRE_INTERVAL_S: Final = 60.0
TABLES_OPEN_S: Final = 5.0
"""How long a start waits for the tables of sessions, retained messages, bans and quotas."""


class Starting(Protocol):
    """What begins once the broker serves at home."""

    def start(self) -> None:
        """Begin; again is no error."""


class Life(NamedTuple):
    """One life of a broker over an open store: until `ending`, or until its shard is `lost`.

    `epoch` is that of a leader with copies, 0 = there are none; `copies` knows of them.
    """

    config: Config
    engine: StorageEngine
    readers: TopicReaders
    topics: TopicRequests
    ending: asyncio.Event
    lost: asyncio.Future[ShardLostError]
    beside: Starting | None
    advertised_host: str
    epoch: int
    copies: KnowsCopies
    next_reads: NextReads


class Lives:
    """Lives of one process. Their numbers are added up; `reload` has it read its configuration again."""

    def __init__(self, config: Config, service: Service, security: ServerSecurity, reload: Reload) -> None:
        self._config = config
        self._service = service
        self._security = security
        self._reload = reload
        self._living: dict[Broker, Registration | None] = {}
        self._in_force: Config | None = None
        self.serving = 0
        """Brokers that are open for clients."""
        self.stopping = service.stopping

    def broker_numbers(self) -> dict[str, int | float]:
        """Gauges and counters of all brokers that live here; called on any thread."""
        return _sum([broker.numbers() for broker in list(self._living)])

    def store_numbers(self) -> dict[str, int | float]:
        """Gauges and counters of their stores; called on any thread."""
        return _sum([dict(broker.store.numbers()) for broker in list(self._living)])

    def adjust(self, room: BrokerAdjustment) -> Callable[[Config], None]:
        """What applies a configuration to a room of every broker that lives here, now and later."""

        def apply(config: Config) -> None:
            self._in_force = config
            for broker, registration in self._living.items():
                room(config, broker, registration)

        return apply

    async def settle(self) -> None:
        """Make durable what the brokers here have in memory alone and must not lose; raises HoldMQError."""
        for broker in list(self._living):
            await broker.settle()

    async def live_at_home(self, beside: Starting | None) -> None:
        """Serve under this broker's own name until the process is to stop. Raises HoldMQError.

        A shard that is lost (another process took it over, or the servers behind it lost writes) is opened
        anew as soon as it is to be had.
        """
        while not self.stopping.is_set():
            await self.live(self._config, True, self.stopping, beside)

    async def live(
        self,
        config: Config,
        is_home: bool,
        ending: asyncio.Event,
        beside: Starting | None = None,
        advertised_host: str = "",
    ) -> None:
        """Open a broker's store and serve until `ending`, or until its shard is lost. Raises HoldMQError.

        `advertised_host`: clients are told it with whichever port was free.
        """
        loop = asyncio.get_running_loop()
        settings = config.broker
        lost: asyncio.Future[ShardLostError] = loop.create_future()

        def told(error: ShardLostError) -> None:
            if not lost.done():
                lost.set_result(error)

        table = TopicTable(settings.topics_max, settings.topic_queues_default)
        engine = engine_of(config, table, told, is_home, ending.set)
        store = engine.store
        accept_backup = config.storage.accept_backup
        path = Path(config.storage.data_dir) / "config" / "topic.json"
        readers = TopicReaders()
        topics = _topics_of(config, path, table, readers, engine)
        if not engine.is_topics_inside:
            topics.load(accept_backup)
        await loop.run_in_executor(None, store.open)
        try:
            here = FarReads(list, lambda: store.confirmed_position, 0, ReadCounts())
            life = Life(
                config, engine, readers, topics, ending, lost, beside, advertised_host, 0, OneCopy(), here
            )
            await self._live_over(life)
            if lost.done():
                # Who has the shard by now accounts for what it found.
                with contextlib.suppress(ShardLostError):
                    await loop.run_in_executor(None, engine.account_for_loss)
        finally:
            await loop.run_in_executor(None, store.close)

    async def lead(
        self,
        config: Config,
        engine: StorageEngine,
        table: TopicTable,
        epoch: int,
        ending: asyncio.Event,
        copies: KnowsCopies,
        next_reads: NextReads,
    ) -> None:
        """Serve over an open store that leads its copies in `epoch`, until `ending`. Raises HoldMQError."""
        lost: asyncio.Future[ShardLostError] = asyncio.get_running_loop().create_future()
        path = Path(config.storage.data_dir) / "config" / "topic.json"
        readers = TopicReaders()
        topics = _topics_of(config, path, table, readers, engine)
        life = Life(config, engine, readers, topics, ending, lost, None, "", epoch, copies, next_reads)
        await self._live_over(life)

    async def _live_over(self, life: Life) -> None:
        """Load a broker over its open store, serve, and close it."""
        loop = asyncio.get_running_loop()
        config, engine, topics = life.config, life.engine, life.topics
        settings, store = config.broker, engine.store
        accept_backup = config.storage.accept_backup
        path = Path(config.storage.data_dir) / "config" / "topic.json"
        if engine.is_topics_inside:
            await loop.run_in_executor(None, engine.prepare)
            await loop.run_in_executor(None, topics.load, accept_backup)
        if store.log_order is not None and not engine.is_state_in_log:
            _check_topics(topics, store.log_order, path)
        broker = Broker(
            Identity.of(config),
            store,
            store.log_order,
            life.readers,
            topics,
            path.parent,
            engine.disk,
            engine.busy_segments,
            engine.loss,
            engine.is_state_in_log,
            settings,
            config.alarms,
            self._security,
            life.copies,
            life.next_reads,
            is_fenced=engine.replicated is not None,
            reload=self._reload,
        )
        await loop.run_in_executor(None, broker.load, accept_backup)
        try:
            self._living[broker] = None
            await self._serve(life, broker)
        finally:
            del self._living[broker]
            await loop.run_in_executor(None, broker.close)

    async def _serve(self, life: Life, broker: Broker) -> None:
        """Run a broker whose files are loaded."""
        loop = asyncio.get_running_loop()
        config, lost = life.config, life.lost
        settings = config.broker
        broker.start()
        if broker.keeping.has_tables:
            broker.start_tables(True)
        with contextlib.suppress(TimeoutError):  # a disk that is full now may not be later
            # Who gets the first route gets those of sessions and retained messages, too.
            async with asyncio.timeout(TABLES_OPEN_S):
                if broker.keeping.has_tables:
                    await broker.tables_opened()
                await broker.bans.table.opened.wait()
                await broker.quotas.table.opened.wait()
        await broker.rpc.listen(settings.bind, settings.port)
        address = settings.advertise or f"{life.advertised_host or settings.bind}:{broker.rpc.port}"
        table = broker.topics.table
        security = Security.of(config)
        cluster = ClusterInquiry(config.registries(), config.cluster.name, settings.name, security)
        joining = Joining(cluster, broker.keeping)
        registration = Registration(
            config.registries(),
            settings.name,
            settings.register_interval_s,
            lambda: BrokerRegisterRequest(
                config.cluster.name,
                settings.name,
                0,
                address,
                table.data_version,
                table.rows(),
                life.epoch,
                settings.room,
                life.engine.made_ms(),
                *broker.keeping.counts(),
            ),
            broker.quotas.shared_by,
            security,
            broker.registry_sight,
        )
        broker.topics.table_changed.subscribe(registration.changed)
        self._living[broker] = registration
        if self._in_force is not None:
            # Made from the configuration of the process's start, which has changed since.
            for row in ROOMS:
                row.room(self._in_force, broker, registration)
        checks = (broker.store.state, registration.state)
        for check in checks:
            self._service.ready(check)
        self.serving += 1
        self._service.log.info(
            "broker serves",
            name=settings.name,
            address=address,
            data=life.engine.where,
            build=running_build(),
        )
        if life.beside is not None:
            life.beside.start()
        tasks = [
            loop.create_task(_expire(broker), name="expire"),
            loop.create_task(_collect(broker), name="garbage"),
            loop.create_task(
                joining.run(
                    broker.tables_opened, registration.start, life.epoch > 0 and broker.keeping.has_tables
                ),
                name="joining",
            ),
            loop.create_task(broker.spreading.run(registration, cluster), name="spreading"),
        ]
        end = loop.create_task(life.ending.wait(), name="ending")
        await asyncio.wait((end, lost), return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, end):
            task.cancel()
        self.serving -= 1
        self._service.no_longer_ready(*checks)
        await registration.close(unregister=not lost.done())
        await broker.drain()


def _topics_of(
    config: Config, path: Path, table: TopicTable, readers: TopicReaders, engine: StorageEngine
) -> TopicRequests:
    settings = config.broker
    return TopicRequests(
        path,
        table,
        settings.auto_create_topics,
        readers,
        settings.hide_grace_s,
        engine.disk,
        settings.temporary_unread_s,
    )


def _sum(of_each: list[dict[str, int | float]]) -> dict[str, int | float]:
    if len(of_each) == 1:
        return of_each[0]
    found: dict[str, int | float] = {}
    for numbers in of_each:
        for name, value in numbers.items():
            found[name] = found.get(name, 0) + value
    return found


def _check_topics(topics: TopicRequests, order: LogOrder, path: Path) -> None:
    """Refuse to start without the names of what the log has."""
    if topics.is_new and order.confirmed_position > 0:
        raise StoreFormatError(
            "it is missing, but the log has records",
            operation="open",
            path=str(path),
            hint="restore it from a backup: without it no queue can be named",
        )


async def _expire(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(EXPIRE_INTERVAL_S)
        broker.produce.sequences.expire(loop.time())


async def _collect(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    full = FullCollections(loop.time())
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        if full.check(loop.time(), broker.produce.batches, broker.rpc.closed):
            collect()
