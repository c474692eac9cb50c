"""Bans of MQTT clients for the whole fleet: made, listed, lifted. See docs/clients.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import AdminCalls
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.wire.ban_headers import (
    LIST_MAX,
    BanAddRequest,
    BanAddResponse,
    BanListRequest,
    BanListResponse,
    BanRemoveRequest,
    BanRemoveResponse,
    BanRow,
    FlappingListRequest,
    FlappingListResponse,
    FlappingRow,
)
from holdmq.wire.bans import BanKey, checked, key_of
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.session_headers import session_owner

TIMEOUT_S: Final = 10.0
"""Deadline of one request, retries included."""


class BansFound(NamedTuple):
    """Bans by kind and value; `away` are brokers that did not answer: what they have may be missing."""

    bans: list[BanRow]
    away: list[str]


class FlappingBansFound(NamedTuple):
    """Bans that gateways have made by themselves; `silent` are workers that did not answer."""

    bans: list[FlappingRow]
    silent: list[str]


class Lifted(NamedTuple):
    """Whether a ban was there; one that a broker has that is `away` is in force until it is lifted there."""

    was_present: bool
    away: list[str]


class BanAdmin(AdminCalls):
    """Makes and lifts bans: `async with BanAdmin(["host:9876"]) as bans`, on one event loop.

    `routes`: share this RouteTable, which the caller starts and closes. Calls raise TransportError when no
    broker answers within `timeout_s`, RemoteError (LIMIT_EXCEEDED) for what cannot be banned.
    """

    KIND = "bans"
    TIMEOUT_S = TIMEOUT_S

    async def add(self, ban: BanRow) -> BanRow:
        """Ban, durably; gateways refuse such clients, and disconnect those that they have, within a second.

        One broker keeps it, by what is banned; another one while that is away. A ban of the same is replaced.
        """
        ban = checked(ban)
        brokers = await self._live_brokers()
        left = list(brokers)
        while True:
            owner = session_owner(ban.value, left)
            try:
                reply = await self.call(RequestCode.BAN_ADD, owner, BanAddRequest(list(ban)))
                break
            except HoldMQError as error:
                left.remove(owner)
                if not error.retriable or not left:
                    raise
        (made,) = rows(BanRow, [reply.header(BanAddResponse).ban])
        # Another broker may have an older one of it, from while this one was away.
        others = [broker for broker in brokers if broker != owner]
        await self._lift(ban.kind, ban.value, ban.by, others)
        return made

    async def remove(self, kind: str, value: str, by: str = "") -> Lifted:
        """Lift a ban, durably, at every broker."""
        ban = checked(BanRow(kind, value))
        return await self._lift(ban.kind, ban.value, by, await self._live_brokers())

    async def _lift(self, kind: str, value: str, by: str, brokers: list[str]) -> Lifted:
        request = BanRemoveRequest(kind, value, by)
        answers = await self._ask_each(RequestCode.BAN_REMOVE, dict.fromkeys(brokers, request))
        away = _away(answers)
        found = [answer for answer in answers.values() if not isinstance(answer, HoldMQError)]
        return Lifted(any(reply.header(BanRemoveResponse).was_present for reply in found), away)

    async def list(self) -> BansFound:
        """Return all bans, by kind and value."""
        found: dict[BanKey, BanRow] = {}
        away: list[str] = []
        errors: list[HoldMQError] = []
        brokers = await self._live_brokers()
        for broker in brokers:
            after: str | None = ""
            try:
                while after is not None:
                    reply = await self.call(RequestCode.BAN_LIST, broker, BanListRequest(after))
                    answer = reply.header(BanListResponse)
                    for ban in rows(BanRow, answer.bans):
                        known = found.get(key_of(ban))
                        if known is None or known.made_ms < ban.made_ms:
                            found[key_of(ban)] = ban
                    after = answer.next_after
            except HoldMQError as error:
                away.append(broker)
                errors.append(error)
        if len(errors) == len(brokers) or any(error.code == Code.NOT_PERMITTED for error in errors):
            raise errors[0]
        return BansFound([found[key] for key in sorted(found)], away)

    async def flapping(self) -> FlappingBansFound:
        """Return the bans that gateways have made of clients that connect too often, and where."""
        found: dict[tuple[str, str, str], FlappingRow] = {}
        workers: list[str] = []
        silent: dict[str, None] = {}
        errors: list[HoldMQError] = []
        brokers = await self._live_brokers()
        for broker in brokers:
            request = FlappingListRequest(LIST_MAX, workers)
            try:
                reply = await self.call(RequestCode.FLAPPING_LIST, broker, request)
            except HoldMQError as error:
                errors.append(error)
                continue
            answer = reply.header(FlappingListResponse)
            for row in rows(FlappingRow, answer.bans):
                found[row.gateway, row.principal, row.address] = row
            workers += answer.workers
            silent.update(dict.fromkeys(answer.silent))
        if len(errors) == len(brokers):
            raise errors[0]
        return FlappingBansFound(sorted(found.values()), list(silent))


def _away(answers: Mapping[str, object]) -> list[str]:
    """Return the brokers that did not answer. Raises what is wrong with the question itself."""
    for answer in answers.values():
        if isinstance(answer, RemoteError) and not answer.retriable and answer.code != Code.UNKNOWN_REQUEST:
            raise answer
    return [broker for broker, answer in answers.items() if isinstance(answer, HoldMQError)]
