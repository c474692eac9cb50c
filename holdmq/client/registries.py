"""Requests to whichever registry answers: one is kept, and when it fails all are tried at once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from holdmq.errors import HoldMQError, TransportError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import ForgottenRow
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import BrokerRow, RouteGetRequest, RouteGetResponse, RouteRow
from holdmq.wire.tenant_words import TenantWords

REGISTRY_TIMEOUT_S: Final = 2.0
"""How long one registry may take: it answers from memory."""
PAGED_TRIES_MAX: Final = 3
"""How often pages that change meanwhile are asked for anew; then their mix is taken (see `routes`)."""


class RouteAnswer(NamedTuple):
    """All pages of a ROUTE_GET."""

    routes: list[RouteRow]
    brokers: list[BrokerRow]
    version: int
    forgotten: list[ForgottenRow]
    """Brokers that were given up."""


class Registries:
    """Registries that know the same brokers; any of them will do.

    `cluster`: routes are those of its brokers alone, "" = of all.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        role: str,
        client_id: str,
        software: str,
        security: Security | None = None,
        cluster: str = "",
        words: TenantWords | None = None,
    ) -> None:
        self.cluster = cluster
        self._addresses = list(dict.fromkeys(addresses))
        self._role = role
        self._client_id = client_id
        self._software = software
        self._security = security
        self._words = words
        self._current: Client | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._errors: dict[str, HoldMQError | None] = {}
        """The last failure by address: a new client says only what is new."""

    async def call(self, code: RequestCode, header: Header, timeout_s: float = REGISTRY_TIMEOUT_S) -> Reply:
        """The first answer; RemoteError if it is a refusal, TransportError if none answers (and why).

        `timeout_s` is what one registry may take: more for a request that it holds.
        """
        current = self._current
        if current is not None:
            try:
                return await current.call(code, header, timeout_s)
            except TransportError:
                if self._current is current:
                    self._current = None
                    await current.close()
        return await self._try_all(code, header, timeout_s)

    async def routes(
        self, topics: list[str] | None, known_version: int | None = None, hold_s: float = 0.0
    ) -> RouteAnswer | None:
        """Routes of these topics, or of all; None when nothing changed since `known_version` in `hold_s`.

        Pages are of one moment, or, if routes change all the time, those of a few: the version is that
        of the first page then, so that a request with it is answered at once. Raises as `call`.
        """
        request = RouteGetRequest(topics, known_version, round(hold_s * 1000), cluster=self.cluster)
        for attempt in range(PAGED_TRIES_MAX):
            answer = await self._routes(request, hold_s)
            if answer.unchanged:
                return None
            version = answer.version
            found = rows(RouteRow, answer.routes)
            while answer.next_after:
                answer = await self._routes(
                    RouteGetRequest(topics, after=answer.next_after, cluster=self.cluster)
                )
                if answer.version != version and attempt + 1 < PAGED_TRIES_MAX:
                    break
                found += rows(RouteRow, answer.routes)
            else:
                own = of_cluster(self.cluster, found, rows(BrokerRow, answer.brokers))
                return RouteAnswer(*own, version, rows(ForgottenRow, answer.forgotten))
            request, hold_s = RouteGetRequest(topics, cluster=self.cluster), 0.0
        raise AssertionError("the last try takes what it gets")

    async def _routes(self, request: RouteGetRequest, hold_s: float = 0.0) -> RouteGetResponse:
        reply = await self.call(RequestCode.ROUTE_GET, request, REGISTRY_TIMEOUT_S + hold_s)
        return reply.header(RouteGetResponse)

    @property
    def has_others(self) -> bool:
        """Whether there is more than one registry."""
        return len(self._addresses) > 1

    async def brokers_elsewhere(self) -> list[list[BrokerRow]]:
        """What each registry but the one that is kept says of the brokers; those that answer, in no order."""
        kept = None if self._current is None else self._current.address
        clients = [self._client(address) for address in self._addresses if address != kept]
        request = RouteGetRequest([], cluster=self.cluster)
        try:
            answers = await asyncio.gather(
                *(c.call(RequestCode.ROUTE_GET, request, REGISTRY_TIMEOUT_S) for c in clients),
                return_exceptions=True,
            )
        finally:
            await self._end(clients, ())
        found: list[list[BrokerRow]] = []
        for answer in answers:
            if isinstance(answer, Reply):
                found.append(rows(BrokerRow, answer.header(RouteGetResponse).brokers))
            elif not isinstance(answer, HoldMQError):
                raise answer
        return found

    async def ask_all(self, code: RequestCode, header: Header) -> dict[str, Reply]:
        """The answer of each registry that gives one, by address; a refusal is none."""
        clients = [self._client(address) for address in self._addresses]
        try:
            answers = await asyncio.gather(
                *(client.call(code, header, REGISTRY_TIMEOUT_S) for client in clients), return_exceptions=True
            )
        finally:
            for client in clients:
                self._errors[client.address] = client.last_error
                await client.close()
        found: dict[str, Reply] = {}
        for client, answer in zip(clients, answers, strict=True):
            if isinstance(answer, Reply):
                found[client.address] = answer
            elif not isinstance(answer, HoldMQError):
                raise answer
        return found

    async def close(self) -> None:
        """Close the connection that is kept, and wait for those that are being closed."""
        if self._current is not None:
            await self._current.close()
            self._current = None
        if self._ending:
            await asyncio.wait(self._ending)

    async def _try_all(self, code: RequestCode, header: Header, timeout_s: float) -> Reply:
        clients = [self._client(address) for address in self._addresses]
        loop = asyncio.get_running_loop()
        calls = {loop.create_task(c.call(code, header, timeout_s)): c for c in clients}
        kept: Client | None = None
        failures: list[HoldMQError] = []
        try:
            pending = set(calls)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is None:
                        kept = calls[task]
                        return task.result()
                    if not isinstance(error, TransportError):
                        raise error
                    failures.append(error)
            reasons = "; ".join(map(str, failures))
            raise TransportError(f"no registry answers: {reasons} (client.registries: whom to ask)")
        finally:
            if kept is not None and self._current is None:
                self._current = kept
            await self._end(clients, calls)

    async def _end(self, clients: Sequence[Client], calls: Collection[asyncio.Task[Reply]]) -> None:
        """Cancel calls and close clients but the kept one, even when the caller is cancelled meanwhile."""

        async def end() -> None:
            for task in calls:
                task.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            for client in clients:
                self._errors[client.address] = client.last_error
                if client is not self._current:
                    await client.close()

        ending = asyncio.get_running_loop().create_task(end(), name="registries asked")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        await asyncio.shield(ending)

    def _client(self, address: str) -> Client:
        client = Client(
            address,
            self._role,
            self._client_id,
            software=self._software,
            security=self._security,
            words=self._words,
        )
        client.last_error = self._errors.get(address)
        return client


def of_cluster(
    cluster: str, routes: list[RouteRow], brokers: list[BrokerRow]
) -> tuple[list[RouteRow], list[BrokerRow]]:
    """Give what of an answer is of a cluster ("" = all of it): a registry of before clusters tells all.

    Rows of an absent broker stay, as it does not say of which cluster that is: no key may move.
    """
    if not cluster:
        return routes, brokers
    others = {row.broker for row in brokers if row.cluster != cluster}
    own = [row for row in brokers if row.cluster == cluster]
    return [row for row in routes if row.broker not in others], own
