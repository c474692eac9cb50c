"""Questions and orders to the whole cluster: what the console and the command line show and do."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeVar

from holdmq.client.bounds import Bounds, queue_bounds
from holdmq.client.cluster_calls import read_each
from holdmq.client.pages import Column, ColumnValue, column_of, merged, ranked
from holdmq.client.route import RouteTable
from holdmq.client.shared_calls import SharedCalls
from holdmq.client.statistics import StatisticsCalls
from holdmq.client.topics import TopicCalls
from holdmq.errors import HoldMQError, UsageError
from holdmq.message import TopicQueue
from holdmq.names.search import names_found
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
from holdmq.wire.replica_headers import ReplicaListResponse, ReplicaRow

T = TypeVar("T")

TOPIC_COLUMNS: Final = ("topic", "kind", "write_queues", "read_queues", *TopicStats._fields[1:])
"""What pages of topics may be sorted by."""
ADMIN_TIMEOUT_S: Final = 5.0
"""How long one broker may take: it answers from memory."""
REPLICAS_TIMEOUT_S: Final = 2.0
"""How long one broker may take when it is asked for its replicas: they are looked at when it is gone."""


@dataclass(slots=True)
class ClusterView:
    """What a registry knows: live brokers, the ms since each name registered, topics."""

    brokers: list[BrokerRow]
    silent_ms: dict[str, int]
    topics: list[str]

    def clusters(self) -> dict[str, list[str]]:
        """Names of brokers by cluster, both in order: several clusters may share registries."""
        found: dict[str, set[str]] = {}
        for row in self.brokers:
            found.setdefault(row.cluster, set()).add(row.broker)
        return {name: sorted(found[name]) for name in sorted(found)}


@dataclass(slots=True)
class TopicView:
    """One topic over all brokers that answered. `rows`: its settings at each broker; counts are sums."""

    topic: str
    rows: dict[str, TopicRow] = field(default_factory=dict)
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    messages_replayed: int = 0
    bytes_replayed: int = 0
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
        self.messages_replayed += stats.messages_replayed
        self.bytes_replayed += stats.bytes_replayed
        self.messages_stored += stats.messages_stored


class TopicPage(NamedTuple):
    """A part of the topics, in the order that was asked for; `total` of them matched."""

    topics: list[TopicView]
    total: int


class Admin(TopicCalls, SharedCalls, StatisticsCalls):
    """Asks registries and brokers. Use it as `async with Admin(["host:9876"]) as admin`, on one loop.

    Answers that are per broker hold, for a broker that did not answer, its error. `security`: credentials
    and TLS. `tenant`: topics and groups are named in its words, and lists have what is its own.
    """

    def __init__(
        self,
        registries: Sequence[str] = (),
        *,
        client_id: str = "",
        role: str = "console",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        tenant: str = "",
    ) -> None:
        super().__init__(
            "admin", registries, client_id, role, routes, security, ADMIN_TIMEOUT_S, cluster, tenant
        )

    async def call(
        self, code: RequestCode, broker: str, header: Header, timeout_s: float | None = None
    ) -> Reply:
        """Ask one broker, once: whoever looks at the cluster wants to see that a broker is away."""
        client = self.routes.link(broker).client
        return await client.call(code, header, self.timeout_s if timeout_s is None else timeout_s)

    async def cluster(self) -> ClusterView:
        """The registry's view; TransportError if no registry answers."""
        answer = await self.routes.cluster()
        return ClusterView(rows(BrokerRow, answer.brokers), answer.silent_ms, [str(t) for t in answer.topics])

    async def topics(
        self, include_system: bool = False, names: Collection[str] | None = None
    ) -> list[TopicView]:
        """Topics by name, over the brokers that answer; raises the first error if none does.

        `names`: only these, None = all.
        """
        return _views(await self.topics_of_brokers(include_system, names))

    async def topic_page(
        self,
        search: str = "",
        sort: str = "topic",
        offset: int = 0,
        count: int = 100,
        *,
        include_system: bool = False,
    ) -> TopicPage:
        """Return `count` topics from the `offset`th on, over the brokers that answer, without the others.

        `search`: only those that have it in their names, in capitals or not. `sort`: one of TOPIC_COLUMNS,
        with - before it the largest first. Brokers send that column of all topics, and rows for the page.
        Raises UsageError for another `sort`, and the first error if no broker answers.
        """
        column = sort.removeprefix("-")
        if column not in TOPIC_COLUMNS:
            raise UsageError(f"sort {sort!r}: one of {', '.join(TOPIC_COLUMNS)} is possible")
        request = TopicListRequest(include_system, None, search, column)
        answers = _some(
            await self._read_all(RequestCode.TOPIC_LIST, request, partial(_topic_column, request))
        )
        names = ranked(merged((found for _, found in answers), operator.add), is_descending=sort[0] == "-")
        shown = names[offset : offset + count]
        if not shown:
            return TopicPage([], len(names))
        # A broker that was silent a moment ago would be waited for again.
        asked = dict.fromkeys((broker for broker, _ in answers), TopicListRequest(True, shown))
        replies = await self._ask_each(RequestCode.TOPIC_LIST, asked)
        views = {view.topic: view for view in _views(read_each(replies, _topic_rows))}
        return TopicPage([views[name] for name in shown if name in views], len(names))

    async def topic_column(
        self, column: str, search: str = "", *, include_system: bool = False
    ) -> dict[str, ColumnValue]:
        """Return of each topic its name and `column`, one of TOPIC_COLUMNS, over the brokers that answer.

        Counts are sums; `search` as for `topic_page`. Raises the first error if no broker answers.
        """
        request = TopicListRequest(include_system, None, search, column)
        answers = await self._read_all(RequestCode.TOPIC_LIST, request, partial(_topic_column, request))
        return merged((found for _, found in _some(answers)), operator.add)

    async def topics_of_brokers(
        self, include_system: bool = False, names: Collection[str] | None = None, *, search: str = ""
    ) -> dict[str, list[tuple[TopicRow, TopicStats]] | HoldMQError]:
        """Every live broker's topics, with its counts.

        `names`: only these, None = all. `search`: only those that have it in their names, in capitals or not.
        """
        request = TopicListRequest(include_system, None if names is None else list(names), search)
        answers = await self._read_all(RequestCode.TOPIC_LIST, request, _topic_rows)
        # A broker that does not know these two tells of all topics.
        return {
            broker: found
            if isinstance(found, HoldMQError)
            else [one for one in found if names_found([one[0].topic], names, search)]
            for broker, found in answers.items()
        }

    async def queue_bounds(self, topics: Iterable[str]) -> dict[TopicQueue, Bounds]:
        """First and end offset of every queue of these topics; unknown topics have none."""
        names = list(topics)
        self.routes.follow(names)
        await self.routes.refresh()
        routes = [route for name in names if (route := self.routes.get(name)) is not None]
        queues = [queue for route in routes for queue in route.read_queues]
        return await queue_bounds(self.routes, queues, self.timeout_s)

    async def broker_status(self) -> dict[str, BrokerStatusResponse | HoldMQError]:
        """Every live broker's own numbers."""
        return await self._read_all(
            RequestCode.BROKER_STATUS, Empty(), lambda reply: reply.header(BrokerStatusResponse)
        )

    async def replicas(self) -> dict[str, dict[str, str] | HoldMQError]:
        """Give the replicas of every live broker's shard: id → host:port; none = it has one copy."""

        def read(reply: Reply) -> dict[str, str]:
            return dict(rows(ReplicaRow, reply.header(ReplicaListResponse).replicas))

        return await self._read_all(RequestCode.REPLICA_LIST, Empty(), read, REPLICAS_TIMEOUT_S)

    async def connections(self) -> dict[str, list[ConnectionRow] | HoldMQError]:
        """List the connections of every live broker."""

        def read(reply: Reply) -> list[ConnectionRow]:
            return rows(ConnectionRow, reply.header(ConnectionListResponse).connections)

        return await self._read_all(RequestCode.CONNECTION_LIST, Empty(), read)


