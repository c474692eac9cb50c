"""The life of what works over a RouteTable: one of its own, which ends with it, or one that it shares."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, Self

import structlog

from holdmq.client.names import check_group
from holdmq.client.route import REROUTE_S, Link, RouteTable
from holdmq.errors import UsageError

if TYPE_CHECKING:
    from holdmq.rpc.connection import Connection
    from holdmq.rpc.security import Security
    from holdmq.wire.headers import HelloResponse

CONCURRENCY: Final = 20
"""Handlers at once (RocketMQ's consumeThreadMin)."""
START_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 30.0
"""How long `close` waits for handlers, and for what they settled."""
MISSING_S: Final = 1.0
"""How often routes are asked for while a wanted topic has none."""

FirstStart = Literal["earliest", "latest"]
"""Where a group begins in a topic in which it never was; later starts go on where it is."""
StartAt = FirstStart | datetime
"""The same, or with the messages that were stored from a time on; the time needs its zone."""

log = structlog.get_logger("holdmq.client")


class RoutedClient:
    """Works over a RouteTable of its own, or over `routes`, which the caller starts and closes.

    Its own is made with the other arguments, and closed with this object. `tenant`: topics and groups are
    named in this tenant's words (docs/tenants.md), "" = in whole names, or as `routes` have it. `cluster`:
    only brokers of this one are known, "" = those of all, or as `routes` have it.
    """

    def __init__(
        self,
        registries: Sequence[str],
        client_id: str,
        routes: RouteTable | None,
        security: Security | None,
        cluster: str,
        tenant: str,
        *,
        role: str = "client",
        reroute_s: float = REROUTE_S,
    ) -> None:
        self._owns_routes = routes is None
        if routes is None:
            routes = RouteTable(
                registries,
                client_id,
                role=role,
                security=security,
                reroute_s=reroute_s,
                cluster=cluster,
                tenant=tenant,
            )
        elif tenant and tenant != routes.tenant:
            raise UsageError(f"the shared routes are of the tenant {routes.tenant!r}, not {tenant!r}")
        elif cluster and cluster != routes.cluster_name:
            raise UsageError(f"the shared routes are of the cluster {routes.cluster_name!r}, not {cluster!r}")
        self.routes = routes
        self.tenant = routes.tenant
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self.routes.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, timeout_s: float | None = None) -> None:
        """Finish what is in hand, within `timeout_s` (None = its own deadlines), then disconnect.

        `routes` that are shared stay open. Closing again changes nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._finish(timeout_s)
        finally:
            # Who is cancelled while it waits, or cannot finish, leaves no connection behind.
            if self._owns_routes:
                await self.routes.close()

    async def _finish(self, timeout_s: float | None) -> None:
        """End what works over the routes; a subclass that has nothing of the kind leaves it at this."""


class RoutedConsumer(RoutedClient, ABC):
    """Is told by its RouteTable of connections and routes, from `_attach` until it is closed."""

    _is_attached = False

    def _attach(self) -> None:
        self._is_attached = True
        self.routes.on_up.append(self._link_up)
        self.routes.on_routes.append(self._routes_changed)

    async def _finish(self, timeout_s: float | None) -> None:
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


class GroupConsumer(RoutedConsumer):
    """Is a member of a group from `start` until `close`, each of which happens once.

    `_topics` are those whose routes it needs. `_changed` is set by whatever may let `start` return.
    """

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        client_id: str,
        routes: RouteTable | None,
        security: Security | None,
        cluster: str,
        tenant: str,
        *,
        start: StartAt | None,
        concurrency: int,
    ) -> None:
        check_group(group)
        check_start(start)
        if concurrency < 1:
            raise UsageError(f"concurrency {concurrency} is below 1")
        super().__init__(registries, client_id, routes, security, cluster, tenant)
        self.routes.check_name(group)
        self.group = group
        self.client_id = client_id
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._keep_s = MISSING_S

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Become a member, and return when it is known at every broker that answers where to begin.

        From then on nothing that is sent is missed. A topic that does not exist yet is read from its
        beginning once it does. Raises TransportError when no registry answers, RemoteError when a broker
        does not take this member (MODE_CONFLICT, GROUP_DISABLED, no permission), StorageError or UsageError
        when the offset file of a broadcast member cannot be used; the consumer is closed then.
        """
        if self._keeper is not None or self._is_closed:
            raise UsageError("a consumer is started once")
        if not self._topics:
            raise UsageError("a consumer needs a topic: name it, or subscribe")
        try:
            await self._open()
            self.routes.start()
            self.routes.follow(self._topics)
            await self.routes.refresh(timeout_s)
            await self._before_join()
            self._join()
            self._attach()
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"group {self.group}")
            async with asyncio.timeout(timeout_s):
                while not self._has_begun():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("not every broker answered yet; their messages follow", group=self.group)
        except BaseException:
            await self.close(0)
            raise

    async def close(self, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
        """Hand out nothing more, wait for handlers, say what is done, give the rest back and leave."""
        await super().close(timeout_s)

    async def _finish(self, timeout_s: float | None) -> None:
        await super()._finish(timeout_s)
        await end([] if self._keeper is None else [self._keeper])
        await self._leave(CLOSE_TIMEOUT_S if timeout_s is None else timeout_s)

    async def _keep(self) -> None:
        """Ask for routes while a topic has none."""
        while True:
            await asyncio.sleep(self._keep_s)
            if any(self.routes.get(topic) is None for topic in self._missed()):
                self.routes.refresh_soon()
            await self._go_on()

    def _missed(self) -> Collection[str]:
        """Topics of which it matters that they have no route."""
        return self._topics

    @property
    @abstractmethod
    def _topics(self) -> Collection[str]:
        """Every topic that this member reads."""

    @abstractmethod
    async def _open(self) -> None:
        """Check and open what is needed before anybody is asked."""

    async def _before_join(self) -> None:
        """Ask what must be known before the group is joined; routes are known."""
        return

    @abstractmethod
    def _join(self) -> None:
        """Join the group at the brokers that the routes name."""

    @abstractmethod
    def _has_begun(self) -> bool:
        """Whether every broker has said where to begin. Raises what one of them refuses with."""

    @abstractmethod
    async def _go_on(self) -> None:
        """Do what is to be done again and again; called about every `_keep_s`."""

    @abstractmethod
    async def _leave(self, timeout_s: float) -> None:
        """Wait for handlers, tell what they did and leave, also when `start` got nowhere."""


def check_start(start: StartAt | None) -> None:
    """Raise UsageError for what is no place to begin at; None = as groups and topics do by default."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise UsageError(f"start {start} has no time zone: datetime.now(UTC) has one")
    elif start not in (None, "latest", "earliest"):
        raise UsageError(f"start {start!r} is not latest, earliest, or a datetime")


async def end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
