"""The registry's RPC over its tables: BROKER_REGISTER, BROKER_UNREGISTER, ROUTE_GET, CLUSTER_GET."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from prometheus_client import Counter, Gauge

from holdmq import telemetry
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest, Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.frame import HEADER_MAX_BYTES
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    PROTOCOL_VERSION,
    BrokerRegisterRequest,
    BrokerRow,
    BrokerUnregisterRequest,
    ClusterGetResponse,
    Empty,
    HelloRequest,
    HelloResponse,
    RouteGetRequest,
    RouteGetResponse,
    TopicRow,
)
from registry.core.tables import BROKERS_MAX, ROUTES_MAX, BrokerKey, Tables

FRAME_MAX_BYTES: Final = HEADER_MAX_BYTES + 4096
"""A registration is all header: no request here has a body."""
TOPICS_ASKED_MAX: Final = 20_000
"""Topics named in one ROUTE_GET: twice a broker's default topics_max."""

_BROKERS = Gauge("holdmq_registry_brokers", "Registered brokers.", registry=telemetry.METRICS)
_TOPICS = Gauge("holdmq_registry_topics", "Topics with at least one queue.", registry=telemetry.METRICS)
_ROUTES = Gauge("holdmq_registry_routes", "Rows of topicQueueTable.", registry=telemetry.METRICS)
_VERSION = Gauge("holdmq_registry_version", "Changes of any table.", registry=telemetry.METRICS)
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
    """Serves the tables. `listen`, then run `scan` in a task, then `close`."""

    def __init__(
        self,
        cluster: str,
        scan_interval_s: float = 10.0,
        broker_expiry_s: float = 120.0,
        brokers_max: int = BROKERS_MAX,
        routes_max: int = ROUTES_MAX,
    ) -> None:
        self.tables = Tables(brokers_max, routes_max)
        self._cluster = cluster
        self._scan_interval_s = scan_interval_s
        self._broker_expiry_s = broker_expiry_s
        self._log = telemetry.get_logger()
        routes: dict[RequestCode, OnRequest] = {
            RequestCode.BROKER_REGISTER: self._register,
            RequestCode.BROKER_UNREGISTER: self._unregister,
            RequestCode.ROUTE_GET: self._route_get,
            RequestCode.CLUSTER_GET: self._cluster_get,
        }
        self.rpc = Server(
            {code: _counted(code, handler) for code, handler in routes.items()},
            self._hello,
            FRAME_MAX_BYTES,
            on_closed=self._closed,
        )

    async def listen(self, host: str, port: int) -> int:
        """Listen on TCP and return the port as bound; StartupError (caused by an OSError) if it is taken."""
        await self.rpc.listen(host, port)
        _BROKERS.set_function(lambda: self.tables.broker_count)
        _TOPICS.set_function(lambda: self.tables.topic_count)
        _ROUTES.set_function(lambda: self.tables.route_count)
        _VERSION.set_function(lambda: self.tables.version)
        _CONNECTIONS.set_function(lambda: len(self.rpc.connections))
        _CONNECTIONS_REFUSED.set_function(lambda: self.rpc.refused)
        return self.rpc.port

    async def scan(self) -> None:
        """Drop silent brokers, every scan interval; runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._scan_interval_s)
            self._dropped(self.tables.expire(time.monotonic(), self._broker_expiry_s), "expired")

    async def close(self) -> None:
        """Stop listening and close every connection."""
        await self.rpc.close()

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
        row = BrokerRow(header.cluster, header.broker, header.broker_id, header.address)
        version = self.tables.version
        moved_from = self.tables.register(
            row, rows(TopicRow, header.topics), request.connection, time.monotonic()
        )
        if moved_from is not None:
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
        request.reply(Empty())

    def _unregister(self, request: Request) -> None:
        header = request.header(BrokerUnregisterRequest)
        if self.tables.unregister(header.broker, header.broker_id):
            self._dropped([BrokerKey(header.broker, header.broker_id)], "unregistered")
        request.reply(Empty())

    def _route_get(self, request: Request) -> None:
        header = request.header(RouteGetRequest)
        topics = header.topics
        if topics is not None and len(topics) > TOPICS_ASKED_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"TOPICS_ASKED_MAX: {len(topics)} topics; ask for {TOPICS_ASKED_MAX} at most",
            )
        routes, brokers = self.tables.routes(None if topics is None else [str(topic) for topic in topics])
        request.reply(RouteGetResponse(routes, brokers, self.tables.version))

    def _cluster_get(self, request: Request) -> None:
        tables = self.tables
        request.reply(
            ClusterGetResponse(tables.brokers(), tables.silent_ms(time.monotonic()), tables.topics())
        )

    def _closed(self, connection: Connection) -> None:
        self._dropped(self.tables.connection_closed(connection), "closed")

    def _dropped(self, keys: list[BrokerKey], cause: str) -> None:
        for key in keys:
            _DROPPED.labels(cause).inc()
            self._log.warning("broker dropped", broker=key.broker, broker_id=key.broker_id, cause=cause)


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
