"""The registry's RPC over its tables.

BROKER_REGISTER, BROKER_UNREGISTER, ROUTE_GET (held until a route changes, if asked for), CLUSTER_GET,
ORDER_GET, ORDER_SET, BROKER_FORGET.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import Counter, Gauge

from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.config_reload import ConfigReload
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest, Server
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import BrokerForgetRequest, ForgottenRow
from holdmq.wire.frame import HEADER_MAX_BYTES
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    PROTOCOL_VERSION,
    BrokerRegisterRequest,
    BrokerRegisterResponse,
    BrokerRow,
    BrokerUnregisterRequest,
    ClusterGetRequest,
    ClusterGetResponse,
    Empty,
    HelloRequest,
    HelloResponse,
    OrderGetRequest,
    OrderGetResponse,
    OrderRow,
    OrderSetRequest,
    RouteGetRequest,
    RouteGetResponse,
    TopicRow,
)
from registry.core.holds import Held, Holds
from registry.core.roster import ProcessKey, Roster
from registry.core.tables import BROKERS_MAX, ROUTES_MAX, BrokerKey, KeptHere, RegistryTables
from registry.order_file import OrderFile

FRAME_MAX_BYTES: Final = HEADER_MAX_BYTES + 4096
"""A registration is all header: no request here has a body."""
TOPICS_ASKED_MAX: Final = 20_000
"""Topics named in one ROUTE_GET: twice a broker's default topics_max."""
EXPIRE_MIN_S: Final = 0.05
"""Least time between looks at deadlines: many that end together are answered together."""
HOLD_MAX_MS: Final = 300_000
"""Longest hold: ten times what clients ask for."""
VERSION_BITS: Final = 52
"""Versions stay exact in a metric, which is a double."""

_BROKERS = Gauge("holdmq_registry_brokers", "Registered brokers.", registry=telemetry.METRICS)
_TOPICS = Gauge("holdmq_registry_topics", "Topics with at least one queue.", registry=telemetry.METRICS)
_ROUTES = Gauge("holdmq_registry_routes", "Rows of topicQueueTable.", registry=telemetry.METRICS)
_VERSION = Gauge("holdmq_registry_version", "Changes of any table.", registry=telemetry.METRICS)
_HELD = Gauge("holdmq_registry_held", "Route requests held now.", registry=telemetry.METRICS)
_HELD_REFUSED = Counter(
    "holdmq_registry_held_refused_total",
    "Route requests answered at once for a bound of the held ones.",
    registry=telemetry.METRICS,
)
_ORDERED = Gauge("holdmq_registry_ordered_topics", "Ordered topics kept.", registry=telemetry.METRICS)
_ORDER_REFUSED = Gauge(
    "holdmq_registry_order_rows_refused",
    "Brokers of ordered topics not learnt since start, for ORDER_ROWS_MAX.",
    registry=telemetry.METRICS,
)
_ORDER_FAILURES = Gauge(
    "holdmq_registry_order_write_failures",
    "Writes of orderTopic.json that failed since start.",
    registry=telemetry.METRICS,
)
_FORGOTTEN = Gauge(
    "holdmq_registry_forgotten_brokers",
    "Brokers that were given up, the newest of them.",
    registry=telemetry.METRICS,
)
_CONNECTIONS = Gauge("holdmq_registry_connections", "Open RPC connections.", registry=telemetry.METRICS)
_CONNECTIONS_REFUSED = Gauge(
    "holdmq_registry_connections_refused",
    "Connections since start that broke the protocol, kept silent or were too many.",
    registry=telemetry.METRICS,
)
_REQUESTS = Counter(
    "holdmq_registry_requests_total", "Requests by kind.", ["request"], registry=telemetry.METRICS
)
_REFUSED = Counter(
    "holdmq_registry_refused_total", "Requests refused, by code.", ["code"], registry=telemetry.METRICS
)
_DROPPED = Counter(
    "holdmq_registry_brokers_dropped_total",
    "Brokers taken out of the tables, by cause.",
    ["cause"],
    registry=telemetry.METRICS,
)


