"""Quotas of tenants, users and access keys, with what is used of them; set and removed here."""

from __future__ import annotations

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from holdmq.client.quotas import QuotaView
from holdmq.quotas.limits import LIMIT_MAX
from holdmq.wire.quota_headers import QuotaRow


class QuotaLimits(InputModel):
    """What somebody may use; 0 = as much as he likes. A user or key has no topics and kept bytes."""

    publish_rate: int = Field(0, ge=0, le=LIMIT_MAX)
    publish_bytes_rate: int = Field(0, ge=0, le=LIMIT_MAX)
    topics: int = Field(0, ge=0, le=LIMIT_MAX)
    sessions: int = Field(0, ge=0, le=LIMIT_MAX)
    connections: int = Field(0, ge=0, le=LIMIT_MAX)
    kept_bytes: int = Field(0, ge=0, le=LIMIT_MAX)


class UsedOfQuota(Answer):
    """What is used now, and how often one had to wait or was refused since the brokers' start."""

    messages_per_s: int
    bytes_per_s: int
    topics: int
    sessions: int
    connections: int
    kept_bytes: int
    waited: int
    refused: int


class QuotaOverview(Answer):
    """The quota of `kind:name`, its own or (`is_own` false) that of everybody of its kind.

    `lacking` are brokers that have another one, or none: it is to be set again.
    """

    kind: str
    name: str
    is_own: bool
    publish_rate: int
    publish_bytes_rate: int
    topics: int
    sessions: int
    connections: int
    kept_bytes: int
    by: str
    changed_ms: int
    used: UsedOfQuota
    lacking: list[str]


class QuotaList(Noticed):
    """All quotas, and who uses that of everybody, by kind and name."""

    quotas: list[QuotaOverview]


class QuotaChanged(Noticed):
    """A quota was set or removed."""

    kind: str
    name: str


def endpoints(clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over quotas."""
    quotas = clients.quotas

    async def list_(_call: Call) -> Result:
        found = await quotas.list()
        answer = QuotaList(quotas=[_shown(view) for view in found.quotas])
        if found.away:
            answer.notice = f"no answer from {', '.join(found.away)}: what is used there is missing"
        return answer

    async def set_(call: Call) -> Result:
        kind, name = call.path("kind"), call.path("name")
        limits: QuotaLimits = call.body
        done = await quotas.set(QuotaRow(kind, name, **limits.model_dump(), by=call.caller.name))
        return _changed(kind, name, done.away)

    async def remove(call: Call) -> Result:
        kind, name = call.path("kind"), call.path("name")
        done = await quotas.remove(kind, name, call.caller.name)
        if not done.was_present and not done.away:
            raise RefusedRequest(404, "NOT_FOUND", f"the {kind[:40]} {name[:200]!r} has no quota")
        return _changed(kind, name, done.away)

    return [
        Endpoint("GET", "quotas", Rank.VIEWER, list_, "Quotas, and what is used of them.", QuotaList),
        Endpoint("PUT", "quotas/{kind}/{name}", Rank.OPERATOR, set_,
                 "Set what a tenant, user or access key may use.", QuotaChanged, body=QuotaLimits,
                 names_slashes=frozenset({"name"})),
        Endpoint("DELETE", "quotas/{kind}/{name}", Rank.OPERATOR, remove, "Remove a quota.", QuotaChanged,
                 names_slashes=frozenset({"name"})),
    ]  # fmt: skip


def _changed(kind: str, name: str, away: list[str]) -> QuotaChanged:
    answer = QuotaChanged(kind=kind, name=name)
    if away:
        answer.notice = f"no answer from {', '.join(away)}: it keeps to what it had; do this again then"
    return answer


def _shown(view: QuotaView) -> QuotaOverview:
    kind, _, name = view.principal.partition(":")
    quota, used = view.quota._asdict(), view.used._asdict()
    del used["principal"]
    quota["kind"], quota["name"] = kind, name
    return QuotaOverview(
        is_own=view.quota.name == name, used=UsedOfQuota(**used), lacking=view.lacking, **quota
    )
