"""QUOTA_SET, QUOTA_REMOVE, QUOTA_LIST, QUOTA_SPEND: quotas in the table `%QUOTA` and in memory.

Each broker has all of them, and grants an equal part of what the cluster's brokers share: rates, sessions,
MQTT connections. Rooms that are limited ask here; gateways are told of each change, and say what
clients have sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import structlog

from broker.kernel.events import Event
from broker.kernel.request_family import RequestFamily
from broker.kernel.small_table import RequiresTopics, SmallTable
from broker.quotas.core.rates import PublishRates
from broker.quotas.kept import KeptBytes, TenantQueue
from broker.topics.core.table import Topic
from holdmq.credentials.access_keys import Grants
from holdmq.credentials.permissions import Role
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.names.tenants import tenant_of
from holdmq.quotas.limits import QuotaBook, check_quota, decode_quota, encode_quota, principal_of
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import HelloRequest
from holdmq.wire.quota_headers import (
    KEY,
    LIST_MAX,
    QUOTA_QUEUES,
    QUOTA_TOPIC,
    TENANT,
    QuotaChangedRequest,
    QuotaListRequest,
    QuotaListResponse,
    QuotaOwed,
    QuotaRemoveRequest,
    QuotaRemoveResponse,
    QuotaRow,
    QuotaSetRequest,
    QuotaSetResponse,
    QuotaSpendRequest,
    QuotaSpendResponse,
    QuotaSpent,
    QuotaUse,
)
from storage.api.store import OrderedStore

QUOTAS_MAX: Final = 10_000
"""Quotas of one cluster: as many as access keys. Users beyond it share the limits of everybody's quota."""
REFUSED_MAX: Final = 10_000
"""Principals whose refusals are counted one by one; past it all begin anew."""
LENT_S: Final = 0.3
"""What gateways' clients may owe before they are held, in seconds of their rate: a worker that keeps to it
says so in portions, and was held for each."""
_ABOVE: Final = frozenset({Role.SERVICE, Role.BROKER, Role.ADMIN})
"""Roles of keys that no quota holds for: what a gateway sends is its clients', who have their own."""

log = structlog.get_logger("holdmq.broker")


class CountsSessions(Protocol):
    """Knows how many sessions and connections users and tenants have at this broker."""

    def sessions_of(self, principal: str) -> int:
        """Sessions of `user:NAME` or `tenant:NAME` that are written down."""

    def connections_of(self, principal: str) -> int:
        """Clients of `user:NAME` or `tenant:NAME` that are connected."""


