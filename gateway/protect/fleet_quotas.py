"""Quotas that hold in the whole cluster, as brokers have them: followed, kept for who publishes here.

A worker counts what clients of a principal (a user, a tenant) send against the principal's whole rate, and
stops reading those of one that has used it up. What it has counted it tells all brokers a few times a second:
they know what other workers and producers have sent, and say for how long nobody of a principal may be read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.ground.counters import Counters
from gateway.protect.metering import MeteredConnection
from gateway.session.session import Session
from holdmq.errors import HoldMQError
from holdmq.names.tenants import split_mount
from holdmq.quotas.limits import QuotaBook, principal_of
from holdmq.quotas.throttles import THROTTLES_MAX, Throttles
from holdmq.rpc.connection import Connection, Reply, Request
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import HelloResponse
from holdmq.wire.quota_headers import (
    LIST_MAX,
    TENANT,
    USER,
    QuotaChangedRequest,
    QuotaListRequest,
    QuotaListResponse,
    QuotaOwed,
    QuotaRow,
    QuotaSpendRequest,
    QuotaSpendResponse,
    QuotaSpent,
)

if TYPE_CHECKING:
    from holdmq.client.route import Link, RouteTable

ANSWER_S: Final = 5.0
SPEND_ANSWER_S: Final = 2.0
"""How long a report of what was sent may go unanswered; what is sent meanwhile is in the next one."""
RETRY_S: Final = 1.0
"""How soon a broker that could not tell its quotas is asked again."""
SPEND_S: Final = 0.2
"""How often brokers hear what clients have sent: a fiftieth of the time over which a rate is to be exact."""
EXPIRE_S: Final = 10.0
"""How often those that send no more are forgotten."""

log = telemetry.get_logger()


class FleetQuotas:
    """The quotas of all brokers; call `follow` before the routes are started, then `tick` with the time."""

    def __init__(self, counters: Counters) -> None:
        self.has_rates = False
        """Whether anybody has a rate to keep."""
        self._counters = counters
        self._book = QuotaBook()
        self._throttles: Throttles[MeteredConnection] = Throttles(self._rates_of)
        self._concerned: dict[MeteredConnection, bool] = {}
        """Whether a connection has a rate to keep, of those that published since rates last changed."""
        self._spent: dict[str, list[int]] = {}
        """Messages and bytes by principal that brokers have not been told of."""
        self._rows: dict[str, dict[str, QuotaRow]] = {}
        """What each broker has told, by broker and principal; it stays while that is away."""
        self._is_news = False
        self._brokers: dict[Connection, str] = {}
        self._told: dict[Connection, dict[str, QuotaRow]] = {}
        """What a broker has told so far that is still asked for all of them."""
        self._unanswered = 0
        self._next_spend = 0.0
        self._next_expiry = 0.0
        self._loop = asyncio.get_running_loop()

    def follow(self, routes: RouteTable) -> None:
        """Ask every broker that connects, and hear what changes."""
        routes.on_up.append(self._up)
        routes.on_down.append(self._down)
        routes.answers[RequestCode.QUOTA_CHANGED] = self._changed

    # Clients

    def concern(self, connection: MeteredConnection) -> bool:
        """Whether this client's user or tenant has a rate to keep."""
        known = self._concerned.get(connection)
        if known is None:
            known = any(map(self._rates_of, _principals_of(connection.session)))
            self._concerned[connection] = known
        return known

    def took(self, connection: MeteredConnection, messages: int, size_bytes: int, now: float) -> None:
        """Count what a client has published; its socket is not read while a quota of it is used up."""
        for principal in _principals_of(connection.session):
            throttle = self._throttles.of(principal, now)
            if throttle is None:
                continue
            self._count(principal, messages, size_bytes)
            if throttle.took(messages, size_bytes, now):
                self._throttles.wait(connection, throttle)
                self._counters.quota_paused_total += 1
                connection.pause_for_quota()

    def forget(self, connection: MeteredConnection) -> None:
        """A connection is gone."""
        self._concerned.pop(connection, None)
        self._throttles.forget(connection)

    def tick(self, now: float) -> None:
        """Read those again for whom there is room, and tell brokers what was sent."""
        if self._is_news:
            self._take_over()
        if self._throttles.waiting:
            for connection in self._throttles.let_on(now):
                connection.quota_has_room()
        if now < self._next_spend:
            return
        self._next_spend = now + SPEND_S
        self._counters.quota_paused = self._throttles.waiting
        if self._spent and not self._unanswered:
            self._spend(now)
        if now >= self._next_expiry:
            self._next_expiry = now + EXPIRE_S
            self._throttles.expire(now)

    def _rates_of(self, principal: str) -> tuple[float, float] | None:
        quota = self._book.of(principal)
        if quota is None or not (quota.publish_rate or quota.publish_bytes_rate):
            return None
        return quota.publish_rate, quota.publish_bytes_rate

    def _count(self, principal: str, messages: int, size_bytes: int) -> None:
        spent = self._spent.get(principal)
        if spent is None:
            if len(self._spent) >= THROTTLES_MAX:
                return  # their brokers do not answer: they count for themselves
            spent = self._spent[principal] = [0, 0]
        spent[0] += messages
        spent[1] += size_bytes

    def _spend(self, now: float) -> None:
        told = list(self._spent)[:LIST_MAX]
        report = QuotaSpendRequest([QuotaSpent(name, *self._spent.pop(name)) for name in told])

        def answered(result: Reply | HoldMQError) -> None:
            self._unanswered -= 1
            try:
                if isinstance(result, HoldMQError):
                    raise result
                owed = rows(QuotaOwed, result.header(QuotaSpendResponse).owed)
            except HoldMQError as error:
                log.debug("a broker did not say who has to wait", reason=str(error))
                return
            since_s = self._loop.time() - now
            for row in owed:
                self._throttles.hold(row.principal, row.owed_ms / 1000 - since_s, now + since_s)

        for connection in list(self._brokers):
            self._unanswered += 1
            connection.request(RequestCode.QUOTA_SPEND, report, answered, SPEND_ANSWER_S)

    def _take_over(self) -> None:
        """Have what brokers say now; of two quotas for one the newer holds."""
        self._is_news = False
        newest: dict[str, QuotaRow] = {}
        for of_broker in self._rows.values():
            for principal, row in of_broker.items():
                known = newest.get(principal)
                if known is None or known.changed_ms < row.changed_ms:
                    newest[principal] = row
        self._book.replace(newest.values())
        self.has_rates = self._book.has_rates
        self._concerned.clear()
        self._counters.fleet_quotas = len(self._book)
        for connection in self._throttles.rates_changed():
            connection.quota_is_other()

    # What brokers say

    def _up(self, link: Link, connection: Connection, _hello: HelloResponse) -> None:
        for other in [other for other, name in self._brokers.items() if name == link.name]:
            del self._brokers[other]
        self._brokers[connection] = link.name
        self._ask_all(connection)

    def _down(self, link: Link, _reason: HoldMQError) -> None:
        for connection in [one for one, name in self._brokers.items() if name == link.name]:
            del self._brokers[connection]
            self._told.pop(connection, None)

    def _ask_all(self, connection: Connection) -> None:
        if connection in self._brokers:
            self._told[connection] = {}
            self._ask(connection, "")

    def _ask(self, connection: Connection, after: str) -> None:
        def answered(result: Reply | HoldMQError) -> None:
            told = self._told.get(connection)
            if told is None:
                return
            try:
                if isinstance(result, HoldMQError):
                    raise result
                answer = result.header(QuotaListResponse)
                _put(told, answer.quotas)
            except HoldMQError as error:
                del self._told[connection]
                log.debug("a broker did not tell its quotas", reason=str(error))
                self._loop.call_later(RETRY_S, self._ask_all, connection)
                return
            if answer.next_after is not None:
                self._ask(connection, answer.next_after)
                return
            del self._told[connection]
            self._rows[self._brokers[connection]] = told
            self._is_news = True

        connection.request(RequestCode.QUOTA_LIST, QuotaListRequest(after), answered, ANSWER_S)

    def _changed(self, request: Request) -> None:
        header = request.header(QuotaChangedRequest)
        broker = self._brokers.get(request.connection)
        if broker is None:
            return
        for known in (self._rows.setdefault(broker, {}), self._told.get(request.connection)):
            if known is None:
                continue
            _put(known, header.made)
            for gone in rows(QuotaRow, header.removed):
                known.pop(principal_of(gone.kind, gone.name), None)
        self._is_news = True


def _put(known: dict[str, QuotaRow], made: list[object]) -> None:
    known.update((principal_of(row.kind, row.name), row) for row in rows(QuotaRow, made))


def _principals_of(session: Session) -> tuple[str, ...]:
    """Whose quotas hold for what a client sends: its user's, and its tenant's."""
    user, tenant = session.principal, split_mount(session.client_id).tenant
    if tenant:
        of_tenant = principal_of(TENANT, tenant)
        return (principal_of(USER, user), of_tenant) if user else (of_tenant,)
    return (principal_of(USER, user),) if user else ()
