"""In which topics a group has begun, asked of the brokers that have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from holdmq.client.route import RouteTable
from holdmq.errors import Code, HoldMQError
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.offset_headers import OffsetGetRequest, OffsetGetResponse, OffsetRow

ASK_TIMEOUT_S: Final = 2.0
"""How long brokers are asked whether the group has begun: one that is away says nothing."""
SETTLE_S: Final = 1.0
"""When the group has begun elsewhere and not here, another member may be writing it down right now."""

log = structlog.get_logger("holdmq.client")


class BegunTopics:
    """Asks for one group."""

    def __init__(self, routes: RouteTable, group: str) -> None:
        self._routes = routes
        self._group = group

    async def at(self, broker: str, topics: Iterable[str], timeout_s: float) -> set[str]:
        """Topics in which the group has an offset at this broker. Raises RemoteError, TransportError."""
        wanted = sorted(topics)
        if not wanted:
            return set()
        request = OffsetGetRequest(self._group, wanted)
        link = self._routes.link(broker)
        reply = await link.client.call(RequestCode.OFFSET_GET, request, timeout_s)
        answer = rows(OffsetRow, reply.header(OffsetGetResponse).offsets)
        return {row.topic for row in answer if row.offset >= 0}

    async def elsewhere(self, broker: str, topics: Iterable[str]) -> set[str]:
        """Topics in which it has an offset at any other broker that answers."""
        asked = self._by_broker(topics)
        asked.pop(broker, None)
        found = await self._ask(asked)
        return set().union(*found.values())

    async def new_at(self, topics: Iterable[str]) -> dict[str, list[str]]:
        """By broker the topics in which the group has begun, but not there: what is there is new to it.

        A broker that does not answer has none.
        """
        asked = self._by_broker(topics)
        found = await self._ask(asked)
        every = set().union(*found.values())
        lacking = {
            broker: (asked[broker] & every) - found[broker] for broker in found if asked[broker] & every
        }
        lacking = {broker: without for broker, without in lacking.items() if without}
        if not lacking:
            return {}
        await asyncio.sleep(SETTLE_S)
        again = await self._ask(lacking)
        return {broker: sorted(lacking[broker] - begun) for broker, begun in again.items()}

    def _by_broker(self, topics: Iterable[str]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for topic in topics:
            route = self._routes.get(topic)
            for queue in () if route is None else route.read_queues:
                if self._routes.is_available(queue.broker):
                    found.setdefault(queue.broker, set()).add(topic)
        return found

    async def _ask(self, asked: dict[str, set[str]]) -> dict[str, set[str]]:
        """What brokers say, without those that do not."""

        async def ask(broker: str) -> set[str] | None:
            try:
                return await self.at(broker, asked[broker], ASK_TIMEOUT_S)
            except HoldMQError as error:
                if error.code == Code.GROUP_UNKNOWN:
                    return set()
                log.warning("a broker does not say whether a group has begun", broker=broker,
                            group=self._group, reason=str(error))  # fmt: skip
                return None

        answers = await asyncio.gather(*(ask(broker) for broker in asked))
        return {broker: begun for broker, begun in zip(asked, answers, strict=True) if begun is not None}