class Quotas(RequestFamily):
    """The quotas of one broker, and what is used of them here.

    `connections` are all, with what they said in HELLO; `sessions` knows what users and tenants have of
    those, `known` gives all topics. `has_rates` is looked at by each PRODUCE, `has_counts`
    by each client that comes.
    """

    def __init__(
        self,
        store: OrderedStore,
        topics: RequiresTopics,
        connections: Mapping[Connection, HelloRequest | None],
        sessions: CountsSessions,
        known: Callable[[], Iterable[Topic]],
        clock_ms: Callable[[], int],
    ) -> None:
        self.row_changed: Event[[str, bool]] = Event()
        """Happens when a principal has a quota, or none any more, durably."""
        self.has_rates = False
        self.has_counts = False
        self.has_kept = False
        self.refused = 0
        self._book = QuotaBook()
        self.rates = PublishRates(self._book)
        self._connections = connections
        self._sessions = sessions
        self._known_topics = known
        self.kept = KeptBytes(store, self._kept_queues)
        self._clock_ms = clock_ms
        self._refused_of: dict[str, int] = {}
        self._adding: dict[str, QuotaRow] = {}
        """Those that are on their way to the disk and are not in force yet."""
        self._loop = asyncio.get_running_loop()
        self.table: SmallTable[QuotaRow] = SmallTable(
            store, topics, QUOTA_TOPIC, QUOTA_QUEUES, decode_quota, self._known, clock_ms
        )

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {
            RequestCode.QUOTA_SET: self.set,
            RequestCode.QUOTA_REMOVE: self.remove,
            RequestCode.QUOTA_LIST: self.list_,
            RequestCode.QUOTA_SPEND: self.spend,
        }

    def numbers(self) -> Mapping[str, int | float]:
        return {
            "quotas": len(self._book),
            "quota_parts": self.rates.parts,
            "quota_principals": len(self.rates),
            "quota_principals_evicted_total": self.rates.evicted,
            "quota_waits_total": self.rates.waited,
            "quota_refused_total": self.refused,
        }

    def start(self) -> None:
        """Have the table, and read it."""
        self.table.start()

    def release_all(self) -> None:
        self.table.close()
        self.kept.close()

    def shared_by(self, brokers: int) -> None:
        """So many brokers of the cluster share what quotas allow."""
        self.rates.parts = max(1, brokers)

    # What rooms ask

    def senders(self, grants: Grants | None, topics: Iterable[str]) -> tuple[str, ...]:
        """Whose quotas hold for what a connection publishes: its key's, and those of the topics' tenants.

        What a gateway sends is its clients', who have their own; keys of other roles above stand above all.
        """
        if grants is not None and not grants.key.roles.isdisjoint(_ABOVE):
            return ()
        tenants = dict.fromkeys(filter(None, map(tenant_of, topics)))
        return (*principals_of(grants), *(principal_of(TENANT, tenant) for tenant in tenants))

    def wait_s(self, senders: tuple[str, ...], messages: int, size_bytes: int) -> float:
        """For how long somebody with so many messages has to wait, 0 = he may send now."""
        return self.rates.wait_s(senders, messages, size_bytes, self._loop.time())

    def sent(self, senders: tuple[str, ...], messages: int, size_bytes: int) -> None:
        """Count what is sent by somebody who needed not wait."""
        self.rates.take(senders, messages, size_bytes, self._loop.time())

    def check_topics(self, name: str, names: Callable[[], Iterable[str]]) -> None:
        """Raise RemoteError if a topic of this name is one too many for its tenant.

        `names` gives those of all topics that there are, and of those that are about to be.
        """
        tenant = tenant_of(name) if self.has_counts else ""
        quota = self._book.of(principal_of(TENANT, tenant)) if tenant else None
        if quota is None or not quota.topics:
            return
        if _count_of(tenant, names()) >= quota.topics:
            principal = principal_of(TENANT, tenant)
            self.refuse(principal)
            raise RemoteError(
                Code.QUOTA_EXCEEDED,
                f"{principal} has the {quota.topics} topics that its quota allows: delete some, or raise it "
                f"(holdmq quota set {principal} --topics N)",
            )

    def is_full(self, topic: str) -> RemoteError | None:
        """The refusal of more for a topic whose tenant keeps all that it may; None = there is room."""
        tenant = tenant_of(topic)
        principal = principal_of(TENANT, tenant)
        quota = self._book.of(principal) if tenant else None
        if quota is None or not quota.kept_bytes:
            return None
        most = self._part_of(quota.kept_bytes)
        if self.kept.of(tenant) < most:
            return None
        self.refuse(principal)
        return RemoteError(
            Code.QUOTA_EXCEEDED,
            f"{principal} keeps the {most} bytes at this broker that its quota allows: shorten its topics' "
            f"retention, delete some, or raise it (holdmq quota set {principal} --kept-bytes N)",
        )

    def _kept_queues(self) -> list[TenantQueue]:
        """The queues of tenants for whom it is limited how much they keep; none if it is for nobody."""
        if not self.has_kept:
            return []
        found = []
        for topic in self._known_topics():
            tenant = tenant_of(topic.name)
            quota = self._book.of(principal_of(TENANT, tenant)) if tenant else None
            if quota is not None and quota.kept_bytes and not topic.is_temporary:
                queues = range(max(topic.read_queues, topic.write_queues))
                found += [TenantQueue(tenant, topic.name, queue_id) for queue_id in queues]
        return found

    def sessions_max(self, principal: str) -> int:
        """How many sessions of a user or tenant may be written down here; 0 = as many as it likes."""
        quota = self._book.of(principal)
        return 0 if quota is None else self._part_of(quota.sessions)

    def connections_max(self, principal: str) -> int:
        """How many clients of a user or tenant may be connected here; 0 = as many as it likes."""
        quota = self._book.of(principal)
        return 0 if quota is None else self._part_of(quota.connections)

    def refuse(self, principal: str) -> None:
        """Count one that was refused, as a quota is used up."""
        self.refused += 1
        if principal not in self._refused_of and len(self._refused_of) >= REFUSED_MAX:
            self._refused_of.clear()
        self._refused_of[principal] = self._refused_of.get(principal, 0) + 1

    def admit(self, connection: Connection) -> None:
        """Let a connection that says HELLO in. Raises RemoteError if its key has all that it may."""
        if not self.has_counts:
            return
        for principal in principals_of(connection.grants):
            quota = self._book.of(principal)
            if quota is None or not quota.connections or not principal.startswith(f"{KEY}:"):
                continue
            if self._connections_of_key(connection.principal) >= quota.connections:
                self.refuse(principal)
                raise RemoteError(
                    Code.QUOTA_EXCEEDED,
                    f"{principal} has the {quota.connections} connections to this broker that its quota "
                    f"allows: close some, or raise it (`holdmq quota set {principal} --connections N`)",
                )

    def _topics_of(self, tenant: str) -> int:
        return _count_of(tenant, (topic.name for topic in self._known_topics()))

    def _connections_of_key(self, name: str) -> int:
        return sum(
            hello is not None and connection.principal == name
            for connection, hello in self._connections.items()
        )

    def _part_of(self, limit: int) -> int:
        """This broker's part of a number: at least 1 of what is limited, rounded up."""
        return -(-limit // self.rates.parts)

    # Requests

    def set(self, request: Request) -> None:
        """Answer QUOTA_SET when the log has the quota; gateways are told then."""
        self.table.check_ready()
        (wanted,) = rows(QuotaRow, [request.header(QuotaSetRequest).quota])
        check_quota(wanted)
        by = wanted.by or request.connection.principal
        quota = wanted._replace(by=by, changed_ms=self._clock_ms())

        def done(error: HoldMQError | None) -> None:
            if error is not None:
                request.refuse(error)
                return
            log.info("a quota is set", principal=principal_of(quota.kind, quota.name), by=quota.by)
            request.reply(QuotaSetResponse(list(quota)))

        self.put(quota, done)

    def is_known(self, principal: str) -> bool:
        """Whether somebody has a quota of his own, or is about to."""
        return principal in self.table.rows or principal in self._adding

    def put(self, quota: QuotaRow, done: Callable[[HoldMQError | None], None]) -> None:
        """Have a quota, which was checked; `done` when it is durable and in force. Raises LIMIT_EXCEEDED."""
        principal = principal_of(quota.kind, quota.name)
        known = self.table.rows.keys() | self._adding.keys()
        if principal not in known and len(known) >= QUOTAS_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED,
                f"there are {QUOTAS_MAX} quotas; remove some, or let users share that of `user:*`",
            )
        self._adding[principal] = quota

        def kept(error: HoldMQError | None) -> None:
            if self._adding.get(principal) is quota:
                del self._adding[principal]
            if error is None:
                self._book.put(quota)
                self._changed([quota], [])
                self.row_changed.happened(principal, True)
            done(error)

        self.table.put(principal, encode_quota(quota), quota, kept)

    def remove(self, request: Request) -> None:
        """Answer QUOTA_REMOVE when the log has it."""
        self.table.check_ready()
        header = request.header(QuotaRemoveRequest)
        principal = principal_of(header.kind, header.name)
        if not self.is_known(principal):
            request.reply(QuotaRemoveResponse(False))
            return

        def done(error: HoldMQError | None) -> None:
            if error is not None:
                request.refuse(error)
                return
            by = header.by or request.connection.principal
            log.info("a quota is removed", principal=principal, by=by)
            request.reply(QuotaRemoveResponse(True))

        self.drop(header.kind, header.name, done)

    def drop(self, kind: str, name: str, done: Callable[[HoldMQError | None], None]) -> None:
        """Have a quota no more; `done` when that is durable and in force."""
        principal = principal_of(kind, name)

        def dropped(error: HoldMQError | None) -> None:
            if error is None:
                self._book.drop(kind, name)
                self._changed([], [(kind, name)])
                self.row_changed.happened(principal, False)
            done(error)

        self.table.drop([principal], dropped)

    def list_(self, request: Request) -> None:
        """Answer QUOTA_LIST with a page of quotas, and what is used of them here."""
        self.table.check_open()
        header = request.header(QuotaListRequest)
        count = max(1, min(header.max_count, LIST_MAX))
        keys = sorted(key for key in self.table.rows if key > header.after)
        shown = [self.table.rows[key] for key in keys[:count]]
        last = keys[count - 1] if len(keys) > count else None
        used = self._used(header.after, last)
        request.reply(QuotaListResponse(shown, used, self.rates.parts, last))

    def _used(self, after: str, last: str | None) -> list[QuotaUse]:
        """The use of principals between two keys, at most LIST_MAX: those that have a quota of their own, or
        send, or were refused."""
        known = self.table.rows.keys() | set(self.rates.principals()) | self._refused_of.keys()
        chosen = sorted(name for name in known if name > after and (last is None or name <= last))[:LIST_MAX]
        now = self._loop.time()
        found = []
        for principal in chosen:
            messages, size_bytes, waited = self.rates.used(principal, now)
            use = QuotaUse(
                principal, round(messages), round(size_bytes), waited=waited,
                refused=self._refused_of.get(principal, 0),
            )  # fmt: skip
            kind, _, name = principal.partition(":")
            if kind == TENANT:
                use = use._replace(topics=self._topics_of(name), kept_bytes=self.kept.of(name))
            if kind == KEY:
                use = use._replace(connections=self._connections_of_key(name))
            else:
                use = use._replace(
                    sessions=self._sessions.sessions_of(principal),
                    connections=self._sessions.connections_of(principal),
                )
            found.append(use)
        return found

    def spend(self, request: Request) -> None:
        """Count what clients of a gateway worker have sent; answer who may not be read for a while."""
        spent = rows(QuotaSpent, request.header(QuotaSpendRequest).spent)
        if len(spent) > LIST_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"at most {LIST_MAX} principals in one QUOTA_SPEND")
        owed = []
        now = self._loop.time()
        parts = self.rates.parts
        for row in spent:
            messages, size_bytes = max(0, row.messages) / parts, max(0, row.size_bytes) / parts
            owed_s = self.rates.take((row.principal,), messages, size_bytes, now) - LENT_S
            if owed_s > 0:
                self.rates.held_back(row.principal)
                owed.append(QuotaOwed(row.principal, int(owed_s * 1000) + 1))
        request.reply(QuotaSpendResponse(owed))

    # Changes

    def _known(self, found: dict[str, QuotaRow]) -> None:
        self._book.replace(found.values())
        self._changed(list(found.values()), [])

    def _changed(self, made: list[QuotaRow], removed: list[tuple[str, str]]) -> None:
        """Let what is limited know, and push it to every gateway worker."""
        self.has_rates = self._book.has_rates
        self.has_counts = self._book.has_counts
        self.has_kept = any(quota.kept_bytes for quota in self._book)
        self.kept.look()
        self.rates.quotas_changed()
        for at in range(0, max(1, len(made)), LIST_MAX):
            push = QuotaChangedRequest(made[at : at + LIST_MAX], removed)
            for connection, hello in self._connections.items():
                if hello is not None and hello.role == "gateway":
                    connection.send_one_way(RequestCode.QUOTA_CHANGED, push)


def _count_of(tenant: str, names: Iterable[str]) -> int:
    """How many of these topics a tenant has made; those of its groups' retries are not its own."""
    return sum(tenant_of(name) == tenant and not name.startswith("%") for name in names)


def principals_of(grants: Grants | None) -> Iterable[str]:
    """Whose quotas hold for what a connection sends: none for who is anonymous, or stands above quotas."""
    if grants is None or not grants.key.roles.isdisjoint(_ABOVE):
        return ()
    return (principal_of(KEY, grants.key.name),)
