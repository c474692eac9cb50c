"""What the registry and the brokers say of themselves, as the API's rows.

All of it is asked over the internal RPC: brokers from a registry, the rest from each broker, at most once
per `FRESH_S` however many ask. A broker that does not answer is a row that says so, never an error.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any, Final

from console.answers import second_text
from holdmq.errors import HoldMQError, TransportError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import (
    BrokerRow,
    BrokerStatusResponse,
    ClusterGetResponse,
    ConnectionListResponse,
    ConnectionRow,
    Empty,
    TopicListRequest,
    TopicListResponse,
    TopicRow,
    TopicStats,
)

FRESH_S: Final = 0.9
"""An answer may be this old: less than the second between two events of a stream."""

ASK_S: Final = 2.0
"""Time for one answer: a broker that is up answers in milliseconds."""

OVERVIEW_TOPICS_MAX: Final = 200
"""Topics of an event, those with most messages: a page of more rows is no overview. The API has all."""

OVERVIEW_CONNECTIONS_MAX: Final = 200
"""Connections of an event; the API has all."""


class _Broker:
    """One broker's answers of one round."""

    __slots__ = ("connections", "error", "row", "stats", "status", "topics")

    def __init__(self, row: BrokerRow) -> None:
        self.row = row
        self.error: HoldMQError | None = None
        self.status: BrokerStatusResponse | None = None
        self.topics: list[TopicRow] = []
        self.stats: list[TopicStats] = []
        self.connections: list[ConnectionRow] = []


