"""Services told to read their configuration again, and what came of it: what changed, what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from holdmq.client.configurations import reload_registry
from holdmq.errors import HoldMQError
from holdmq.rpc.security import Security
from holdmq.wire.config_headers import ReloadedRow


class ReloadOrder(InputModel):
    """Which services; `name` is a broker's name, a registry's address as this console's configuration has it,
    the beginning of a gateway's host; "" = all of them."""

    service: Literal["registry", "broker", "gateway"]
    name: str = Field("", max_length=256)


class ReloadedService(Answer):
    """One process: keys that changed, keys that wait for its restart, or why nothing was changed."""

    service: str
    name: str
    changed: list[str]
    waiting: list[str]
    error: str


class ReloadAnswer(Noticed):
    """What came of it, process by process."""

    reloaded: list[ReloadedService]


def endpoints(
    clients: ClusterClients, registries: Sequence[str], security: Security | None
) -> list[Endpoint]:
    """Return the endpoint; `registries` are those that may be asked."""
    configurations = clients.configurations

    async def reload(call: Call) -> Result:
        order: ReloadOrder = call.body
        if order.service == "gateway":
            found = await configurations.reload_gateways(order.name or "*")
            answer = ReloadAnswer(reloaded=[_shown(row) for row in found.rows])
            if found.silent:
                answer.notice = f"no answer from {', '.join(found.silent)}"
            return answer
        if order.service == "broker":
            await clients.admin.routes.refresh()
            known = sorted(clients.admin.routes.brokers())
        else:
            known = list(registries)
        if order.name and order.name not in known:
            raise RefusedRequest(404, "NOT_FOUND", f"{order.name[:200]!r} is no {order.service} here", "name")
        names = [order.name] if order.name else known
        rows = await asyncio.gather(*(_one(order.service, name) for name in names))
        return ReloadAnswer(reloaded=[_shown(row) for row in rows])

    async def _one(service: str, name: str) -> ReloadedRow:
        try:
            if service == "broker":
                return await configurations.reload_broker(name)
            return (await reload_registry(name, security))._replace(name=name)
        except HoldMQError as error:
            return ReloadedRow(service, name, [], [], str(error))

    return [
        Endpoint("POST", "configuration/reload", Rank.ADMIN, reload, "Have services read their configuration "
                 "again.", ReloadAnswer, body=ReloadOrder),
    ]  # fmt: skip


def _shown(row: ReloadedRow) -> ReloadedService:
    return ReloadedService(**row._asdict())
