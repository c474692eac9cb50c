"""A broker that is lost for good: what is gone with it, and the registries that are to forget it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from holdmq.client.every_registry import EveryRegistry
from holdmq.errors import HoldMQError, RemoteError
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import UNKNOWN, BrokerForgetRequest, BrokerForgetResponse, LostTopicRow
from holdmq.wire.header import rows

CALL_TIMEOUT_S: Final = 3.0

Answer = BrokerForgetResponse | HoldMQError


class BrokerLoss(NamedTuple):
    """What registries know of an absent broker; `silent_ms`, `sessions` and `retained` None = nobody knows.

    `topics` are those that an answer names, by name, of `topics_total` with `queues_total` queues.
    `forgotten_ms`: since when it is forgotten, by `told`; `refused` and `silent` are registries that refuse,
    and that do not answer, and why.
    """

    broker: str
    is_known: bool
    forgotten_ms: int
    silent_ms: int | None
    sessions: int | None
    retained: int | None
    topics: list[LostTopicRow]
    topics_total: int
    queues_total: int
    answering: list[str]
    told: list[str]
    refused: dict[str, str]
    silent: dict[str, str]


class LostBrokers(EveryRegistry):
    """Asks and tells every registry. Use it as `async with LostBrokers(["host:9876"]) as lost`.

    `cluster` and `tenant` say nothing here: names of brokers are those of all clusters.
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
        super().__init__(registries, client_id, security)

    async def look(self, broker: str) -> BrokerLoss:
        """What would be lost with a broker; nothing is changed."""
        request = BrokerForgetRequest(broker)
        answers = await asyncio.gather(*(self._ask_one(address, request) for address in self._clients))
        return broker_loss(broker, dict(zip(self._clients, answers, strict=True)))

    async def forget(self, broker: str) -> BrokerLoss:
        """Have every registry forget a broker, durably; `refused` and `silent` name those that have not.

        None is told while any refuses, as it is registered there, and lives. Again changes nothing, but that
        those hear it that did not.
        """
        before = await self.look(broker)
        if before.refused or not before.is_known:
            return before
        answers: dict[str, Answer] = {}
        at_ms = before.forgotten_ms
        for address in before.answering:
            answers[address] = answer = await self._ask_one(address, BrokerForgetRequest(broker, True, at_ms))
            if isinstance(answer, BrokerForgetResponse) and not at_ms:
                # One time for all: a broker that begins anew is newer than it everywhere.
                at_ms = answer.forgotten_ms
        after = broker_loss(broker, answers)
        return before._replace(
            forgotten_ms=after.forgotten_ms,
            told=after.told,
            refused=after.refused,
            silent=before.silent | after.silent,
        )

    async def _ask_one(self, address: str, request: BrokerForgetRequest) -> Answer:
        try:
            reply = await self._clients[address].call(RequestCode.BROKER_FORGET, request, CALL_TIMEOUT_S)
            return reply.header(BrokerForgetResponse)
        except HoldMQError as error:
            return error


def broker_loss(broker: str, answers: Mapping[str, Answer]) -> BrokerLoss:
    """Put together what registries said, by address."""
    said = {address: one for address, one in answers.items() if isinstance(one, BrokerForgetResponse)}
    errors = {address: one for address, one in answers.items() if isinstance(one, HoldMQError)}
    # Who heard of it last knows best.
    last = min(
        (one for one in said.values() if one.silent_ms != UNKNOWN),
        key=lambda one: one.silent_ms,
        default=None,
    )
    fullest = max(said.values(), key=lambda one: one.topics_total, default=None)
    return BrokerLoss(
        broker,
        any(one.is_known for one in said.values()),
        max((one.forgotten_ms for one in said.values()), default=0),
        None if last is None else last.silent_ms,
        None if last is None or last.sessions == UNKNOWN else last.sessions,
        None if last is None or last.retained == UNKNOWN else last.retained,
        [] if fullest is None else rows(LostTopicRow, fullest.topics),
        0 if fullest is None else fullest.topics_total,
        0 if fullest is None else fullest.queues_total,
        list(said),
        [address for address, one in said.items() if one.forgotten_ms],
        {address: str(one) for address, one in errors.items() if isinstance(one, RemoteError)},
        {address: str(one) for address, one in errors.items() if not isinstance(one, RemoteError)},
    )