class Cluster:
    """Asks the cluster whose registries are `registries` (host:port each). Call `open` before use."""

    def __init__(self, registries: list[str]) -> None:
        self._client_id = f"console-{socket.gethostname()}-{os.getpid()}"
        self._registries = [self._client(address) for address in registries]
        self._brokers: dict[str, Client] = {}
        self._turn = asyncio.Lock()
        self._asked_at = -FRESH_S
        self._view: dict[str, list[dict[str, Any]]] = {}
        self._error: HoldMQError | None = None

    async def open(self) -> None:
        """Begin connecting; returns at once."""
        for registry in self._registries:
            registry.start()

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(c.close() for c in [*self._registries, *self._brokers.values()]))

    async def listing(self, name: str) -> dict[str, Any]:
        """Return ``{name: rows}`` for topics, brokers, gateways or connections, with a `notice` if need be.

        Raises HoldMQError when no registry answers.
        """
        await self._refresh()
        if self._error is not None:
            raise self._error
        return self._noticed({name: self._view[name]})

    async def overview(self) -> dict[str, Any]:
        """Return all four lists, cut to what a page shows, and their whole `counts`; raises nothing.

        When no registry answers the lists are empty and `notice` says why.
        """
        await self._refresh()
        view: dict[str, list[dict[str, Any]]] = (
            self._view
            if self._error is None
            else {name: [] for name in ("topics", "brokers", "gateways", "connections")}
        )
        busiest = sorted(view["topics"], key=lambda t: -int(t["messages_in"]))
        answer: dict[str, Any] = {
            "topics": busiest[:OVERVIEW_TOPICS_MAX],
            "brokers": view["brokers"],
            "gateways": view["gateways"],
            "connections": view["connections"][:OVERVIEW_CONNECTIONS_MAX],
            "counts": {name: len(found) for name, found in view.items()},
        }
        return self._noticed(answer)

    def _noticed(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self._error is not None:
            answer["notice"] = f"the cluster cannot be asked: {self._error}"
            return answer
        away = [b["broker"] for b in self._view["brokers"] if not b["reachable"]]
        if not self._view["brokers"]:
            answer["notice"] = "no broker has registered yet"
        elif away:
            answer["notice"] = f"no answer from {', '.join(away)}: what only they know is missing"
        return answer

    async def _refresh(self) -> None:
        async with self._turn:
            if time.monotonic() - self._asked_at < FRESH_S:
                return
            try:
                known = await self._live_brokers()
                await self._follow(known)
                asked = await asyncio.gather(*(self._ask_broker(row) for row in known))
                self._view = _rows_of(list(asked))
                self._error = None
            except HoldMQError as error:
                self._error = error
            self._asked_at = time.monotonic()

    async def _live_brokers(self) -> list[BrokerRow]:
        last: HoldMQError = TransportError("no registry is configured")
        # A connected one first: the others would each cost the whole wait.
        for registry in sorted(self._registries, key=lambda r: r.connection is None):
            try:
                answer = (await registry.call(RequestCode.CLUSTER_GET, Empty(), ASK_S)).header(
                    ClusterGetResponse
                )
                return rows(BrokerRow, answer.brokers)
            except HoldMQError as error:
                last = error
        raise last

    async def _follow(self, known: list[BrokerRow]) -> None:
        """Have one connection to each of these brokers, and to no other."""
        names = {row.broker for row in known}
        for gone in [name for name in self._brokers if name not in names]:
            await self._brokers.pop(gone).close()
        for row in known:
            client = self._brokers.get(row.broker)
            if client is None:
                self._brokers[row.broker] = self._client(row.address)
            else:
                client.set_address(row.address)

    async def _ask_broker(self, row: BrokerRow) -> _Broker:
        found = _Broker(row)
        client = self._brokers[row.broker]

        async def ask(code: RequestCode, request: Header) -> Any:
            return await client.call(code, request, ASK_S)

        try:
            status, listed, connected = await asyncio.gather(
                ask(RequestCode.BROKER_STATUS, Empty()),
                ask(RequestCode.TOPIC_LIST, TopicListRequest()),
                ask(RequestCode.CONNECTION_LIST, Empty()),
            )
            found.status = status.header(BrokerStatusResponse)
            topics = listed.header(TopicListResponse)
            found.topics = rows(TopicRow, topics.topics)
            found.stats = rows(TopicStats, topics.stats)
            found.connections = rows(ConnectionRow, connected.header(ConnectionListResponse).connections)
        except HoldMQError as error:
            found.error = error
        return found

    def _client(self, address: str) -> Client:
        return Client(address, "console", self._client_id, software="holdmq console")


def _rows_of(brokers: list[_Broker]) -> dict[str, list[dict[str, Any]]]:
    connections = [_connection_row(b.row.broker, connection) for b in brokers for connection in b.connections]
    return {
        "topics": _topic_rows(brokers),
        "brokers": [_broker_row(b) for b in sorted(brokers, key=lambda b: b.row.broker)],
        "gateways": _gateway_rows(connections),
        "connections": sorted(connections, key=lambda c: (c["role"], c["client_id"], c["broker"])),
    }


def _topic_rows(brokers: list[_Broker]) -> list[dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for broker in brokers:
        for row, stats in zip(broker.topics, broker.stats, strict=True):
            topic = topics.setdefault(
                row.topic,
                {
                    "topic": row.topic,
                    "kind": row.kind,
                    "read_queues": 0,
                    "write_queues": 0,
                    "brokers": [],
                    **dict.fromkeys(TopicStats._fields[1:], 0),
                },
            )
            topic["read_queues"] += row.read_queues
            topic["write_queues"] += row.write_queues
            topic["brokers"].append(broker.row.broker)
            for name in TopicStats._fields[1:]:
                topic[name] += getattr(stats, name)
    return [topics[name] for name in sorted(topics)]


def _broker_row(broker: _Broker) -> dict[str, Any]:
    status = broker.status if broker.error is None else None
    return {
        "broker": broker.row.broker,
        "cluster": broker.row.cluster,
        "address": broker.row.address,
        "reachable": status is not None,
        "writable": status is not None and status.writable,
        "reason": str(broker.error or "") if status is None else status.reason if not status.writable else "",
        "log_bytes": 0 if status is None else status.confirmed_position - status.first_position,
        "confirmed_position": 0 if status is None else status.confirmed_position,
        "connections": len(broker.connections),
        "numbers": {} if status is None else status.numbers,
    }


def _connection_row(broker: str, row: ConnectionRow) -> dict[str, Any]:
    return {
        "broker": broker,
        "role": row.role,
        "client_id": row.client_id,
        "address": row.address,
        "language": row.language,
        "software": row.software,
        "connected": second_text(row.connected_ms // 1000),
        "state": row.state,
    }


def _gateway_rows(connections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per gateway worker, which has a connection to every broker."""
    workers: dict[str, dict[str, Any]] = {}
    for row in connections:
        if row["role"] != "gateway":
            continue
        worker = workers.setdefault(
            row["client_id"],
            {
                "client_id": row["client_id"],
                "address": row["address"],
                "software": row["software"],
                "connected": row["connected"],
                "brokers": [],
                "state": row["state"],
            },
        )
        worker["brokers"].append(row["broker"])
        worker["connected"] = min(worker["connected"], row["connected"])
    return [workers[name] for name in sorted(workers)]
