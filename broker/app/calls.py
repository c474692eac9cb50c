"""What is asked of a broker as a whole: HELLO, HEARTBEAT, bounds, status, connections, replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from broker.alerts.core.shard_copies import KnowsCopies
from broker.app.subscribers import READS_SHOWN_MAX, SHOWN_MAX, ConnectionActivity, Subscriptions
from broker.kernel.request_family import RequestFamily
from broker.produce.bounds import MessageBounds
from broker.topics.core.table import TopicTable
from holdmq.config.changes import BROKER
from holdmq.config.model import Config
from holdmq.rpc.config_reload import ConfigReload, Reload
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.connection_kinds import kinds_of
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
)
from holdmq.wire.replica_headers import ReplicaListResponse, ReplicaRow
from storage.api.store import OrderedStore


class Identity(NamedTuple):
    """The name and cluster of a broker, and the largest record that it takes."""

    name: str
    cluster: str
    record_max_bytes: int

    @classmethod
    def of(cls, config: Config) -> Identity:
        """As a configuration says."""
        return cls(config.broker.name, config.cluster.name, config.storage.record_max_bytes)

    def welcome(self, store: OrderedStore) -> HelloResponse:
        """What HELLO is answered with at a broker, or a copy of it, over an open store."""
        return HelloResponse(
            PROTOCOL_VERSION,
            self.name,
            self.cluster,
            time.time_ns() // 1_000_000,
            store.store_id,
            store.epoch,
            self.record_max_bytes,
            self.record_max_bytes + FRAME_OVERHEAD_BYTES,
        )


class BrokerCalls(RequestFamily):
    """Handles these for one broker.

    `connections` are all, with what they said in HELLO (None = nothing yet); `numbers` are the broker's
    metrics; `gateway_heard` is told of each HEARTBEAT of a gateway; `subscriptions` are those of each
    connection in consumer groups, `activity` what else it does; `copies` says where the replicas of its shard
    are; `bounds` are what messages must be; `reload` has the process read its configuration again; `admit`
    raises RemoteError for a connection that may not come in.
    """

    def __init__(
        self,
        identity: Identity,
        store: OrderedStore,
        topics: TopicTable,
        connections: Mapping[Connection, HelloRequest | None],
        *,
        numbers: Callable[[], Mapping[str, int | float]],
        gateway_heard: Callable[[Connection], None],
        subscriptions: Callable[[], Subscriptions],
        activity: Callable[[Connection], ConnectionActivity],
        copies: KnowsCopies,
        admit: Callable[[Connection], None],
        bounds: MessageBounds,
        reload: Reload,
    ) -> None:
        self._activity = activity
        self._admit = admit
        self._identity = identity
        self._store = store
        self._topics = topics
        self._connections = connections
        self._numbers = numbers
        self._gateway_heard = gateway_heard
        self._subscriptions = subscriptions
        self._copies = copies
        self._bounds = bounds
        self._config_reload = ConfigReload(BROKER, identity.name, reload)
        self._states: dict[Connection, dict[str, Any]] = {}

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.HEARTBEAT: self._heartbeat,
            RequestCode.CONFIG_RELOAD: self._config_reload.handle,
            RequestCode.QUEUE_BOUNDS: self._queue_bounds,
            RequestCode.BROKER_STATUS: self._status,
            RequestCode.CONNECTION_LIST: self._list_connections,
            RequestCode.REPLICA_LIST: self._list_replicas,
        }

    def closed(self, connection: Connection) -> None:
        self._states.pop(connection, None)

    def hello(self, connection: Connection, _hello: HelloRequest) -> HelloResponse:
        """What HELLO is answered with. Raises RemoteError for one connection too many."""
        self._admit(connection)
        welcome = self._identity.welcome(self._store)
        return replace(welcome, message_bytes_min=self._bounds.bytes_min)

    def _heartbeat(self, request: Request) -> None:
        state = request.header(HeartbeatRequest).state
        hello = self._connections.get(request.connection)
        if hello is not None and hello.role == "gateway":
            self._gateway_heard(request.connection)
        self._states[request.connection] = {
            k: v for k, v in state.items() if isinstance(v, (int, float, str))
        }
        request.reply(Empty())

    def _queue_bounds(self, request: Request) -> None:
        bounds = []
        for name in request.header(QueueBoundsRequest).topics:
            topic = self._topics.get(name)
            queue_ids = range(topic.read_queues if topic is not None else 0)
            bounds += [QueueBounds(name, q, *self._store.bounds(name, q)) for q in queue_ids]
        request.reply(QueueBoundsResponse(bounds, self._store.epoch))

    def _status(self, request: Request) -> None:
        writable, reason = self._store.state()
        request.reply(
            BrokerStatusResponse(
                self._identity.name,
                self._identity.cluster,
                self._store.store_id,
                self._store.epoch,
                self._store.first_position,
                self._store.confirmed_position,
                writable,
                reason,
                {**self._numbers(), **self._store.numbers()},
            )
        )

    def _list_replicas(self, request: Request) -> None:
        rows = [ReplicaRow(replica, address) for replica, address in self._copies.addresses.items()]
        request.reply(ReplicaListResponse(self._copies.replica, rows))

    def _list_connections(self, request: Request) -> None:
        rows = []
        subscribed = self._subscriptions()
        for connection, hello in self._connections.items():
            if hello is not None:
                wanted = subscribed.get(connection, [])
                activity = self._activity(connection)
                kinds = kinds_of(
                    hello.role,
                    produces=bool(activity.produces),
                    is_member=bool(wanted),
                    reads={kind for kind, _ in activity.reads},
                )
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
                        connection.principal,
                        kinds,
                        activity.produces,
                        sorted({topic for _, topic in activity.reads})[:READS_SHOWN_MAX],
                    )
                )
        request.reply(ConnectionListResponse(rows))


def _admitted(connection: Connection) -> dict[str, Any]:
    return {} if connection.grants is None else {"principal": connection.principal}
