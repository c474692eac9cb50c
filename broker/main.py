"""`holdmq broker`: opens the store, listens, registers, drains."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from itertools import chain
from pathlib import Path

from broker.alerts.channels import refuse_open_secrets
from broker.app.metrics import Numbers
from broker.app.progress import Progress
from broker.app.registration import Registration
from broker.app.runtime import (
    CHECK_INTERVAL_S,
    FullCollections,
    collect,
)
from broker.app.server import BrokerServer
from broker.groups.requests import Groups
from broker.mqtt_shares.requests import ShareMode
from broker.produce.producers import Producers
from broker.shared_groups.requests import SharedMode
from broker.topics.core.table import TopicTable
from broker.topics.requests import Topics
from holdmq.config.model import Config
from holdmq.errors import StorageError, StoreFormatError
from holdmq.files.private_directory import close_to_others
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.metrics import SecurityCollector
from holdmq.rpc.security import Security
from holdmq.service.interpreter import (
    prepare_interpreter,
    work_in_batches,
)
from holdmq.service.process import Service
from holdmq.service.telemetry import METRICS
from holdmq.wire.headers import BrokerRegisterRequest
from storage.log.store import open_store

EXPIRE_INTERVAL_S = 60.0
TABLES_OPEN_S = 5.0
"""How long a start waits for the tables of sessions and of retained messages."""


async def main(config: Config, service: Service) -> None:
    """Run one broker until `service.stopping`; raises HoldMQError when it cannot start."""
    work_in_batches()
    loop = asyncio.get_running_loop()
    settings = config.broker
    security = ServerSecurity.of(config, "broker")
    config.alarms.check()
    refuse_open_secrets(config.alarms)
    table = TopicTable(settings.topics_max, settings.topic_queues_default)
    accept_backup = config.storage.accept_backup
    store = open_store(
        config.storage,
        settings.name,
        table.key_levels,
        loop.call_soon_threadsafe,
        accept_backup=accept_backup,
        is_table=table.is_table,
    )
    path = Path(config.storage.data_dir) / "config" / "topic.json"
    topics = Topics(path, table, settings.auto_create_topics, settings.hide_grace_s)
    close_to_others(Path(config.storage.data_dir), "format.json")
    topics.load(accept_backup)
    await loop.run_in_executor(None, store.open)
    if topics.is_new and store.confirmed_position > 0:
        await loop.run_in_executor(None, store.close)
        raise StoreFormatError(
            "it is missing, but the log has records",
            operation="open",
            path=str(path),
            hint="restore it from a backup: without it no queue can be named",
        )
    groups = Groups(settings, path.parent, store, table, store.index.offset_at)
    shared = SharedMode(store, table, path.with_name("shared.json"), settings.shared_window)
    share = ShareMode(store, table, path.with_name("shareGroups.json"))
    try:
        await loop.run_in_executor(None, groups.load, store.confirmed_position > 0, accept_backup)
        await loop.run_in_executor(None, shared.load, accept_backup)
        await loop.run_in_executor(None, share.load, accept_backup)
    except StorageError:
        await loop.run_in_executor(None, store.close)
        raise
    store.retention.needs = lambda: chain(groups.offset_file.needs(), shared.needs(), share.needs())
    prepare_interpreter()
    server = BrokerServer(
        settings.name,
        config.cluster.name,
        store,
        topics,
        config.storage.record_max_bytes,
        groups,
        shared,
        alarms=config.alarms,
        settings=settings,
        share=share,
    )
    producers = Producers(store, server.produce.sequences, server.produce.received)
    server.parts.append(producers)
    topics.start(store, Progress(store, groups, shared))
    server.rpc.security = security
    METRICS.register(SecurityCollector(security))
    METRICS.register(Numbers({"holdmq_broker_": server.numbers, "holdmq_store_": store.numbers}))
    letters = server.dead_letters
    try:
        await loop.run_in_executor(None, letters.load, path.with_name("deadLetters.json"), accept_backup)
        await loop.run_in_executor(None, producers.load, path.with_name("producers.json"))
        producers.start()
        server.moves.start()
        server.statistics_calls.segments = lambda: store.chunks.activity.rates
        server.statistics_calls.start()
        server.alarms.start()
        server.sessions.start()
        server.retained.start()
        with contextlib.suppress(TimeoutError):  # a disk that is full now may not be later
            # Who gets the first route gets those of sessions and retained messages, too.
            async with asyncio.timeout(TABLES_OPEN_S):
                await server.sessions.opened.wait()
                await server.retained.opened.wait()
        loop.add_signal_handler(signal.SIGHUP, security.reload_soon)
        await server.rpc.listen(settings.bind, settings.port)
        address = settings.advertise or f"{settings.bind}:{server.rpc.port}"
        registration = Registration(
            config.registries(),
            settings.name,
            settings.register_interval_s,
            lambda: BrokerRegisterRequest(
                config.cluster.name, settings.name, 0, address, table.data_version, table.rows()
            ),
            Security.of(config),
        )
        topics.on_change = registration.changed
        registration.start()
        groups.start()
        shared.start()
        share.start()
        service.ready(store.state)
        service.ready(registration.state)
        service.log.info("broker serves", name=settings.name, address=address, data=config.storage.data_dir)
        expiring = loop.create_task(_expire(server), name="expire")
        collecting = loop.create_task(_collect(server), name="garbage")
        await service.stopping.wait()
        expiring.cancel()
        collecting.cancel()
        await registration.close()
        await server.drain()
        await groups.close()
    finally:
        await loop.run_in_executor(None, shared.close)
        await loop.run_in_executor(None, share.close)
        await loop.run_in_executor(None, producers.close)
        topics.close()
        letters.close()
        await loop.run_in_executor(None, server.alarms.close)
        await loop.run_in_executor(None, store.close)


async def _expire(server: BrokerServer) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(EXPIRE_INTERVAL_S)
        server.produce.sequences.expire(loop.time())


async def _collect(server: BrokerServer) -> None:
    loop = asyncio.get_running_loop()
    full = FullCollections(loop.time())
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        if full.check(loop.time(), server.produce.batches, server.rpc.closed):
            collect()
