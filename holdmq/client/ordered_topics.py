"""Ordered topics as the registries keep them: whose queues a topic's keys are spread over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from holdmq.client.every_registry import EveryRegistry
from holdmq.client.names import check_cluster
from holdmq.errors import HoldMQError, TransportError
from holdmq.rpc.connection import Reply
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import OrderGetRequest, OrderGetResponse, OrderRow, OrderSetRequest
from holdmq.wire.tenant_words import TenantWords

CALL_TIMEOUT_S: Final = 5.0


class OrderedTopics(EveryRegistry):
    """Asks and tells every registry. Use it as `async with OrderedTopics(["host:9876"]) as ordered`.

    `cluster`: what is asked and told is about its brokers alone, "" = about those of all. `tenant`: topics
    are named in its words, "" = in whole names.
    """

    def __init__(
        self,
        registries: Sequence[str],
        *,
        client_id: str = "admin",
        security: Security | None = None,
        cluster: str = "",
        tenant: str = "",
    ) -> None:
        check_cluster(cluster)
        self._cluster = cluster
        super().__init__(registries, client_id, security, TenantWords(tenant) if tenant else None)

    async def get(self, topics: Sequence[str] | None = None) -> dict[str, dict[str, int]]:
        """Broker names and queues by ordered topic (None = all), as the first registry that answers says.

        TransportError if none does, with all reasons.
        """
        request = OrderGetRequest(None if topics is None else list(topics), self._cluster)
        answers = await self._call(RequestCode.ORDER_GET, request)
        failures: list[str] = []
        for answer in answers:
            if isinstance(answer, Reply):
                found = rows(OrderRow, answer.header(OrderGetResponse).topics)
                return {row.topic: row.queues for row in found}
            failures.append(str(answer))
        raise TransportError(f"no registry answers: {'; '.join(failures)}")

    async def set(self, topic: str, queues: Mapping[str, int]) -> None:
        """Make a topic ordered at exactly these brokers (name → queues), {} = not ordered any more.

        Told to every registry, each of which has it on disk then. Raises the first one's error if any
        refuses or does not answer: the others may have taken it, so do it again. A registered broker must
        have the topic, and says its own number of queues.
        """
        request = OrderSetRequest(topic, dict(queues), self._cluster)
        for answer in await self._call(RequestCode.ORDER_SET, request):
            if isinstance(answer, HoldMQError):
                raise answer

    async def _call(self, code: RequestCode, header: Header) -> list[Reply | HoldMQError]:
        calls = [client.call(code, header, CALL_TIMEOUT_S) for client in self._clients.values()]
        answers: list[Reply | HoldMQError] = []
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, HoldMQError):
                raise answer
            answers.append(answer)
        return answers
