"""Questions and orders to the whole cluster: what the console and the command line show and do."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from holdmq.client.bounds import Bounds, queue_bounds
from holdmq.client.route import RouteTable
from holdmq.client.shared_calls import SharedCalls
from holdmq.client.statistics import StatisticsCalls
from holdmq.client.topics import TopicCalls
from holdmq.errors import HoldMQError, TransportError
from holdmq.message import TopicQueue
from holdmq.rpc.connection import Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import (
    BrokerRow,
    BrokerStatusResponse,
    ConnectionListResponse,
    ConnectionRow,
    Empty,
    TopicListRequest,
    TopicListResponse,
    TopicRow,
    TopicStats,
)

ADMIN_TIMEOUT_S: Final = 5.0
"""How long one broker may take: it answers from memory."""

T = TypeVar("T")


@dataclass(slots=True)
class ClusterView:
    """What a registry knows: live brokers, the ms since each name registered, topics."""

    brokers: list[BrokerRow]
    silent_ms: dict[str, int]
    topics: list[str]


@dataclass(slots=True)
class TopicView:
    """One topic over all brokers that answered. `rows`: its settings at each broker; counts are sums."""

    topic: str
    rows: dict[str, TopicRow] = field(default_factory=dict)
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    messages_stored: int = 0

    @property
    def queues(self) -> int:
        """Queues to read, at all brokers together."""
        return sum(row.read_queues for row in self.rows.values())

    def add(self, broker: str, row: TopicRow, stats: TopicStats) -> None:
        """Count one broker's part."""
        self.rows[broker] = row
        self.messages_in += stats.messages_in
        self.bytes_in += stats.bytes_in
        self.messages_out += stats.messages_out
        self.bytes_out += stats.bytes_out
        self.messages_stored += stats.messages_stored


class Admin(TopicCalls, SharedCalls, StatisticsCalls):
    """Asks registries and brokers. Use it as `async with Admin(["host:9876"]) as admin`, on one loop.

    Answers that are per broker hold, for a broker that did not answer, its error. `security`: credentials
    and TLS.
    """

    def __init__(
        self,
        registries: Sequence[str] = (),
        *,
        client_id: str = "",
        role: str = "console",
        routes: RouteTable | None = None,
        security: Security | None = None,
    ) -> None:
        self.routes = routes
        self._owns_routes = routes is None
        if routes is None:
            name = client_id or f"admin-{secrets.token_hex(8)}"
            self.routes = RouteTable(registries, name, role=role, security=security)

    async def __aenter__(self) -> Self:
        self._table().start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect."""
        if self._owns_routes:
            await self._table().close()

    def _table(self) -> RouteTable:
        assert self.routes is not None
        return self.routes

    async def cluster(self) -> ClusterView:
        """The registry's view; TransportError if no registry answers."""
        answer = await self._table().cluster()
        return ClusterView(rows(BrokerRow, answer.brokers), answer.silent_ms, [str(t) for t in answer.topics])

    async def topics(self, include_system: bool = False) -> list[TopicView]:
        """All topics by name, over the brokers that answer; raises the first error if none does."""
        views: dict[str, TopicView] = {}
        for broker, reply in _some(
            await self._ask_all(RequestCode.TOPIC_LIST, TopicListRequest(include_system))
        ):
            answer = reply.header(TopicListResponse)
            for row, stats in zip(rows(TopicRow, answer.topics), rows(TopicStats, answer.stats), strict=True):
                views.setdefault(row.topic, TopicView(row.topic)).add(broker, row, stats)
        return [views[name] for name in sorted(views)]

    async def queue_bounds(self, topics: Iterable[str]) -> dict[TopicQueue, Bounds]:
        """First and end offset of every queue of these topics; unknown topics have none."""
        table = self._table()
        names = list(topics)
        table.follow(names)
        await table.refresh()
        routes = [route for name in names if (route := table.get(name)) is not None]
        return await queue_bounds(table, [q for route in routes for q in route.read_queues], ADMIN_TIMEOUT_S)

    async def broker_status(self) -> dict[str, BrokerStatusResponse | HoldMQError]:
        """Every live broker's own numbers."""
        answers = await self._ask_all(RequestCode.BROKER_STATUS, Empty())
        return {
            broker: reply if isinstance(reply, HoldMQError) else reply.header(BrokerStatusResponse)
            for broker, reply in answers.items()
        }

    async def connections(self) -> dict[str, list[ConnectionRow] | HoldMQError]:
        """Who is connected to every live broker."""
        answers = await self._ask_all(RequestCode.CONNECTION_LIST, Empty())
        return {
            broker: reply
            if isinstance(reply, HoldMQError)
            else rows(ConnectionRow, reply.header(ConnectionListResponse).connections)
            for broker, reply in answers.items()
        }

    async def _ask_all(
        self, code: RequestCode, header: Header, timeout_s: float | None = None
    ) -> dict[str, Reply | HoldMQError]:
        """One answer or error per live broker; TransportError if there is none."""
        table = self._table()
        await table.refresh()
        names = list(table.brokers())
        if not names:
            raise TransportError("no broker is registered")

        async def ask(broker: str) -> Reply | HoldMQError:
            try:
                return await table.link(broker).client.call(code, header, timeout_s or ADMIN_TIMEOUT_S)
            except HoldMQError as error:
                return error

        return dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))


def _some(answers: dict[str, Reply | HoldMQError]) -> list[tuple[str, Reply]]:
    """The answers, without the brokers that failed; raises the first error if all did."""
    good = [(broker, reply) for broker, reply in answers.items() if isinstance(reply, Reply)]
    if good:
        return good
    raise next(error for error in answers.values() if isinstance(error, HoldMQError))
