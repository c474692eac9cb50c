"""The route table: which queues a topic has, at which brokers, and a connection to each broker.

Routes come from any one registry and are cached. A request for them is held there, so that a change
is known at once; they are asked for again every 30 s all the same, and when an answer says that they
are wrong. Without any registry the table lives on with what it has.

A broker that has copies is whichever of them leads. When it is lost, and only then, the other registries are
asked as well: the one that is held may not have heard of the new leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

import holdmq
from holdmq.client.leads import FAILOVER_S, LEAD_DOUBTED_S, Leads
from holdmq.client.names import check_cluster, check_topic
from holdmq.client.registries import Registries, of_cluster
from holdmq.client.replica_links import ReplicaLinks
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError, UsageError
from holdmq.message import TopicQueue
from holdmq.produce.pauses import pause_s
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Connection, Reply, Request
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import ForgottenRow
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import (
    BoundsChangedRequest,
    BrokerRow,
    ClusterGetRequest,
    ClusterGetResponse,
    Empty,
    HelloResponse,
    RouteRow,
    TopicCreateRequest,
    TopicCreateResponse,
    TopicRow,
)
from holdmq.wire.tenant_words import TenantWords
from holdmq.wire.topic_headers import PERM_READ, PERM_WRITE

REFRESH_S: Final = 30.0
"""How often routes are asked for, and how long a registry holds a request: as often as brokers register."""
REFRESH_LOST_S: Final = 0.5
"""While no registry answers, or no broker is known: whoever starts first asks until another is there."""
REFRESH_LOST_MAX_S: Final = 5.0
"""The longest pause between tries of registries that do not answer: each doubles the one before."""
REFRESH_MIN_S: Final = 0.2
"""Least time between refreshes on demand: one wrong route makes many wrong answers."""
CREATE_GRACE_S: Final = 1.0
"""How long a topic's creation waits for the other brokers once one has it: one may be stopped."""
REROUTE_S: Final = 10.0
"""How long the queues of an absent broker keep their keys: a broker restarts in less."""
SEEK_MIN_S: Final = 0.5
"""How soon the other registries are asked for a leader that is lost; each pause doubles the one before."""
SEEK_MAX_S: Final = 5.0
TOLD_S: Final = 60.0
"""How long a broker's own word on a new topic goes before a registry that lacks it: two registrations."""
TOPIC_TIMEOUT_S: Final = 10.0
SOFTWARE: Final = f"holdmq-python/{holdmq.__version__}"

log = structlog.get_logger("holdmq.client")


class TopicRoute(NamedTuple):
    """A topic's queues at all its brokers, by broker name and id; absent brokers' for `REROUTE_S`.

    `order`: absent brokers' queues to write stay, as no key may go elsewhere.
    """

    topic: str
    kind: str
    key_levels: int
    write_queues: tuple[TopicQueue, ...]
    read_queues: tuple[TopicQueue, ...]
    order: bool = False


class Link:
    """One broker by name, and the connection to it; its address may change: it follows the leader."""

    __slots__ = ("client", "down_since", "filter_ids", "name")

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.down_since: float | None = None
        """Loop time since when there is no connection; None while there is one, or nobody asked for one."""
        self.filter_ids = itertools.count(1)
        """Ids of filters on this connection, for all who share it."""

    @property
    def is_up(self) -> bool:
        return self.client.connection is not None

    def start(self) -> None:
        """Connect, and keep connected, in the background."""
        if self.down_since is None and not self.is_up:
            self.down_since = asyncio.get_running_loop().time()
        self.client.start()


