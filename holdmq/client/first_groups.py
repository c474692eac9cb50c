"""Of which topics a group is the first one: asked of all their brokers, and claimed there.

All groups claim a topic at the same broker first, the one of the lowest name that answers: so one of several
that begin together is the first everywhere. What brokers that are away say is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from holdmq.client.route import RouteTable
from holdmq.errors import Code, HoldMQError, TransportError
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.topic_headers import FirstReaderRow, TopicFirstGroupRequest, TopicFirstGroupResponse

ASK_TIMEOUT_S: Final = 2.0
"""How long brokers are waited for; claims wait for a write of topic.json, which takes some ms."""

Readers = dict[str, str]
"""The first group by topic, "" = none yet; topics whose first group is like any other are not there."""

log = structlog.get_logger("holdmq.client")


class FirstGroupClaims:
    """Asks for one group."""

    def __init__(self, routes: RouteTable, group: str) -> None:
        self._routes = routes
        self._group = group

    async def claim(self, topics: Iterable[str]) -> set[str]:
        """Be the first group of these topics, where nobody is; those of which it is the first, now or before.

        Of topics that say nothing of their first group nothing is claimed.
        """
        by_broker: dict[str, list[str]] = {}
        for topic in sorted(set(topics)):
            route = self._routes.get(topic)
            for broker in sorted({queue.broker for queue in (() if route is None else route.read_queues)}):
                if self._may_answer(broker):
                    by_broker.setdefault(broker, []).append(topic)
        brokers = sorted(by_broker)
        answers = await asyncio.gather(*(self._ask(broker, by_broker[broker], False) for broker in brokers))
        told = dict(zip(brokers, answers, strict=True))
        wanted = {
            topic
            for topic in {topic for readers in answers for topic in readers}
            if _first(readers.get(topic, "") for readers in answers) in ("", self._group)
        }
        lost: set[str] = set()
        for broker in brokers:
            here = [topic for topic, group in told[broker].items() if not group and topic in wanted - lost]
            if here:
                claimed = await self._ask(broker, here, True)
                lost |= {topic for topic in here if claimed.get(topic, "") not in ("", self._group)}
        return wanted - lost

    def _may_answer(self, broker: str) -> bool:
        """Whether a broker is connected, or has not been away for long: it may just be connecting."""
        try:
            down_since = self._routes.link(broker).down_since
        except TransportError:
            return False
        return down_since is None or asyncio.get_running_loop().time() - down_since < ASK_TIMEOUT_S

    async def _ask(self, broker: str, topics: list[str], is_claim: bool) -> Readers:
        request = TopicFirstGroupRequest(self._group, topics, is_claim)
        try:
            client = self._routes.link(broker).client
            reply = await client.call(RequestCode.TOPIC_FIRST_GROUP, request, ASK_TIMEOUT_S)
            found = rows(FirstReaderRow, reply.header(TopicFirstGroupResponse).topics)
        except HoldMQError as error:
            if error.code != Code.UNKNOWN_REQUEST:
                log.warning("a broker does not say which group was the first", broker=broker,
                            group=self._group, reason=str(error))  # fmt: skip
            return {}
        return {row.topic: row.group for row in found}


def _first(groups: Iterable[str]) -> str:
    """The group that the broker of the lowest name knows, "" = none does."""
    return next(filter(None, groups), "")