def _topic_rows(reply: Reply) -> list[tuple[TopicRow, TopicStats]]:
    answer = reply.header(TopicListResponse)
    return list(zip(rows(TopicRow, answer.topics), rows(TopicStats, answer.stats), strict=True))


def _topic_column(asked: TopicListRequest, reply: Reply) -> Column:
    answer = reply.header(TopicListResponse)
    if answer.names is not None and answer.values is not None:
        return column_of(answer.names, answer.values)
    # A broker of before columns: whole rows of all topics.
    found = {row.topic: (row, stats) for row, stats in _topic_rows(reply)}
    at = 0 if asked.column in TopicRow._fields else 1
    return {name: getattr(found[name][at], asked.column) for name in names_found(found, None, asked.search)}


def _views(
    answers: Mapping[str, list[tuple[TopicRow, TopicStats]] | HoldMQError],
) -> list[TopicView]:
    views: dict[str, TopicView] = {}
    for broker, found in _some(answers):
        for row, stats in found:
            views.setdefault(row.topic, TopicView(row.topic)).add(broker, row, stats)
    return [views[name] for name in sorted(views)]


def _some(answers: Mapping[str, T | HoldMQError]) -> list[tuple[str, T]]:
    """The answers, without the brokers that failed; raises the first error if all did."""
    good = [(broker, found) for broker, found in answers.items() if not isinstance(found, HoldMQError)]
    if good:
        return good
    raise next(error for error in answers.values() if isinstance(error, HoldMQError))
