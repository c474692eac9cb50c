"""The cluster as its registries know it, asked once: which brokers there are, and who keeps the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from broker.joining.core.keeping import Keepers, KeptCounts
from holdmq.errors import HoldMQError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import ForgottenRow, newest_of
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import BrokerRow, Empty, RouteGetRequest, RouteGetResponse, RouteRow
from holdmq.wire.joining_headers import KeptCountsResponse
from holdmq.wire.retained_headers import RETAINED_TOPIC
from holdmq.wire.session_headers import SESSION_TOPIC

ASK_S: Final = 2.0
"""How long one registry or broker may take, a connection included: it answers from memory."""
ASKED_MAX: Final = 16
"""Brokers that are asked at the same time."""
KEPT_TABLES: Final = [SESSION_TOPIC, RETAINED_TOPIC]


class ClusterFound(NamedTuple):
    """What registries say: addresses of the cluster's other live brokers by name, and the keepers."""

    others: dict[str, str]
    keepers: frozenset[str]


class ClusterInquiry:
    """Asks for the cluster of the broker `name`, over connections that end with the question."""

    def __init__(self, registries: Sequence[str], cluster: str, name: str, security: Security | None) -> None:
        self._registries = list(registries)
        self._cluster = cluster
        self._name = name
        self._security = security
        self._at_once = asyncio.Semaphore(ASKED_MAX)

    async def look(self, patience_s: float) -> ClusterFound | None:
        """What all registries say together that answer within `patience_s` of the first; None = none does."""
        found = await self._ask_registries(patience_s)
        if not found:
            return None
        brokers = [row for each in found for row in rows(BrokerRow, each.brokers)]
        newest = newest_of(row for each in found for row in rows(ForgottenRow, each.forgotten))
        routes = [row for each in found for row in _up_to_date(each, newest)]
        # A registry that does not know the word tells of the brokers of other clusters, too.
        foreign = {row.broker for row in brokers if row.cluster != self._cluster}
        keepers = {row.broker for row in routes if row.write_queues and row.broker not in foreign}
        return ClusterFound(self.others(brokers), frozenset(keepers))

    def others(self, brokers: Iterable[BrokerRow]) -> dict[str, str]:
        """Addresses of the cluster's other brokers by name, of all that registries have named."""
        # The highest epoch leads; of a name without epochs the lowest id does.
        return {
            row.broker: row.address
            for row in sorted(brokers, key=lambda row: (row.epoch, -row.broker_id))
            if row.cluster == self._cluster and row.broker != self._name
        }

    async def _ask_registries(self, patience_s: float) -> list[RouteGetResponse]:
        asked = RouteGetRequest(list(KEPT_TABLES), cluster=self._cluster)
        found: list[RouteGetResponse] = []
        tasks = [
            asyncio.create_task(self.ask(each, RequestCode.ROUTE_GET, asked)) for each in self._registries
        ]
        try:
            async with asyncio.timeout(None) as limit:
                for ended in asyncio.as_completed(tasks):
                    answer = await ended
                    if isinstance(answer, Reply):
                        if not found:
                            limit.reschedule(asyncio.get_running_loop().time() + patience_s)
                        found.append(answer.header(RouteGetResponse))
        except TimeoutError:
            pass  # those that answered are enough
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return found

    async def keepers(self, found: ClusterFound) -> Keepers:
        """What the keepers have that live."""
        asked = [name for name in found.keepers if name in found.others]
        answers = await asyncio.gather(
            *(self.ask(found.others[name], RequestCode.KEPT_COUNTS, Empty()) for name in asked)
        )
        counts: dict[str, KeptCounts | None] = {}
        for name, answer in zip(asked, answers, strict=True):
            counts[name] = None
            if isinstance(answer, Reply):
                kept = answer.header(KeptCountsResponse)
                counts[name] = KeptCounts(kept.sessions, kept.retained)
        return Keepers(found.keepers, counts)

    def connect(self, address: str) -> Client:
        """A connection to a process, which the caller closes."""
        return Client(address, "broker", self._name, security=self._security)

    async def ask(self, address: str, code: RequestCode, header: Header) -> Reply | HoldMQError:
        """The answer of one process, or why there is none."""
        client = self.connect(address)
        async with self._at_once, AsyncExitStack() as ending:
            ending.push_async_callback(client.close)
            try:
                return await client.call(code, header, ASK_S)
            except HoldMQError as error:
                return error


def _up_to_date(answer: RouteGetResponse, newest: Mapping[str, ForgottenRow]) -> list[RouteRow]:
    """The rows of an answer without brokers that are given up, and those whose giving up it has missed."""
    heard = {row.broker: row.forgotten_ms for row in rows(ForgottenRow, answer.forgotten)}
    return [
        row
        for row in rows(RouteRow, answer.routes)
        if (known := newest.get(row.broker)) is None
        or (known.is_back and heard.get(row.broker, 0) >= known.forgotten_ms)
    ]
