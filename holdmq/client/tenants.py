"""Tenants of the cluster: who there is, what each has and uses, and its end. See docs/tenants.md.

Nothing keeps a list of tenants: one exists while a topic, group, access key or quota names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdmq.client.admin import Admin
from holdmq.client.cluster_calls import AdminCalls
from holdmq.client.dead_letters import DeadLetters
from holdmq.client.groups import GroupAdmin
from holdmq.client.quotas import QuotaAdmin, QuotaView
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.names.tenants import SEPARATOR, check_tenant, tenant_of, within
from holdmq.names.topics import is_system_topic
from holdmq.quotas.limits import principal_of
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.key_headers import KeyListRequest, KeyListResponse, KeyRow
from holdmq.wire.quota_headers import EVERYBODY, TENANT, QuotaUse

TIMEOUT_S: Final = 10.0
"""Deadline of one request, retries included."""


class TenantView(NamedTuple):
    """A tenant: its topics and groups in its own words, and the names of its access keys.

    `messages` are stored in its topics, at all brokers. `quota`: its own, or that of every tenant, with what
    is used of it; None = it has none, and nothing is counted.
    """

    tenant: str
    topics: list[str]
    groups: list[str]
    keys: list[str]
    messages: int
    quota: QuotaView | None


class TenantsFound(NamedTuple):
    """Tenants by name; `away` are brokers that did not answer: what they alone know is missing."""

    tenants: list[TenantView]
    away: list[str]


class TenantRemoved(NamedTuple):
    """What a removal took, and what it could not: (name, why). `keys` name the tenant still."""

    topics: list[str]
    groups: list[str]
    had_quota: bool
    keys: list[str]
    failures: list[tuple[str, str]]


class TenantAdmin(AdminCalls):
    """Looks after tenants: `async with TenantAdmin(["host:9876"]) as tenants`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. Calls raise TransportError when no
    broker answers within `timeout_s`, RemoteError when one refuses, UsageError for what is no tenant's name.
    """

    KIND = "tenants"
    TIMEOUT_S = TIMEOUT_S

    async def show(self, tenant: str) -> TenantView | None:
        """Return one tenant; None: nothing names it."""
        check_tenant(tenant)
        found = await self._find(tenant)
        return found.tenants[0] if found.tenants else None

    async def remove(self, tenant: str) -> TenantRemoved | None:
        """Delete a tenant's topics with their messages, its groups and its quota; None: nothing names it.

        Its keys stay, as they are in files. Raises RemoteError (GROUP_IN_USE), and removes nothing, while one
        of its groups has members. May be repeated: what is gone is passed over.
        """
        view = await self.show(tenant)
        if view is None:
            return None
        admin = Admin(routes=self.routes)
        groups = GroupAdmin(routes=self.routes, timeout_s=self.timeout_s)
        letters = DeadLetters(routes=self.routes, timeout_s=self.timeout_s)
        quotas = QuotaAdmin(routes=self.routes, timeout_s=self.timeout_s)
        wholes = [f"{tenant}{SEPARATOR}{group}" for group in view.groups]
        for group in wholes:
            members = await groups.members(group)
            if members:
                names = sorted({row.client_id for found in members.values() for row in found})
                raise RemoteError(
                    Code.GROUP_IN_USE, f"group {group!r} has members: {', '.join(names[:5])}; stop them first"
                )
        failures: list[tuple[str, str]] = []
        gone_groups: list[str] = []
        for group, own in zip(wholes, view.groups, strict=True):
            try:
                await letters.purge(group)
                await groups.delete(group)
                gone_groups.append(own)
            except HoldMQError as error:
                failures.append((group, str(error)))
        gone_topics: list[str] = []
        for own in view.topics:
            topic = f"{tenant}{SEPARATOR}{own}"
            try:
                await admin.delete_topic(topic, force=True)
                gone_topics.append(own)
            except HoldMQError as error:
                failures.append((topic, str(error)))
        had_quota = view.quota is not None and view.quota.quota.name == tenant
        if had_quota:
            removed = await quotas.remove(TENANT, tenant)
            failures += [(f"the quota at {broker}", "no answer") for broker in removed.away]
        return TenantRemoved(gone_topics, gone_groups, had_quota, view.keys, failures)

    async def _find(self, only: str) -> TenantsFound:
        """All tenants, or the `only` one, if there is anything that names it."""
        admin = Admin(routes=self.routes)
        groups = GroupAdmin(routes=self.routes, timeout_s=self.timeout_s)
        search = f"{only or ''}{SEPARATOR}"
        messages = await admin.topic_column("messages_stored", search)
        known_groups = await groups.column("members", search)
        quotas = await QuotaAdmin(routes=self.routes, timeout_s=self.timeout_s).list()
        keys, away = await self._keys(only)
        of_tenants = {
            view.principal: view for view in quotas.quotas if view.principal.startswith(f"{TENANT}:")
        }
        everybodys = of_tenants.pop(principal_of(TENANT, EVERYBODY), None)
        named = {
            *map(tenant_of, messages),
            *map(tenant_of, known_groups),
            *(key.tenant for key in keys),
            *(principal.partition(":")[2] for principal in of_tenants),
        } - {""}
        views = [
            TenantView(
                tenant,
                _own(tenant, (topic for topic in messages if not is_system_topic(topic))),
                _own(tenant, known_groups),
                [key.name for key in keys if key.tenant == tenant],
                sum(int(count) for topic, count in messages.items() if tenant_of(topic) == tenant),
                of_tenants.get(principal_of(TENANT, tenant)) or _unused(everybodys, tenant),
            )
            for tenant in sorted(named)
            if only in ("", tenant)
        ]
        return TenantsFound(views, sorted({*quotas.away, *away}))

    async def _keys(self, tenant: str) -> tuple[list[KeyRow], list[str]]:
        """The keys of a tenant ("" = of all) by name, each once, and the brokers that do not tell."""
        found: dict[str, KeyRow] = {}
        away: list[str] = []
        for broker in await self._live_brokers():
            after: str | None = ""
            while after is not None:
                try:
                    reply = await self.call(RequestCode.KEY_LIST, broker, KeyListRequest(tenant, after))
                except HoldMQError as error:
                    if error.code == Code.NOT_PERMITTED:
                        raise
                    if error.code != Code.UNKNOWN_REQUEST:
                        away.append(broker)
                    break
                answer = reply.header(KeyListResponse)
                found.update((row.name, row) for row in rows(KeyRow, answer.keys))
                after = answer.next_after
        return [found[name] for name in sorted(found)], away

    async def list(self) -> TenantsFound:
        """Return all tenants, by name."""
        return await self._find("")


def _own(tenant: str, names: Iterable[str]) -> list[str]:
    return sorted(within(tenant, name) for name in names if tenant_of(name) == tenant)


def _unused(everybodys: QuotaView | None, tenant: str) -> QuotaView | None:
    """The quota of every tenant for one that has used nothing of it."""
    if everybodys is None:
        return None
    principal = principal_of(TENANT, tenant)
    return QuotaView(principal, everybodys.quota, QuotaUse(principal), [])
