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
from holdmq.errors import ShardLostError, StoreFormatError
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
    """Run one broker until `service.stopping`; raises HoldMQError when it cannot start.

    A shard that is lost (another process took it over, or the servers behind it lost writes) ends a life of
    the broker, not the process: it is opened anew as soon as it is to be had.
    """
    work_in_batches()
    security = ServerSecurity.of(config, "broker")
    config.alarms.check()
    refuse_open_secrets(config.alarms)
    METRICS.register(Numbers(NumberSource("holdmq_rpc_", HELP, security.numbers)))
    while not service.stopping.is_set():
        await _live(config, service, security)


async def _live(config: Config, service: Service, security: ServerSecurity) -> None:
    """Open the store and serve until `service.stopping`, or until the shard is lost."""
    loop = asyncio.get_running_loop()
    settings = config.broker
    lost: asyncio.Future[ShardLostError] = loop.create_future()

    def told(error: ShardLostError) -> None:
        if not lost.done():
            lost.set_result(error)

    table = TopicTable(settings.topics_max, settings.topic_queues_default)
    engine = engine_of(config, table, told)
    store = engine.store
    accept_backup = config.storage.accept_backup
    path = Path(config.storage.data_dir) / "config" / "topic.json"
    topics = TopicRequests(path, table, settings.auto_create_topics, settings.hide_grace_s, engine.disk)
    if not engine.is_topics_inside:
        topics.load(accept_backup)
    await loop.run_in_executor(None, store.open)
    try:
        if engine.is_topics_inside:
            await loop.run_in_executor(None, topics.load, accept_backup)
        if store.log_order is not None:
            _check_topics(topics, store.log_order, path)
        broker = Broker(
            Identity(settings.name, config.cluster.name, config.storage.record_max_bytes),
            store,
            store.log_order,
            topics,
            path.parent,
            engine.disk,
            engine.busy_segments,
            settings,
            config.alarms,
            security,
        )
        await loop.run_in_executor(None, broker.load, accept_backup)
        try:
            await _serve(config, service, broker, security, lost, engine.where)
        finally:
            await loop.run_in_executor(None, broker.close)
        if lost.done():
            await loop.run_in_executor(None, engine.account_for_loss)
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


async def _serve(
    config: Config,
    service: Service,
    broker: Broker,
    security: ServerSecurity,
    lost: asyncio.Future[ShardLostError],
    where: str,
) -> None:
    """Run a broker whose files are loaded, until `service.stopping` or `lost`."""
    loop = asyncio.get_running_loop()
    settings = config.broker
    prepare_interpreter()
    numbers = Numbers(
        NumberSource("holdmq_broker_", BROKER, broker.numbers),
        NumberSource("holdmq_store_", STORE, broker.store.numbers),
    )
    METRICS.register(numbers)
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
    service.log.info("broker serves", name=settings.name, address=address, data=where)
    expiring = loop.create_task(_expire(broker), name="expire")
    collecting = loop.create_task(_collect(broker), name="garbage")
    stopping = loop.create_task(service.stopping.wait(), name="stopping")
    await asyncio.wait((stopping, lost), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    expiring.cancel()
    collecting.cancel()
    service.no_longer_ready(broker.store.state, registration.state)
    METRICS.unregister(numbers)
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
