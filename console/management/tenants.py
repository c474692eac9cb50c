"""Tenants of the cluster, with what each has and uses of its quota; removed here."""

from __future__ import annotations

from console.api.endpoint import Answer, Call, Endpoint, ListQuery, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from console.management.paging import part_of
from console.management.quotas import UsedOfQuota
from holdmq.client.quotas import QuotaView
from holdmq.client.tenants import TenantView

SORTS = ("tenant", "topics", "groups", "messages")


class TenantQuota(Answer):
    """What a tenant may use (0 = as much as it likes) and uses; `is_own` false: it is every tenant's."""

    is_own: bool
    publish_rate: int
    publish_bytes_rate: int
    topics: int
    sessions: int
    connections: int
    kept_bytes: int
    used: UsedOfQuota


class TenantOverview(Answer):
    """A tenant: how many topics and groups it has, the messages in them, its access keys, its quota."""

    tenant: str
    topics: int
    groups: int
    messages: int
    access_keys: list[str]
    quota: TenantQuota | None


class TenantList(Noticed):
    """A part of the tenants."""

    tenants: list[TenantOverview]
    total: int
    next: str | None


class TenantDetails(Answer):
    """A tenant, its topics and groups named in its own words."""

    tenant: str
    topics: list[str]
    groups: list[str]
    messages: int
    access_keys: list[str]
    quota: TenantQuota | None


class TenantEnded(Noticed):
    """What was removed of a tenant; `left` says what was not, and why. `access_keys` name it still."""

    tenant: str
    topics: list[str]
    groups: list[str]
    had_quota: bool
    access_keys: list[str]
    left: list[str]


def endpoints(clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over tenants."""
    tenants = clients.tenants

    async def list_(call: Call) -> Result:
        found = await tenants.list()
        part = part_of([_row(view) for view in found.tenants], call.query, ("tenant",), SORTS)
        answer = TenantList(
            tenants=[TenantOverview(**row) for row in part.rows], total=part.total, next=part.following
        )
        if found.away:
            answer.notice = f"no answer from {', '.join(found.away)}: what only they know is missing"
        return answer

    async def show(call: Call) -> Result:
        name = call.path("tenant")
        view = await tenants.show(name)
        if view is None:
            raise _none(name)
        return TenantDetails(
            tenant=view.tenant,
            topics=view.topics,
            groups=view.groups,
            messages=view.messages,
            access_keys=view.keys,
            quota=_quota(view),
        )

    async def remove(call: Call) -> Result:
        name = call.path("tenant")
        done = await tenants.remove(name)
        if done is None:
            raise _none(name)
        answer = TenantEnded(
            tenant=name,
            topics=done.topics,
            groups=done.groups,
            had_quota=done.had_quota,
            access_keys=done.keys,
            left=[f"{what}: {why}" for what, why in done.failures],
        )
        if done.keys:
            answer.notice = f"access keys name {name} still: {', '.join(done.keys)}"
        return answer

    return [
        Endpoint("GET", "tenants", Rank.VIEWER, list_, "Tenants, what they have and what they use.",
                 TenantList, query=ListQuery),
        Endpoint("GET", "tenants/{tenant}", Rank.VIEWER, show,
                 "A tenant, with the names of its topics and groups.", TenantDetails),
        Endpoint("DELETE", "tenants/{tenant}", Rank.ADMIN, remove,
                 "Delete a tenant's topics with their messages, its groups and its quota.", TenantEnded),
    ]  # fmt: skip


def _none(name: str) -> RefusedRequest:
    return RefusedRequest(404, "NOT_FOUND", f"no topic, group, access key or quota names {name[:200]!r}")


def _row(view: TenantView) -> dict[str, object]:
    return {
        "tenant": view.tenant,
        "topics": len(view.topics),
        "groups": len(view.groups),
        "messages": view.messages,
        "access_keys": view.keys,
        "quota": _quota(view),
    }


def _quota(view: TenantView) -> TenantQuota | None:
    return None if view.quota is None else _shown(view.quota, view.tenant)


def _shown(view: QuotaView, tenant: str) -> TenantQuota:
    quota, used = view.quota._asdict(), view.used._asdict()
    del used["principal"]
    limits = {name: quota[name] for name in TenantQuota.model_fields if name in quota}
    return TenantQuota(is_own=view.quota.name == tenant, used=UsedOfQuota(**used), **limits)
