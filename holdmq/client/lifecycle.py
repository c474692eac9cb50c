"""The life of what works over a RouteTable: one of its own, which ends with it, or one that it shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from holdmq.client.route import REROUTE_S, Link, RouteTable
from holdmq.errors import UsageError

if TYPE_CHECKING:
    from holdmq.rpc.connection import Connection
    from holdmq.rpc.security import Security
    from holdmq.wire.headers import HelloResponse


class RoutedClient:
    """Works over a RouteTable of its own, or over `routes`, which the caller starts and closes.

    Its own is made with the other arguments, and closed with this object.
    """

    def __init__(
        self,
        registries: Sequence[str],
        client_id: str,
        routes: RouteTable | None,
        security: Security | None,
        *,
        role: str = "client",
        reroute_s: float = REROUTE_S,
    ) -> None:
        self._owns_routes = routes is None
        if routes is None:
            routes = RouteTable(registries, client_id, role=role, security=security, reroute_s=reroute_s)
        self.routes = routes
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self.routes.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect from the brokers and registries; `routes` that are shared stay open."""
        if self._owns_routes:
            await self.routes.close()


class RoutedConsumer(RoutedClient, ABC):
    """Is told by its RouteTable of connections and routes, from `_attach` until `_detach`."""

    _is_attached = False

    def _attach(self) -> None:
        self._is_attached = True
        self.routes.on_up.append(self._link_up)
        self.routes.on_routes.append(self._routes_changed)

    def _detach(self) -> None:
        """Hear nothing more of the routes; without `_attach` nothing happens."""
        if self._is_attached:
            self._is_attached = False
            self.routes.on_up.remove(self._link_up)
            self.routes.on_routes.remove(self._routes_changed)

    @abstractmethod
    def _link_up(self, link: Link, connection: Connection, hello: HelloResponse) -> None:
        """Go on with a broker whose connection is there (again)."""

    @abstractmethod
    def _routes_changed(self, changed: frozenset[str]) -> None:
        """Go on with topics whose routes are others than before."""


def check_settings(start: str, concurrency: int) -> None:
    """Raise UsageError for a first start, or a number of handlers at once, that no group can have."""
    if start not in ("latest", "earliest"):
        raise UsageError(f"start {start!r} is not latest or earliest")
    if concurrency < 1:
        raise UsageError(f"concurrency {concurrency} is below 1")