class RegistryServer:
    """Serves the tables. `listen`, then run `scan` in a task, then `close`.

    `data_dir`: where ordered topics are kept; None = in memory alone. Call `load` first then. `reload`: who
    has the process read its configuration again; None = nobody can, from afar.
    `roster` is told of brokers that come, leave and are lost, `watch_routes` serve its watch.
    """

    def __init__(
        self,
        cluster: str,
        scan_interval_s: float = 10.0,
        broker_expiry_s: float = 120.0,
        brokers_max: int = BROKERS_MAX,
        routes_max: int = ROUTES_MAX,
        data_dir: Path | None = None,
        reload: ConfigReload | None = None,
        roster: Roster | None = None,
        watch_routes: Mapping[RequestCode, OnRequest] | None = None,
    ) -> None:
        # A client that comes from another registry, or from before a restart, knows no version of ours.
        self.tables = RegistryTables(brokers_max, routes_max, secrets.randbits(VERSION_BITS - 20) << 20)
        self.holds: Holds[Request] = Holds()
        self._order_file = OrderFile(data_dir / "orderTopic.json", self.tables.order) if data_dir else None
        self._is_waking = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._roster = Roster() if roster is None else roster
        self._cluster = cluster
        self._scan_interval_s = scan_interval_s
        self._broker_expiry_s = broker_expiry_s
        self._reconfigured = asyncio.Event()
        self._log = telemetry.get_logger()
        routes: dict[RequestCode, OnRequest] = {
            RequestCode.BROKER_REGISTER: self._register,
            RequestCode.BROKER_UNREGISTER: self._unregister,
            RequestCode.ROUTE_GET: self._route_get,
            RequestCode.CLUSTER_GET: self._cluster_get,
            RequestCode.ORDER_GET: self._order_get,
            RequestCode.ORDER_SET: self._order_set,
            RequestCode.BROKER_FORGET: self._forget,
            **(watch_routes or {}),
        }
        if reload is not None:
            routes[RequestCode.CONFIG_RELOAD] = reload.handle
        self.rpc = Server(
            {code: _counted(code, handler) for code, handler in routes.items()},
            self._hello,
            FRAME_MAX_BYTES,
            on_closed=self._closed,
        )

    def load(self, accept_backup: bool = False) -> None:
        """Read the ordered topics (blocking); StorageError if their file is damaged."""
        if self._order_file is not None:
            self._order_file.load(accept_backup)
            for row in self.tables.order.forgotten.listed():
                if not row.is_back:
                    self._roster.give_up(ProcessKey("broker", row.broker))

    async def listen(self, host: str, port: int) -> int:
        """Listen on TCP and return the port as bound; StartupError (caused by an OSError) if it is taken."""
        await self.rpc.listen(host, port)
        _BROKERS.set_function(lambda: self.tables.broker_count)
        _TOPICS.set_function(lambda: self.tables.topic_count)
        _ROUTES.set_function(lambda: self.tables.route_count)
        _VERSION.set_function(lambda: self.tables.version)
        _HELD.set_function(lambda: len(self.holds))
        _ORDERED.set_function(lambda: len(self.tables.order))
        _ORDER_REFUSED.set_function(lambda: self.tables.order.refused)
        _ORDER_FAILURES.set_function(lambda: self._order_file.failures if self._order_file else 0)
        _FORGOTTEN.set_function(lambda: len(self.tables.order.forgotten))
        _CONNECTIONS.set_function(lambda: len(self.rpc.connections))
        _CONNECTIONS_REFUSED.set_function(lambda: self.rpc.refused)
        return self.rpc.port

    async def scan(self) -> None:
        """Drop silent brokers, every scan interval; runs until it is cancelled."""
        while True:
            # Not a mere sleep: a shorter interval counts from when it is set.
            self._reconfigured.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._scan_interval_s):
                    await self._reconfigured.wait()
            now = time.monotonic()
            self._dropped(self.tables.expire(now, self._broker_expiry_s), "expired")
            self._roster.expire(now, self._broker_expiry_s)

    def reconfigure(self, scan_interval_s: float, broker_expiry_s: float) -> None:
        """Look for silent brokers now, and from then on at this interval; they are after this expiry."""
        self._scan_interval_s = scan_interval_s
        self._broker_expiry_s = broker_expiry_s
        self._reconfigured.set()

    async def close(self) -> None:
        """Stop listening, close every connection, and write what is not written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.rpc.close()
        if self._order_file is not None:
            await asyncio.to_thread(self._order_file.close)

    # Requests

    def _hello(self, _connection: Connection, _hello: HelloRequest) -> HelloResponse:
        return HelloResponse(
            PROTOCOL_VERSION,
            "registry",
            self._cluster,
            time.time_ns() // 1_000_000,
            frame_max_bytes=FRAME_MAX_BYTES,
        )

    def _register(self, request: Request) -> None:
        header = request.header(BrokerRegisterRequest)
        row = BrokerRow(
            header.cluster, header.broker, header.broker_id, header.address, header.epoch, header.room
        )
        self._hear_forgotten(rows(ForgottenRow, header.forgotten))
        version = self.tables.version
        now = time.monotonic()
        kept = KeptHere(header.made_ms, header.sessions, header.retained)
        moved_from = self.tables.register(row, rows(TopicRow, header.topics), request.connection, now, kept)
        self._roster.here(ProcessKey("broker", row.broker), request.connection, now)
        if moved_from is not None and row.epoch:
            self._log.info(
                "another replica leads",
                broker=row.broker,
                address=row.address,
                epoch=row.epoch,
                before=moved_from,
            )
        elif moved_from is not None:
            self._log.warning(
                "a broker moved; two brokers of one name would take turns here",
                broker=row.broker,
                broker_id=row.broker_id,
                address=row.address,
                before=moved_from,
            )
        elif self.tables.version != version:
            self._log.info(
                "broker registered", broker=row.broker, address=row.address, topics=len(header.topics)
            )
        self._changed()
        forgotten = self.tables.order.forgotten.listed()
        request.reply(BrokerRegisterResponse(self.tables.names_in(row.cluster), forgotten))

    def _hear_forgotten(self, found: list[ForgottenRow]) -> None:
        """A broker tells what other registries were told while this one was away."""
        if not found:
            return
        over, dropped = self.tables.hear_forgotten(found)
        for broker in over:
            self._log.warning("broker given up, as another registry was told", broker=broker)
            self._roster.give_up(ProcessKey("broker", broker))
        self._dropped(dropped, "forgotten")
        self._changed()

    def _forget(self, request: Request) -> None:
        header = request.header(BrokerForgetRequest)
        lost = self.tables.lost(header.broker, time.monotonic())
        if not header.accept_loss:
            request.reply(lost)
            return
        at_ms = header.at_ms or time.time_ns() // 1_000_000
        if self.tables.forget(header.broker, at_ms):
            self._log.warning("broker given up", broker=header.broker, topics=lost.topics_total)
        self._roster.give_up(ProcessKey("broker", header.broker))
        self._changed()
        row = self.tables.order.forgotten.get(header.broker)
        assert row is not None
        answer = replace(lost, forgotten_ms=row.forgotten_ms)

        def on_saved(error: HoldMQError | None) -> None:
            if error is None:
                request.reply(answer)
            else:
                request.refuse(error)

        if self._order_file is None:
            on_saved(None)
        else:
            self._order_file.save(on_saved)

    def _unregister(self, request: Request) -> None:
        header = request.header(BrokerUnregisterRequest)
        if self.tables.unregister(header.broker, header.broker_id, header.epoch):
            self._dropped([BrokerKey(header.broker, header.broker_id)], "unregistered")
            self._roster.leave(ProcessKey("broker", header.broker), request.connection)
        request.reply(Empty())

    def _route_get(self, request: Request) -> None:
        header = request.header(RouteGetRequest)
        topics = header.topics
        if topics is not None and len(topics) > TOPICS_ASKED_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"TOPICS_ASKED_MAX: {len(topics)} topics; ask for {TOPICS_ASKED_MAX} at most",
            )
        names = None if topics is None else tuple(str(topic) for topic in topics)
        connection = request.connection
        earlier = self.holds.of(connection)
        if earlier is not None and header.hold_ms > 0:
            self.holds.cancel(earlier)
            self._answer(earlier.owner)
        if header.known_version is not None and not self.tables.changes.since(header.known_version, names):
            hold_ms = min(header.hold_ms, HOLD_MAX_MS)
            if hold_ms > 0:
                deadline = time.monotonic() + hold_ms / 1000
                if self.holds.hold(Held(request, connection, names, deadline)):
                    self._keep_time()
                    return
                _HELD_REFUSED.inc()
            request.reply(RouteGetResponse([], [], self.tables.version, unchanged=True))
            return
        self._answer_routes(request, header)

    def _answer_routes(self, request: Request, header: RouteGetRequest) -> None:
        names = None if header.topics is None else [str(topic) for topic in header.topics]
        sees = None if request.connection.grants is None else request.connection.sees
        tables, cluster = self.tables, header.cluster
        routes, next_after = tables.routes(names, header.after, sees=sees, cluster=cluster)
        brokers, forgotten = tables.brokers(cluster), tables.order.forgotten.listed()
        request.reply(RouteGetResponse(routes, brokers, tables.version, next_after, forgotten=forgotten))

    def _answer(self, request: Request) -> None:
        """Answer a request that was held: with its routes if they changed, else `unchanged`."""
        header = request.header(RouteGetRequest)
        names = None if header.topics is None else [str(topic) for topic in header.topics]
        known = header.known_version
        if known is None or self.tables.changes.since(known, names):
            self._answer_routes(request, header)
        else:
            request.reply(RouteGetResponse([], [], self.tables.version, unchanged=True))

    def _order_get(self, request: Request) -> None:
        header = request.header(OrderGetRequest)
        listed = self.tables.order.listed(header.topics, header.cluster)
        request.reply(OrderGetResponse([row for row in listed if request.connection.sees(row.topic)]))

    def _order_set(self, request: Request) -> None:
        header = request.header(OrderSetRequest)
        if self.tables.set_order(OrderRow(header.topic, header.queues), header.cluster):
            self._log.info("ordered topic set", topic=header.topic, queues=header.queues)
        self._changed()

        def on_saved(error: HoldMQError | None) -> None:
            if error is None:
                request.reply(Empty())
            else:
                request.refuse(error)

        if self._order_file is None:
            on_saved(None)
        else:
            self._order_file.save(on_saved)

    # Held requests

    def _changed(self) -> None:
        """Tell who waits, once per turn of the loop, and keep what is to be kept."""
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        for held in self.holds.wake(*self.tables.take_changed()):
            self._answer(held.owner)
        if self._order_file is not None:
            self._order_file.save()

    def _keep_time(self) -> None:
        at = self.holds.next_deadline()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        pause_s = max(EXPIRE_MIN_S, at - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for held in self.holds.expire(time.monotonic()):
            self._answer(held.owner)
        self._keep_time()

    def _cluster_get(self, request: Request) -> None:
        tables, cluster = self.tables, request.header(ClusterGetRequest).cluster
        topics = list(filter(request.connection.sees, tables.topics(cluster)))
        silent_ms = tables.silent_ms(time.monotonic(), cluster)
        request.reply(ClusterGetResponse(tables.brokers(cluster), silent_ms, topics))

    def _closed(self, connection: Connection) -> None:
        held = self.holds.of(connection)
        if held is not None:
            self.holds.cancel(held)
        self._dropped(self.tables.connection_closed(connection), "closed")
        self._roster.closed(connection, time.monotonic())

    def _dropped(self, keys: list[BrokerKey], cause: str) -> None:
        for key in keys:
            _DROPPED.labels(cause).inc()
            self._log.warning("broker dropped", broker=key.broker, broker_id=key.broker_id, cause=cause)
        if keys:
            self._changed()


def _counted(code: RequestCode, handler: OnRequest) -> OnRequest:
    count = _REQUESTS.labels(code.name.lower())

    def counted(request: Request) -> None:
        count.inc()
        try:
            handler(request)
        except HoldMQError as error:
            _REFUSED.labels(error.code.name).inc()
            raise

    return counted
