"""Quotas of tenants, users and access keys: set, listed with what is used, removed. See docs/quotas.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.quotas.limits import check_quota, principal_of
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.quota_headers import (
    EVERYBODY,
    QuotaListRequest,
    QuotaListResponse,
    QuotaRemoveRequest,
    QuotaRemoveResponse,
    QuotaRow,
    QuotaSetRequest,
    QuotaSetResponse,
    QuotaUse,
)

TIMEOUT_S: Final = 10.0
"""Deadline of one request, retries included."""


class QuotaView(NamedTuple):
    """The quota of a principal (`kind:name`), and what it uses at all brokers that answered together.

    `quota` is its own, or that of everybody of its kind; `lacking` are brokers that answered and have
    another one, or none: set it again.
    """

    principal: str
    quota: QuotaRow
    used: QuotaUse
    lacking: list[str]


class QuotasFound(NamedTuple):
    """Quotas by principal; `away` are brokers that did not answer: what is used there is missing."""

    quotas: list[QuotaView]
    away: list[str]


class QuotaSet(NamedTuple):
    """A quota as brokers have it now; those that were `away` have what they had."""

    quota: QuotaRow
    away: list[str]


class QuotaRemoved(NamedTuple):
    """Whether there was a quota; those that were `away` have what they had."""

    was_present: bool
    away: list[str]


class QuotaAdmin(AdminCalls):
    """Sets and removes quotas: `async with QuotaAdmin(["host:9876"]) as quotas`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. Calls raise TransportError when no
    broker answers within `timeout_s`, RemoteError (LIMIT_EXCEEDED) for what is no quota.
    """

    KIND = "quotas"
    TIMEOUT_S = TIMEOUT_S

    async def set(self, quota: QuotaRow) -> QuotaSet:
        """Have a quota at every live broker, durably, in place of the one of before."""
        check_quota(quota)
        answers = await self._ask_all(RequestCode.QUOTA_SET, QuotaSetRequest(list(quota)))
        found, away = _told(answers)
        (made,) = rows(QuotaRow, [found[0].header(QuotaSetResponse).quota])
        return QuotaSet(made, away)

    async def remove(self, kind: str, name: str, by: str = "") -> QuotaRemoved:
        """Take a quota away from every live broker, durably."""
        answers = await self._ask_all(RequestCode.QUOTA_REMOVE, QuotaRemoveRequest(kind, name, by))
        found, away = _told(answers)
        return QuotaRemoved(any(reply.header(QuotaRemoveResponse).was_present for reply in found), away)

    async def list(self) -> QuotasFound:
        """Return all quotas with their use, and users and keys that use that of everybody, by principal."""
        brokers = await self._live_brokers()
        quotas: dict[str, dict[str, QuotaRow]] = {}
        used: dict[str, QuotaUse] = {}
        errors: dict[str, HoldMQError] = {}
        for broker in brokers:
            try:
                await self._list(broker, quotas, used)
            except HoldMQError as error:
                errors[broker] = error
        if len(errors) == len(brokers) or any(e.code == Code.NOT_PERMITTED for e in errors.values()):
            raise next(iter(errors.values()))
        answered = [broker for broker in brokers if broker not in errors]
        newest = {
            principal: max(of_broker.values(), key=lambda row: row.changed_ms)
            for principal, of_broker in quotas.items()
        }
        views = []
        for principal in sorted(newest.keys() | used.keys()):
            kind = principal.partition(":")[0]
            quota = newest.get(principal) or newest.get(principal_of(kind, EVERYBODY))
            if quota is None:
                continue  # its quota was removed since it was used
            own = quotas.get(principal)
            lacking = [] if own is None else [one for one in answered if not _is_like(own.get(one), quota)]
            views.append(QuotaView(principal, quota, used.get(principal, QuotaUse(principal)), lacking))
        return QuotasFound(views, list(errors))

    async def _list(
        self, broker: str, quotas: dict[str, dict[str, QuotaRow]], used: dict[str, QuotaUse]
    ) -> None:
        after: str | None = ""
        while after is not None:
            reply = await self.call(RequestCode.QUOTA_LIST, broker, QuotaListRequest(after))
            answer = reply.header(QuotaListResponse)
            for row in rows(QuotaRow, answer.quotas):
                quotas.setdefault(principal_of(row.kind, row.name), {})[broker] = row
            for use in rows(QuotaUse, answer.used):
                used[use.principal] = _sum(used.get(use.principal), use)
            after = answer.next_after


def _told(answers: Mapping[str, Reply | HoldMQError]) -> tuple[list[Reply], list[str]]:
    """The answers, and the brokers that gave none. Raises what is wrong with the question itself."""
    for answer in answers.values():
        if isinstance(answer, RemoteError) and not answer.retriable and answer.code != Code.UNKNOWN_REQUEST:
            raise answer
    found = [answer for answer in answers.values() if isinstance(answer, Reply)]
    if not found:
        raise next(answer for answer in answers.values() if isinstance(answer, HoldMQError))
    return found, [broker for broker, answer in answers.items() if isinstance(answer, HoldMQError)]


def _is_like(one: QuotaRow | None, quota: QuotaRow) -> bool:
    return one is not None and one[:8] == quota[:8]


def _sum(one: QuotaUse | None, other: QuotaUse) -> QuotaUse:
    """What is used at two brokers; each has all topics."""
    if one is None:
        return other
    return QuotaUse(
        one.principal,
        one.messages_per_s + other.messages_per_s,
        one.bytes_per_s + other.bytes_per_s,
        max(one.topics, other.topics),
        one.sessions + other.sessions,
        one.connections + other.connections,
        one.kept_bytes + other.kept_bytes,
        one.waited + other.waited,
        one.refused + other.refused,
    )
