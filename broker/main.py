"""`holdmq broker`: opens the store, listens, registers, drains."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from broker.alerts.channels import refuse_open_secrets
from broker.app.calls import Identity
from broker.app.compose import Broker
from broker.app.engine import engine_of
from broker.app.metric_help import BROKER, STORE
from broker.app.registration import Registration
from broker.app.runtime import CHECK_INTERVAL_S, FullCollections, collect
from broker.topics.core.table import TopicTable
from broker.topics.requests import TopicRequests
from holdmq.config.model import Config
from holdmq.errors import StoreFormatError
from holdmq.files.private_directory import close_to_others
from holdmq.rpc.auth import HELP, ServerSecurity
from holdmq.rpc.security import Security
from holdmq.service.interpreter import prepare_interpreter, work_in_batches
from holdmq.service.numbers import Numbers, NumberSource
from holdmq.service.process import Service
from holdmq.service.telemetry import METRICS
from holdmq.wire.headers import BrokerRegisterRequest
from storage.api.log_order import LogOrder

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
    store = engine_of(config, table)
    path = Path(config.storage.data_dir) / "config" / "topic.json"
    topics = TopicRequests(path, table, settings.auto_create_topics, settings.hide_grace_s)
    close_to_others(Path(config.storage.data_dir), "format.json")
    topics.load(accept_backup)
    await loop.run_in_executor(None, store.open)
    try:
        if store.log_order is not None:
            _check_topics(topics, store.log_order, path)
        broker = Broker(
            Identity(settings.name, config.cluster.name, config.storage.record_max_bytes),
            store,
            store.log_order,
            topics,
            path.parent,
            settings,
            config.alarms,
            security,
        )
        await loop.run_in_executor(None, broker.load, accept_backup)
        try:
            await _serve(config, service, broker, security)
        finally:
            await loop.run_in_executor(None, broker.close)
    finally:
        await loop.run_in_executor(None, store.close)


def _check_topics(topics: TopicRequests, order: LogOrder, path: Path) -> None:
    """Refuse to start without the names of what the log has."""
    if topics.is_new and order.confirmed_position > 0:
        raise StoreFormatError(
            "it is missing, but the log has records",
            operation="open",
            path=str(path),
            hint="restore it from a backup: without it no queue can be named",
        )


async def _serve(config: Config, service: Service, broker: Broker, security: ServerSecurity) -> None:
    """Run a broker whose files are loaded, until `service.stopping`."""
    loop = asyncio.get_running_loop()
    settings = config.broker
    prepare_interpreter()
    METRICS.register(
        Numbers(
            NumberSource("holdmq_rpc_", HELP, security.numbers),
            NumberSource("holdmq_broker_", BROKER, broker.numbers),
            NumberSource("holdmq_store_", STORE, broker.store.numbers),
        )
    )
    broker.start()
    with contextlib.suppress(TimeoutError):  # a disk that is full now may not be later
        # Who gets the first route gets those of sessions and retained messages, too.
        async with asyncio.timeout(TABLES_OPEN_S):
            await broker.sessions.opened.wait()
            await broker.retained.opened.wait()
    loop.add_signal_handler(signal.SIGHUP, security.reload_soon)
    await broker.rpc.listen(settings.bind, settings.port)
    address = settings.advertise or f"{settings.bind}:{broker.rpc.port}"
    table = broker.topics.table
    registration = Registration(
        config.registries(),
        settings.name,
        settings.register_interval_s,
        lambda: BrokerRegisterRequest(
            config.cluster.name, settings.name, 0, address, table.data_version, table.rows()
        ),
        Security.of(config),
    )
    broker.topics.table_changed.subscribe(registration.changed)
    registration.start()
    service.ready(broker.store.state)
    service.ready(registration.state)
    service.log.info("broker serves", name=settings.name, address=address, data=config.storage.data_dir)
    expiring = loop.create_task(_expire(broker), name="expire")
    collecting = loop.create_task(_collect(broker), name="garbage")
    await service.stopping.wait()
    expiring.cancel()
    collecting.cancel()
    await registration.close()
    await broker.drain()


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
