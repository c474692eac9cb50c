"""Blocking access of one process to the cluster: where queues are, what they hold, their records.

Spark calls the source from plain threads of short functions, in the driver's planner and in each Python
worker. A process has one `ClusterLink` per cluster, kept for as long as the process lives, because workers
are reused from task to task; its connections live on an event loop in a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import structlog

from holdmq.client.leads import FAILOVER_S, LEAD_DOUBTED_S, Leads
from holdmq.client.registries import of_cluster
from holdmq.client.replica_links import ReplicaLinks
from holdmq.errors import Code, HoldMQError, RemoteError, TransportError
from holdmq.message import TopicQueue
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsRequest
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import (
    BrokerRow,
    QueueBounds,
    QueueBoundsRequest,
    QueueBoundsResponse,
    RouteGetRequest,
    RouteGetResponse,
    RouteRow,
)
from holdmq.wire.query_headers import OffsetAtRequest, OffsetAtResponse, QueueOffset
from holdmq.wire.replica_reads import ReplicaReads
from holdmq.wire.tenant_words import TenantWords
from spark_streaming.source.kept import Kept
from spark_streaming.source.offsets import SourceBounds
from spark_streaming.source.replica_pulls import PULL_TIMEOUT_S, PulledColumns, ReplicaPulls, WantedColumns

ASK_TIMEOUT_S: Final = 2.0
"""How long planning waits for a registry or broker: an absent one is left out of this batch."""
LOST_TIMEOUT_S: Final = 0.25
"""How long the connection to a broker is waited for that was silent the last time, too: it is made in the
background, and every plan that waited for it would delay the queues of all others."""
SEEK_MIN_S: Final = 0.25
"""How long a broker that has copies may keep a question until registries are asked who leads: tenfold what an
answer takes."""
SEEK_MAX_S: Final = 1.0
"""Between two questions to registries, while an answer does not come."""
LOOK_UPS_AT_ONCE: Final = 64
"""Topics of one broker whose offsets at a time are asked for together: a fraction of what it lets wait."""
ROLE: Final = "stats"

T = TypeVar("T")


class Snapshot(NamedTuple):
    """What the cluster holds now: bounds of the wanted queues, log epochs, brokers that did not answer."""

    bounds: dict[TopicQueue, SourceBounds]
    epochs: dict[str, int]
    silent: tuple[str, ...]


class Positions(NamedTuple):
    """Where queues stood at a time, and the brokers that did not say."""

    offsets: dict[TopicQueue, int]
    silent: tuple[str, ...]


class ClusterLink:
    """Connections of this process to registries and brokers; used from any thread.

    `cluster`: the brokers are those of this one alone, "" = of all that the registries know. `tenant`: topics
    are those of this one, in its words; "" = all, in whole names.
    """

    def __init__(
        self,
        registries: Sequence[str],
        security: Security | None = None,
        cluster: str = "",
        tenant: str = "",
    ) -> None:
        self._security = security
        self._words = TenantWords(tenant) if tenant else None
        self._cluster = cluster
        self._registries = list(registries)
        self._registry_clients: dict[str, Client] = {}
        self._brokers: dict[str, Client] = {}
        self._topics: dict[str, list[str]] = {}
        self._leads = Leads()
        self._replicas = ReplicaLinks(ROLE, f"spark-{os.getpid()}", security=security, words=self._words)
        self._pulls = ReplicaPulls(self._replicas, self._ask)
        self._silent_since: dict[str, float] = {}
        """Brokers that did not answer when they were asked last, and the loop's time of the first of it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdmq link", daemon=True)
        self._thread.start()

    def snapshot(self, is_wanted: Callable[[str], bool]) -> Snapshot:
        """Return the bounds of every queue of the wanted topics at every broker that answers.

        Without any registry the brokers and topics known from before are asked. Raises TransportError
        when no registry answers and nothing is known yet.
        """
        return self._wait(self._snapshot(is_wanted))

    def offsets_at(self, is_wanted: Callable[[str], bool], store_ms: int) -> Positions:
        """Return, for every queue of the wanted topics, the first offset stored at `store_ms` or later.

        It is the queue's end where there is none yet. Brokers that do not answer are named as silent.
        Raises TransportError as `snapshot` does.
        """
        return self._wait(self._offsets_at(is_wanted, store_ms))

    def pull(self, broker: str, queues: Sequence[ColumnQueue], wanted: WantedColumns) -> PulledColumns:
        """Read the next records of `queues` at `broker`, in one answer of bounded size.

        It may be of some of them alone, from a replica. Raises TransportError (away; asking again looks its
        address up anew), RemoteError (refused), WireError (the answer makes no sense).
        """
        return self._wait(self._pulls.pull(broker, queues, wanted))

    def patience_s(self, brokers: Iterable[str]) -> float:
        """How long brokers that are silent may be while another copy of them comes to lead; 0 = none will."""
        return FAILOVER_S if any(map(self._leads.epoch, brokers)) else 0.0

    def close(self) -> None:
        """Close every connection and end the thread."""
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _client(self, address: str, *, is_broker: bool = False) -> Client:
        return Client(
            address,
            ROLE,
            f"spark-{os.getpid()}",
            security=self._security,
            follows_lead=is_broker,
            words=self._words,
        )

    def _registry(self, address: str) -> Client:
        client = self._registry_clients.get(address)
        if client is None:
            client = self._registry_clients[address] = self._client(address)
        return client

    async def _snapshot(self, is_wanted: Callable[[str], bool]) -> Snapshot:
        answers, silent = await self._ask_all(is_wanted, self._bounds)
        bounds: dict[TopicQueue, SourceBounds] = {}
        for broker, answer in answers.items():
            for topic, queue_id, first, end in rows(QueueBounds, answer.queues):
                bounds[TopicQueue(topic, broker, queue_id)] = SourceBounds(first, end)
        return Snapshot(bounds, {broker: answer.log_epoch for broker, answer in answers.items()}, silent)

    async def _ask_all(
        self, is_wanted: Callable[[str], bool], ask: Callable[[str, list[str]], Awaitable[T]]
    ) -> tuple[dict[str, T], tuple[str, ...]]:
        """Ask every broker with wanted topics; its answer, or its name among those that gave none."""
        await self._refresh_routes()
        await self._ask_who_leads(self._registries[1:], list(self._silent_since))
        wanted = {
            broker: [topic for topic in topics if is_wanted(topic)] for broker, topics in self._topics.items()
        }
        asked = [broker for broker, topics in wanted.items() if topics]
        answers = await asyncio.gather(
            *(self._led(broker, partial(ask, broker, wanted[broker])) for broker in asked),
            return_exceptions=True,
        )
        found: dict[str, T] = {}
        silent = []
        for broker, answer in zip(asked, answers, strict=True):
            if isinstance(answer, HoldMQError):
                silent.append(broker)
                self._unheard(broker)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[broker] = answer
                self._silent_since.pop(broker, None)
        return found, tuple(silent)

    def _unheard(self, broker: str) -> None:
        self._silent_since.setdefault(broker, self._loop.time())

    async def _offsets_at(self, is_wanted: Callable[[str], bool], store_ms: int) -> Positions:
        async def ask(broker: str, topics: list[str]) -> dict[TopicQueue, int]:
            limit = asyncio.Semaphore(LOOK_UPS_AT_ONCE)

            async def look_up(topic: str) -> dict[TopicQueue, int]:
                async with limit:
                    return await self._offsets_of(broker, topic, store_ms)

            found: dict[TopicQueue, int] = {}
            for part in await asyncio.gather(*map(look_up, topics)):
                found |= part
            return found

        answers, silent = await self._ask_all(is_wanted, ask)
        offsets = {queue: offset for answer in answers.values() for queue, offset in answer.items()}
        return Positions(offsets, silent)

    async def _offsets_of(self, broker: str, topic: str, store_ms: int) -> dict[TopicQueue, int]:
        request = OffsetAtRequest(topic, store_ms)
        try:
            reply = await self._call(broker, RequestCode.OFFSET_AT, request, PULL_TIMEOUT_S)
        except RemoteError as error:
            if error.code == Code.TOPIC_UNKNOWN:
                return {}  # deleted since the registry listed it
            raise
        found = rows(QueueOffset, reply.header(OffsetAtResponse).offsets)
        return {TopicQueue(topic, broker, row.queue_id): row.offset for row in found}

    async def _refresh_routes(self) -> None:
        failure: HoldMQError = TransportError("no registry is configured")
        for address in tuple(self._registries):
            try:
                brokers, routes = await self._routes_of(address)
            except HoldMQError as error:
                failure = error
                continue
            # The next plan asks this one first: waiting for one that is away would make every batch late.
            self._registries.remove(address)
            self._registries.insert(0, address)
            self._learn(brokers, routes)
            return
        if not self._brokers:
            raise failure

    async def _ask_who_leads(self, registries: Iterable[str], lost: Iterable[str]) -> None:
        """Ask registries for the leaders of brokers that have copies and are lost."""
        if any(map(self._leads.epoch, lost)):
            await asyncio.gather(*map(self._follow_leaders, registries))

    async def _follow_leaders(self, registry: str) -> None:
        client = self._registry(registry)
        try:
            await client.connected(LOST_TIMEOUT_S)
            asked = RouteGetRequest([], cluster=self._cluster)
            reply = await client.call(RequestCode.ROUTE_GET, asked, ASK_TIMEOUT_S)
        except HoldMQError:
            return  # another one may answer; that none does is said by `_refresh_routes`
        for name, row in self._leads.newer(rows(BrokerRow, reply.header(RouteGetResponse).brokers)).items():
            self._brokers[name].set_address(row.address)

    async def _led(self, broker: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the leader of a broker, and whoever comes to lead it before the answer.

        An old leader may be gone, or cut off with its connections open: while it says nothing, registries are
        asked, and the one they name is asked the same. Raises TransportError, RemoteError.
        """
        if not self._leads.epoch(broker):
            return await ask()
        seeking = self._loop.create_task(self._seek(broker), name=f"leader of {broker}")
        try:
            while True:
                address = self._broker(broker).address
                try:
                    return await ask()
                except TransportError:
                    if self._broker(broker).address == address:
                        raise
        finally:
            seeking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await seeking

    async def _seek(self, broker: str) -> None:
        """Ask all registries again and again who leads."""
        pause_s = SEEK_MIN_S
        while True:
            await asyncio.sleep(pause_s)
            await self._ask_who_leads(tuple(self._registries), [broker])
            pause_s = min(2 * pause_s, SEEK_MAX_S)

    async def _call(self, broker: str, code: RequestCode, header: Header, timeout_s: float) -> Reply:
        client = self._broker(broker)
        is_lost = broker in self._silent_since and client.connection is None
        connection = await client.connected(LOST_TIMEOUT_S if is_lost else ASK_TIMEOUT_S)
        return await connection.call(code, header, timeout_s)

    async def _routes_of(self, registry: str) -> tuple[list[BrokerRow], list[RouteRow]]:
        """All pages; what changes between them is seen by the next plan."""
        found: list[RouteRow] = []
        after = ""
        while True:
            request = RouteGetRequest(after=after, cluster=self._cluster)
            reply = await self._registry(registry).call(RequestCode.ROUTE_GET, request, ASK_TIMEOUT_S)
            answer = reply.header(RouteGetResponse)
            found += rows(RouteRow, answer.routes)
            after = answer.next_after
            if not after:
                found, brokers = of_cluster(self._cluster, found, rows(BrokerRow, answer.brokers))
                return brokers, found

    def _learn(self, brokers: list[BrokerRow], routes: list[RouteRow]) -> None:
        # What a registry does not list (it may have started a moment ago) stays as it was: the broker
        # itself says what it has, and one that is gone for good costs one refused connection a batch.
        now = self._loop.time()
        doubted = [name for name, since in self._silent_since.items() if now - since >= LEAD_DOUBTED_S]
        heard = self._leads.hear(brokers, doubted)
        for name, row in heard.rows.items():
            client = self._brokers.get(name)
            if client is None:
                self._brokers[name] = self._client(row.address, is_broker=True)
            else:
                client.set_address(row.address)
        topics: dict[str, list[str]] = {}
        for route in routes:
            if route.broker in heard.outdated and route.broker in self._topics:
                continue
            if not route.read_queues:
                continue  # of an ordered topic, at a broker that is absent
            topics.setdefault(route.broker, []).append(route.topic)
        self._topics.update(topics)

    async def _bounds(self, broker: str, topics: list[str]) -> QueueBoundsResponse:
        request = QueueBoundsRequest(topics)
        reply = await self._call(broker, RequestCode.QUEUE_BOUNDS, request, ASK_TIMEOUT_S)
        return reply.header(QueueBoundsResponse)

    def _broker(self, broker: str) -> Client:
        client = self._brokers.get(broker)
        if client is None:
            raise TransportError(f"no registry knows the address of broker {broker}")
        return client

    async def _ask(self, broker: str, request: PullColumnsRequest) -> Reply:
        client = self._brokers.get(broker)
        if client is None or client.connection is None or broker in self._silent_since:
            # Not connected yet, lost, or silent: it may be somewhere else by now.
            await self._refresh_routes()
            lost = [broker] if broker in self._silent_since else []
            await self._ask_who_leads(self._registries[1:], lost)
        try:
            reply = await self._led(
                broker, partial(self._call, broker, RequestCode.PULL_COLUMNS, request, PULL_TIMEOUT_S)
            )
        except TransportError:
            self._unheard(broker)
            raise
        self._silent_since.pop(broker, None)
        return reply

    async def _close(self) -> None:
        await self._replicas.close()
        for clients in (self._registry_clients, self._brokers):
            for client in clients.values():
                await client.close()
            clients.clear()


class ColumnPuller(NamedTuple):
    """A Link that is asked for the same columns and tags each time."""

    link: ClusterLink
    columns: tuple[str, ...]
    tags: list[str] | None
    read_replicas: ReplicaReads = ReplicaReads.ALLOW

    def pull(self, broker: str, queues: Sequence[ColumnQueue]) -> PulledColumns:
        """Pull chosen columns as `ClusterLink.pull` does."""
        return self.link.pull(broker, queues, WantedColumns(self.columns, self.tags, self.read_replicas))


def _set_up_logging(_: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
    """Prepare the log for the first event, and log it then.

    In a Python worker: standard output belongs to Spark, standard error is the log. Most log nothing, and
    live for one plan, so that what a log needs would be a good part of their work.
    """
    from holdmq.config.model import LogSection
    from holdmq.service import telemetry

    telemetry.setup("spark", LogSection())
    getattr(structlog.get_logger(), method)(**event)
    raise structlog.DropEvent


def _connect(key: tuple[tuple[str, ...], Security | None, str, str]) -> ClusterLink:
    if not structlog.is_configured():
        structlog.configure(processors=[_set_up_logging])
    return ClusterLink(*key)


_links: Final = Kept(_connect)


def link_to(
    registries: Sequence[str], security: Security | None = None, cluster: str = "", tenant: str = ""
) -> ClusterLink:
    """Return this process's Link to a cluster, made on first use and kept; never pickled, never forked."""
    return _links.get((tuple(registries), security, cluster, tenant))


def close_links() -> None:
    """Close every Link of this process, whose use is over; who asks for one again gets a new one."""
    _links.close()
