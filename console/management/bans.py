"""Bans of MQTT clients: those of the fleet, made and lifted here, and those that gateways make themselves."""

from __future__ import annotations

import time
from typing import Literal

from pydantic import Field

from console.api.endpoint import Answer, Call, Endpoint, InputModel, Noticed, Result
from console.api.refusals import RefusedRequest
from console.identity.roles import Rank
from console.management.clients import ClusterClients
from holdmq.wire.ban_headers import BanRow, FlappingRow

KindOfBan = Literal["client_id", "user", "address", "pattern"]


class BanOverview(Answer):
    """A ban of all clients whose `kind` is `value`; `until_ms` null: for ever."""

    kind: str
    value: str
    reason: str
    by: str
    made_ms: int
    until_ms: int | None


class FlappingOverview(Answer):
    """A ban that a gateway has made, as this client connected too often from this address."""

    gateway: str
    principal: str
    address: str
    connects: int
    left_s: int


class BanList(Noticed):
    """All bans, those of the fleet by kind and value."""

    bans: list[BanOverview]
    flapping: list[FlappingOverview]


class NewBan(InputModel):
    """Whom to ban: `seconds` 0 = for ever."""

    kind: KindOfBan
    value: str = Field(min_length=1, max_length=16_384)
    reason: str = Field("", max_length=500)
    seconds: int = Field(0, ge=0, le=100 * 366 * 86_400)


class BanLifted(Noticed):
    """A ban was lifted."""

    kind: str
    value: str


def endpoints(clients: ClusterClients) -> list[Endpoint]:
    """Return the endpoints over bans."""
    bans = clients.bans

    async def list_(_call: Call) -> Result:
        made, flapping = await bans.list(), await bans.flapping()
        answer = BanList(
            bans=[_shown(ban) for ban in made.bans], flapping=[_flapping(row) for row in flapping.bans]
        )
        missing = [*made.away, *flapping.silent]
        if missing:
            answer.notice = f"no answer from {', '.join(missing)}: what only they know is missing"
        return answer

    async def add(call: Call) -> Result:
        wanted: NewBan = call.body
        until_ms = time.time_ns() // 1_000_000 + wanted.seconds * 1000 if wanted.seconds else 0
        ban = BanRow(wanted.kind, wanted.value, wanted.reason, call.caller.name, 0, until_ms)
        return _shown(await bans.add(ban))

    async def lift(call: Call) -> Result:
        kind, value = call.path("kind"), call.path("value")
        done = await bans.remove(kind, value, call.caller.name)
        if not done.was_present and not done.away:
            raise RefusedRequest(404, "NOT_FOUND", f"there is no ban of the {kind[:40]} {value[:200]!r}")
        answer = BanLifted(kind=kind, value=value)
        if done.away:
            answer.notice = f"no answer from {', '.join(done.away)}: a ban that they have stays in force"
        return answer

    return [
        Endpoint("GET", "bans", Rank.VIEWER, list_, "Bans of clients, and those that gateways have made.",
                 BanList),
        Endpoint("POST", "bans", Rank.OPERATOR, add, "Ban clients from every gateway.", BanOverview,
                 body=NewBan, status=201),
        Endpoint("DELETE", "bans/{kind}/{value}", Rank.OPERATOR, lift, "Lift a ban.", BanLifted,
                 names_slashes=frozenset({"value"})),
    ]  # fmt: skip


def _shown(ban: BanRow) -> BanOverview:
    return BanOverview(
        kind=ban.kind,
        value=ban.value,
        reason=ban.reason,
        by=ban.by,
        made_ms=ban.made_ms,
        until_ms=ban.until_ms or None,
    )


def _flapping(row: FlappingRow) -> FlappingOverview:
    return FlappingOverview(**row._asdict())
