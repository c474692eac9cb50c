"""The filter of a consumer at each broker: registered on its connection, changed by what is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from holdmq.client.replica_links import ReplicaLink
from holdmq.client.route import Link, RouteTable
from holdmq.client.subscriptions import TagFilter
from holdmq.errors import HoldMQError
from holdmq.rpc.connection import Connection, Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import FilterSetRequest, FilterTerm

TIMEOUT_S: Final = 15.0
"""How long a broker may take to answer for a filter: it is registered anew then."""


class _Registered(NamedTuple):
    connection: Connection
    filter_id: int
    terms: frozenset[FilterTerm]


class RegisteredFilters:
    """Says `on_failed(link's name, error)` when a filter was not taken; its next use registers it anew."""

    def __init__(self, routes: RouteTable, on_failed: Callable[[str, HoldMQError], None]) -> None:
        self._routes = routes
        self._on_failed = on_failed
        self._known: dict[str, _Registered] = {}

    def on(
        self, link: Link | ReplicaLink, connection: Connection, wanted: Mapping[str, TagFilter]
    ) -> int | None:
        """The id of the filter of these topics on this connection, up to date; None = everything passes."""
        if all(tag_filter.is_everything for tag_filter in wanted.values()):
            return None
        terms: set[FilterTerm] = set()
        for topic, tag_filter in wanted.items():
            route = self._routes.get(topic)
            terms.update(tag_filter.terms(topic, 1 if route is None else route.key_levels))
        broker = link.name
        known = self._known.get(broker)
        if known is None or known.connection is not connection:
            known = _Registered(connection, next(link.filter_ids), frozenset())
        if terms != known.terms:

            def on_reply(reply: Reply | HoldMQError) -> None:
                if isinstance(reply, HoldMQError):
                    self.forget(broker)
                    self._on_failed(broker, reply)

            request = FilterSetRequest(
                known.filter_id, sorted(terms - known.terms), sorted(known.terms - terms)
            )
            connection.request(RequestCode.FILTER_SET, request, on_reply, TIMEOUT_S)
        self._known[broker] = known._replace(terms=frozenset(terms))
        return known.filter_id

    def forget(self, broker: str) -> None:
        """Register it anew with the next use: the peer of this link's name does not know it."""
        self._known.pop(broker, None)