class RouteTable:
    """Routes and links. Make it and call `start` on a running loop; `close` it at the end.

    `registries` are host:port. `follow_all`: keep the routes of all topics, not only of those
    that `topic`, `follow` or `ensure_topic` named. `cluster`: no other brokers are known here than those of
    this one, nor what they have, and topics are created on them alone; "" = brokers of all. `tenant`: topics
    and groups are named, here and above, in this tenant's words; "" = in whole names. Callbacks (lists
    to append to; called on the loop, must not raise): `on_routes(topics)` after routes of these topics
    changed, `on_brokers()` after brokers came, went or moved, `on_up(link, connection, hello)` and
    `on_down(link, reason)`, `on_bounds(link, hello)` after a broker changed what its HELLO said,
    `on_push(link, request)` for what a broker sends by itself: the first that returns True has taken it,
    and the table answers it. `answers` are, by request code, who is asked by brokers and answers itself.
    """

    def __init__(
        self,
        registries: Sequence[str],
        client_id: str,
        *,
        role: str = "client",
        follow_all: bool = False,
        refresh_s: float = REFRESH_S,
        reroute_s: float = REROUTE_S,
        security: Security | None = None,
        cluster: str = "",
        tenant: str = "",
    ) -> None:
        if isinstance(registries, str) or not registries:
            raise UsageError("registries must be a list of at least one host:port")
        check_cluster(cluster)
        self.client_id = client_id
        self.cluster_name = cluster
        """The cluster whose brokers there are for this table; "" = those of all."""
        self.tenant = tenant
        self._words = TenantWords(tenant) if tenant else None
        self.reroute_s = reroute_s
        self.version = -1
        """`version` of the last answer of a registry; -1 before the first."""
        self.refreshed_at = 0.0
        """Loop time at which the last successful refresh began."""
        self.on_routes: list[Callable[[frozenset[str]], None]] = []
        self.on_brokers: list[Callable[[], None]] = []
        self.on_up: list[Callable[[Link, Connection, HelloResponse], None]] = []
        self.on_bounds: list[Callable[[Link, HelloResponse], None]] = []
        self.on_down: list[Callable[[Link, HoldMQError], None]] = []
        self.on_push: list[Callable[[Link, Request], bool]] = []
        self.answers: dict[int, Callable[[Request], None]] = {}
        self._role = role
        self._security = security
        self._registries = Registries(registries, role, client_id, SOFTWARE, security, cluster, self._words)
        self.replicas = ReplicaLinks(role, client_id, SOFTWARE, security, self._words)
        """Connections to replicas that leaders name, for reads alone."""
        self._follow_all = follow_all
        self._refresh_s = refresh_s
        self._followed: dict[str, None] = {}
        self._follow_count = 0
        self._rows: dict[str, dict[str, RouteRow]] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._links: dict[str, Link] = {}
        self._leads = Leads()
        self._live: dict[str, str] = {}
        self._rooms: dict[str, str] = {}
        self._absent: dict[str, float] = {}
        self._given_up: set[str] = set()
        self._told: dict[tuple[str, str], tuple[RouteRow, float]] = {}
        self._creating: dict[str, asyncio.Task[TopicRoute]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._seeker: asyncio.Task[None] | None = None
        self._doubting: asyncio.TimerHandle | None = None
        self._wanted = asyncio.Event()
        self._last_failure = ""

    # Life

    def start(self) -> None:
        """Begin to keep the table fresh; calling it again changes nothing."""
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_fresh(), name="routes")

    async def close(self) -> None:
        """Close every connection that the table opened."""
        tasks = [
            task
            for task in (self._keeper, self._seeker, self._refreshing, *self._creating.values())
            if task is not None
        ]
        if self._doubting is not None:
            self._doubting.cancel()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, HoldMQError):
                await task
        await self._registries.close()
        await self.replicas.close()
        for link in self._links.values():
            await link.client.close()
        if self._closing:
            await asyncio.wait(self._closing)

    # Questions

    def get(self, topic: str) -> TopicRoute | None:
        """The cached route; None if it is not known (see `topic`)."""
        return self._routes.get(topic)

    def all(self) -> list[TopicRoute]:
        """Return all routes that are cached."""
        return list(self._routes.values())

    def brokers(self) -> dict[str, str]:
        """Names and addresses of the brokers that a registry called live last."""
        return dict(self._live)

    @property
    def no_broker(self) -> str:
        """What is said where a broker is needed and none is known."""
        which = f"no broker of cluster {self.cluster_name!r}" if self.cluster_name else "no broker"
        return f"{which} is registered; start one, then try again"

    def rooms(self) -> dict[str, str]:
        """Machine rooms by broker, of those that said theirs; one with copies is where its leader is."""
        return dict(self._rooms)

    def link(self, broker: str) -> Link:
        """The link to a broker, connecting if it was not; TransportError for a name never heard of."""
        link = self._links.get(broker)
        if link is None:
            raise TransportError(f"broker {broker!r} is not known to any registry")
        link.start()
        if link.down_since is not None:
            self._seek_soon(broker)
        return link

    def is_given_up(self, broker: str) -> bool:
        """Whether an operator has given a broker up: it never comes back with what it had."""
        return broker in self._given_up

    def patience_s(self, broker: str) -> float:
        """How long a broker is waited for: `reroute_s`, and a failover, if it has copies."""
        return max(self.reroute_s, FAILOVER_S) if self._leads.epoch(broker) else self.reroute_s

    @property
    def failover_s(self) -> float:
        """How long a broker's failover is waited for; 0 while none that is known has copies."""
        return FAILOVER_S if self._leads.has_copies else 0.0

    def is_resting(self, broker: str, now: float) -> bool:
        """Whether a broker has been unreachable for its `patience_s`: keys go to the next in rank."""
        link = self._links.get(broker)
        return link is None or (
            link.down_since is not None and now - link.down_since >= self.patience_s(broker)
        )

    def is_available(self, broker: str) -> bool:
        """Whether a broker is connected, or was not tried yet."""
        link = self._links.get(broker)
        return link is not None and link.down_since is None

    async def topic(self, topic: str, timeout_s: float = TOPIC_TIMEOUT_S) -> TopicRoute | None:
        """The route of a topic, asked for if need be; None if no broker has the topic.

        Follows the topic from now on. TransportError if no registry answers.
        """
        route = self._routes.get(topic)
        if route is None:
            self.follow([topic])
            await self.refresh(timeout_s)
            route = self._routes.get(topic)
        return route

    def follow(self, topics: Iterable[str]) -> None:
        """Keep the routes of these topics, which need not exist, from the next refresh on.

        UsageError for a name that the tenant cannot have.
        """
        wanted = list(topics)
        for topic in wanted:
            self.check_name(topic)
        self._followed.update(dict.fromkeys(wanted))
        if len(self._followed) != self._follow_count:
            self._follow_count = len(self._followed)
            self._wanted.set()

    def check_name(self, name: str) -> None:
        """Raise UsageError for a topic or group that the tenant cannot have; without one any goes."""
        if self._words is not None:
            self._words.whole(name)

    async def ensure_topic(
        self, topic: str, key_levels: int = 1, timeout_s: float = TOPIC_TIMEOUT_S
    ) -> TopicRoute:
        """The route of a topic, which is created on every live broker if none has it.

        Raises UsageError for a name that clients may not use, RemoteError if the brokers refuse
        (TOPIC_UNKNOWN: auto_create_topics is off; TOPIC_LIMIT), TransportError if none answers.
        """
        check_topic(topic)
        try:
            route = await self.topic(topic, timeout_s)
        except TransportError:
            if not self._reachable():
                raise
            route = self._routes.get(topic)  # no registry; the brokers that we know can tell
        if route is not None and route.write_queues:
            return route
        task = self._creating.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create(topic, key_levels, timeout_s))
            self._creating[topic] = task
            task.add_done_callback(lambda _: self._creating.pop(topic, None))
        return await asyncio.shield(task)

    async def cluster(self) -> ClusterGetResponse:
        """What a registry knows of the cluster; TransportError if none answers."""
        request = ClusterGetRequest(self.cluster_name)
        answer = (await self._registries.call(RequestCode.CLUSTER_GET, request)).header(ClusterGetResponse)
        _, brokers = of_cluster(self.cluster_name, [], rows(BrokerRow, answer.brokers))
        return replace(answer, brokers=brokers)

    # Refreshing

    def refresh_soon(self) -> None:
        """A route proved wrong: ask again now (at most every REFRESH_MIN_S)."""
        self._wanted.set()

    async def refresh(self, timeout_s: float = TOPIC_TIMEOUT_S) -> None:
        """Ask a registry now; TransportError if none answers within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                if self._refreshing is not None:
                    # It may have been sent before the caller's topic was followed.
                    with contextlib.suppress(HoldMQError):
                        await asyncio.shield(self._refreshing)
                await asyncio.shield(self._begin_refresh())
        except TimeoutError:
            raise TransportError(f"no registry answered within {timeout_s} s") from None

    def _begin_refresh(self) -> asyncio.Task[None]:
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        return self._refreshing

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # whoever waits for it gets it; nobody may

    async def _refresh(self) -> None:
        began = asyncio.get_running_loop().time()
        answer = await self._registries.routes(self._topics_asked())
        self.refreshed_at = began
        if answer is not None:
            self._apply(*answer)

    def _topics_asked(self) -> list[str] | None:
        return None if self._follow_all else list(self._followed)

    async def _keep_fresh(self) -> None:
        lost_s = REFRESH_LOST_S
        while True:
            self._wanted.clear()
            try:
                await self.refresh()
                self._last_failure = ""
                lost_s = REFRESH_LOST_S
                is_held = True
                while is_held:
                    await asyncio.sleep(REFRESH_MIN_S)
                    is_held = await self._hold()
            except HoldMQError as error:
                if str(error) != self._last_failure:
                    log.warning("routes are not refreshed; the known ones stay", reason=str(error))
                self._last_failure = str(error)
                await self._wait_until_wanted(min(lost_s, self._refresh_s))
                lost_s = min(2 * lost_s, REFRESH_LOST_MAX_S)
                await asyncio.sleep(REFRESH_MIN_S)

    async def _hold(self) -> bool:
        """Have a registry hold a request, and apply its answer; False when it is time to ask anew.

        HoldMQError when the registry is lost.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        followed = self._follow_count
        hold_s = self._refresh_s * random.uniform(0.9, 1.1)  # noqa: S311 # jitter guards nothing
        holding = loop.create_task(self._registries.routes(self._topics_asked(), self.version, hold_s))
        wanted = loop.create_task(self._wanted.wait())
        try:
            await asyncio.wait((holding, wanted), return_when=asyncio.FIRST_COMPLETED)
            if not holding.done():
                return False
            answer = holding.result()
        finally:
            holding.cancel()
            wanted.cancel()
            await asyncio.gather(holding, wanted, return_exceptions=True)
        # What a refresh beside it has applied meanwhile is no news, and no sign that it cannot hold.
        is_news = answer is not None and answer[2] != self.version
        if answer is None and loop.time() - began < hold_s / 2:
            # It does not hold (its bound is reached): asked at intervals, then.
            await self._wait_until_wanted(hold_s if self._live else min(hold_s, REFRESH_LOST_S))
            return False
        if followed != self._follow_count:
            return False
        self.refreshed_at = max(self.refreshed_at, began)
        if answer is not None and is_news:
            self._apply(*answer)
        return True

    async def _wait_until_wanted(self, timeout_s: float) -> None:
        # Not wait_for: Python 3.11's may swallow a cancellation that meets the event.
        with contextlib.suppress(TimeoutError):
            jitter = random.uniform(0.9, 1.1)  # noqa: S311 # jitter guards nothing
            async with asyncio.timeout(timeout_s * jitter):
                await self._wanted.wait()

    def _apply(
        self,
        routes: list[RouteRow],
        brokers: list[BrokerRow],
        version: int,
        forgotten: Sequence[ForgottenRow] = (),
    ) -> None:
        now = asyncio.get_running_loop().time()
        self.version = version
        self._hear_forgotten(forgotten, {row.broker for row in brokers})
        heard = self._leads.hear(brokers, self._doubted(now))
        if heard.outdated and self._doubting is None:
            self._doubting = asyncio.get_running_loop().call_later(LEAD_DOUBTED_S, self._doubt)
        self._set_brokers(heard.rows, now)
        new: dict[str, dict[str, RouteRow]] = {}
        for row in routes:
            if row.broker in self._given_up:
                continue  # this registry was away when the others were told
            new.setdefault(row.topic, {})[row.broker] = row
            self._told.pop((row.topic, row.broker), None)
        for (topic, name), (row, until) in list(self._told.items()):
            if now < until and name not in self._given_up:
                new.setdefault(topic, {})[name] = row
            else:
                del self._told[(topic, name)]
        for topic, by_broker in self._rows.items():
            for name, row in by_broker.items():
                told = new.setdefault(topic, {})
                if name in heard.outdated or (
                    name in self._absent and (name not in told or not told[name].read_queues)
                ):
                    told[name] = row
        self._set_rows(new)

    def _hear_forgotten(self, forgotten: Sequence[ForgottenRow], live: Collection[str]) -> None:
        """Nobody waits for brokers that were given up, and none of their queues stay."""
        for row in forgotten:
            if row.is_back:
                self._given_up.discard(row.broker)
                continue
            self._given_up.add(row.broker)
            self._absent.pop(row.broker, None)
            self._drop_link(row.broker)
        self._given_up.difference_update(live)

    def _doubt(self) -> None:
        self._doubting = None
        self.refresh_soon()

    def _doubted(self, now: float) -> list[str]:
        """Brokers whose leader, as far as is known, has been unreachable for long."""
        return [
            name
            for name, link in self._links.items()
            if link.down_since is not None and now - link.down_since >= LEAD_DOUBTED_S
        ]

    def _set_brokers(self, rows: Mapping[str, BrokerRow], now: float) -> None:
        live = {name: row.address for name, row in rows.items()}
        rooms = {name: row.room for name, row in rows.items() if row.room}
        # Who is absent stays where it was: its queues do, too.
        rooms = {name: room for name, room in self._rooms.items() if name not in rows} | rooms
        changed = (live, rooms) != (self._live, self._rooms)
        self._live, self._rooms = live, rooms
        for name, address in live.items():
            self._absent.pop(name, None)
            link = self._links.get(name)
            if link is None:
                self._links[name] = self._make_link(name, address)
            else:
                link.client.set_address(address)
        for name in self._links:
            if name not in live and name not in self._absent:
                self._absent[name] = now
                asyncio.get_running_loop().call_later(self.patience_s(name), self._forget_absent)
        if changed:
            for callback in self.on_brokers:
                callback()

    def _forget_absent(self) -> None:
        """Drop the queues of brokers that neither a registry nor a connection has shown for `patience_s`."""
        now = asyncio.get_running_loop().time()
        gone: set[str] = set()
        for name, since in list(self._absent.items()):
            if now - since < self.patience_s(name):
                continue
            link = self._links[name]
            if link.is_up and self._is_ours(link):
                # Only the registries lost it: it serves, and is asked about again at its end.
                self._absent[name] = now
                asyncio.get_running_loop().call_later(self.patience_s(name), self._forget_absent)
                continue
            gone.add(name)
            del self._absent[name]
            self._drop_link(name)
        if gone:
            # No key of an ordered topic moves: its absent queues stay until a registry takes them out.
            self._set_rows(
                {
                    topic: {
                        name: row if name not in gone else row._replace(read_queues=0)
                        for name, row in by_broker.items()
                        if name not in gone or row.order
                    }
                    for topic, by_broker in self._rows.items()
                }
            )

    def _drop_link(self, name: str) -> None:
        self._leads.forget(name)
        self._rooms.pop(name, None)
        link = self._links.pop(name, None)
        if link is not None:
            closing = asyncio.get_running_loop().create_task(link.client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _is_ours(self, link: Link) -> bool:
        """Whether a broker that registries do not show is of the cluster, as it says itself."""
        hello = link.client.hello
        return not self.cluster_name or hello is None or hello.cluster == self.cluster_name

    def _set_rows(self, new: dict[str, dict[str, RouteRow]]) -> None:
        new = {topic: by_broker for topic, by_broker in new.items() if by_broker}
        changed = frozenset(t for t in new.keys() | self._rows.keys() if new.get(t) != self._rows.get(t))
        self._rows = new
        for topic in changed:
            by_broker = new.get(topic)
            if by_broker is None:
                del self._routes[topic]
            else:
                self._routes[topic] = _route(topic, by_broker)
        if changed:
            for callback in self.on_routes:
                callback(changed)

    def _make_link(self, name: str, address: str) -> Link:
        def up(connection: Connection, hello: HelloResponse) -> None:
            link.down_since = None
            for callback in self.on_up:
                callback(link, connection, hello)

        def down(reason: HoldMQError) -> None:
            link.down_since = asyncio.get_running_loop().time()
            for callback in self.on_down:
                callback(link, reason)
            self.refresh_soon()
            self._seek_soon(name)

        def pushed(request: Request) -> None:
            if request.command.code == RequestCode.BOUNDS_CHANGED:
                self._bounds_changed(link, request.header(BoundsChangedRequest))
                return
            answer = self.answers.get(request.command.code)
            if answer is not None:
                answer(request)
                return
            if not any(callback(link, request) for callback in self.on_push):
                raise RemoteError(Code.UNKNOWN_REQUEST, f"nobody here takes request {request.command.code}")
            request.reply(Empty())

        client = Client(
            address,
            self._role,
            self.client_id,
            software=SOFTWARE,
            on_up=up,
            on_down=down,
            on_request=pushed,
            security=self._security,
            follows_lead=True,
            words=self._words,
        )
        link = Link(name, client)
        return link

    def _bounds_changed(self, link: Link, bounds: BoundsChangedRequest) -> None:
        """A broker was reconfigured: from now on it is as if its HELLO had said so."""
        if link.client.hello is None:
            return
        hello = replace(link.client.hello, message_bytes_min=bounds.message_bytes_min)
        link.client.hello = hello
        for callback in self.on_bounds:
            callback(link, hello)

    # Registries

    async def ask_registries(self, code: RequestCode, header: Header) -> dict[str, Reply]:
        """The answer of each registry that gives one, by address; those that do not know it are left out."""
        return await self._registries.ask_all(code, header)

    # Leaders

    def _seek_soon(self, broker: str) -> None:
        """A broker was lost: if it has copies, ask the other registries until it is found, or another one."""
        if self._leads.epoch(broker) and self._registries.has_others and self._seeker is None:
            self._seeker = asyncio.get_running_loop().create_task(self._seek(), name="leaders")

    async def _seek(self) -> None:
        wait_s = SEEK_MIN_S
        try:
            while any(
                self._leads.epoch(n) and link.down_since is not None for n, link in self._links.items()
            ):
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # noqa: S311 # jitter guards nothing
                for brokers in await self._registries.brokers_elsewhere():
                    self._follow_leaders(self._leads.newer(brokers))
                wait_s = min(2 * wait_s, SEEK_MAX_S)
        finally:
            self._seeker = None

    def _follow_leaders(self, leaders: Mapping[str, BrokerRow]) -> None:
        moved = {name: row.address for name, row in leaders.items() if name in self._links}
        for name, address in moved.items():
            self._live[name] = address
            self._absent.pop(name, None)
            self._links[name].client.set_address(address)
            self._rooms.pop(name, None)
            if leaders[name].room:
                self._rooms[name] = leaders[name].room
        if moved:
            for callback in self.on_brokers:
                callback()

    # Creating topics

    async def _create(self, topic: str, key_levels: int, timeout_s: float) -> TopicRoute:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        attempts = 0
        while True:
            errors = await self._ask_to_create(topic, key_levels, deadline - loop.time())
            route = self._routes.get(topic)
            if route is not None:
                return route
            if not errors:
                raise RemoteError(Code.TOPIC_UNKNOWN, f"topic {topic!r} was created and is not there")
            # A broker that was lost meanwhile may be back, or another copy of it lead.
            wait_s = pause_s(attempts, 0, random.random())  # noqa: S311 # jitter guards nothing
            lasting = [error for error in errors if not error.retriable]
            if lasting or loop.time() + wait_s >= deadline:
                raise (lasting or errors)[0]
            attempts += 1
            await asyncio.sleep(wait_s)

    async def _ask_to_create(self, topic: str, key_levels: int, timeout_s: float) -> list[HoldMQError]:
        """Have each broker create a topic; what those say that do not."""
        names = await self._brokers_to_ask(timeout_s)
        request = TopicCreateRequest(topic, key_levels=key_levels, by_use=True)
        answers = await self._call_brokers(names, request, timeout_s)
        errors: list[HoldMQError] = []
        for name, answer in answers.items():
            if isinstance(answer, Reply):
                self._tell(name, answer)
            elif isinstance(answer, HoldMQError):
                errors.append(answer)
            else:
                raise answer
        return errors

    def _reachable(self) -> list[str]:
        """Brokers that may answer: the live ones; the connected while a restarted registry knows none yet."""
        return list(self._live) or [name for name, link in self._links.items() if link.is_up]

    async def _brokers_to_ask(self, timeout_s: float) -> list[str]:
        """Brokers that a topic can be created on; TransportError when none registers in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            names = self._reachable()
            if names:
                return names
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise TransportError(self.no_broker)
            with contextlib.suppress(HoldMQError):
                await self.refresh(left_s)
            if not self._live:
                await asyncio.sleep(min(REFRESH_LOST_S, max(0.0, deadline - loop.time())))

    async def _call_brokers(
        self, names: Sequence[str], request: TopicCreateRequest, timeout_s: float
    ) -> dict[str, Reply | BaseException]:
        """Answers by broker; those that are late when one has agreed get CREATE_GRACE_S more."""
        loop = asyncio.get_running_loop()
        calls = {
            name: loop.create_task(self.link(name).client.call(RequestCode.TOPIC_CREATE, request, timeout_s))
            for name in names
        }
        pending = set(calls.values())
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if any(call.exception() is None for call in done):
                    break
            if pending:
                await asyncio.wait(pending, timeout=CREATE_GRACE_S)
        finally:
            for call in calls.values():
                call.cancel()
            found = await asyncio.gather(*calls.values(), return_exceptions=True)
        late = TransportError("not answered in time")
        return {
            name: late if isinstance(answer, asyncio.CancelledError) else answer
            for name, answer in zip(names, found, strict=True)
        }

    def _tell(self, broker: str, answer: Reply) -> None:
        """Take a broker's own word: its registration may be a moment behind it."""
        until = asyncio.get_running_loop().time() + TOLD_S
        new = {topic: dict(by_broker) for topic, by_broker in self._rows.items()}
        for t in rows(TopicRow, answer.header(TopicCreateResponse).topics):
            row = RouteRow(
                t.topic, broker, t.read_queues, t.write_queues, t.perm, t.kind, t.key_levels, t.order
            )
            self._told[(t.topic, broker)] = (row, until)
            new.setdefault(t.topic, {})[broker] = row
        self._set_rows(new)


def _route(topic: str, by_broker: dict[str, RouteRow]) -> TopicRoute:
    ordered = sorted(by_broker.items())
    first = ordered[0][1]
    return TopicRoute(
        topic,
        first.kind,
        first.key_levels,
        tuple(
            TopicQueue(topic, name, i)
            for name, row in ordered
            if row.perm & PERM_WRITE
            for i in range(row.write_queues)
        ),
        tuple(
            TopicQueue(topic, name, i)
            for name, row in ordered
            if row.perm & PERM_READ
            for i in range(row.read_queues)
        ),
        any(row.order for _, row in ordered),
    )
