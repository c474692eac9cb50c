"""Orders about topics to the whole cluster: create, change, grow, shrink, pause, delete.

Each goes to every live broker. A broker that does not have the topic is left out, unless none has it.
Every order may be repeated: what is so already stays so, and the others follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from holdmq.client.cluster_calls import ClusterCalls, known
from holdmq.client.names import check_topic
from holdmq.errors import Code, HoldMQError, RemoteError, UsageError
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import Header, rows
from holdmq.wire.headers import (
    TopicCreateRequest,
    TopicCreateResponse,
    TopicListRequest,
    TopicListResponse,
    TopicRow,
)
from holdmq.wire.reader_headers import ReaderRow, TopicReadersRequest, TopicReadersResponse
from holdmq.wire.topic_headers import (
    DELETE,
    FIRST_GROUP_OWN,
    HIDE_FROM_CONSUMERS,
    HIDE_FROM_PRODUCERS,
    PERM_READ,
    PERM_WRITE,
    QueuesRemoveRequest,
    TopicDeleteRequest,
    TopicGrowRequest,
    TopicPauseRequest,
    TopicUpdateRequest,
)

DELETE_TIMEOUT_S = 60.0
"""How long giving up queues may take: the store checkpoints first, which a full disk cache makes slow."""


READERS_ROWS = 1_000
"""Readers of a topic that are asked for: what a person looks through."""

KIND_TABLE: Final = "table"
GROW = "grow"
"""The step of a resize that is taken at once."""


class Removal(NamedTuple):
    """How far queues are removed: the step that was taken, or waits, and for whom (None: it was taken)."""

    step: str
    waits_for: str | None


class ReadersView(NamedTuple):
    """Readers of a topic at one broker: the first of them, how many, and whether some have no name."""

    rows: list[ReaderRow]
    total: int
    has_others: bool


class TopicCalls(ClusterCalls):
    """The part of `Admin` that is about topics. Answers are each broker's row, as it is durable there.

    All raise RemoteError (TOPIC_UNKNOWN where no broker has the topic, TOPIC_INVALID, KIND_UNFIT) and
    TransportError, after every broker was asked: those that did not refuse have done it then.
    """

    async def create_topic(
        self,
        topic: str,
        queues: int = 0,
        key_levels: int = 1,
        *,
        kind: str = "log",
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        retention_ms: int = 0,
        first_group: str = FIRST_GROUP_OWN,
        spread: str = "",
    ) -> dict[str, TopicRow]:
        """Create a topic on every live broker, with `queues` queues at each (0 = the broker's default).

        `kind`: log, table or temporary (a name that ends in #tmp is temporary). `retention_ms` 0 = as long as
        the log. `first_group`: own, or beginning: the first group that ever reads it begins with what is
        there, unless its consumers say where. `spread`: all, so that brokers that join later get it, or
        fixed; "" = all, unless it is ordered or no log. Creating it again with the same settings changes
        nothing; a table stays at the brokers that have it, as its keys are spread over them. Raises
        UsageError for a bad name, RemoteError (TOPIC_EXISTS with other settings, TOPIC_LIMIT) too.
        """
        check_topic(topic)
        request = TopicCreateRequest(
            topic,
            queues,
            key_levels,
            kind,
            perm=perm,
            order=order,
            retention_ms=retention_ms,
            first_group=first_group,
            spread=spread,
        )
        if kind != KIND_TABLE:
            return await self._order(RequestCode.TOPIC_CREATE, request)
        self.routes.follow([topic])
        brokers = await self._live_brokers()
        route = self.routes.get(topic)
        # Of those that are away, too: their keys are nobody else's.
        keepers = set() if route is None else {queue.broker for queue in route.write_queues}
        asked = [broker for broker in brokers if broker in keepers or not keepers]
        answers = await self._ask_each(RequestCode.TOPIC_CREATE, dict.fromkeys(asked, request))
        return _rows_of(answers)

    async def update_topic(
        self,
        topic: str,
        *,
        perm: int | None = None,
        order: bool | None = None,
        retention_ms: int | None = None,
        first_group: str | None = None,
        spread: str | None = None,
    ) -> dict[str, TopicRow]:
        """Change settings; None leaves one as it is. `perm` is the sum of 4 read, 2 write, 1 inherit."""
        request = TopicUpdateRequest(topic, perm, order, retention_ms, first_group=first_group, spread=spread)
        return await self._order(RequestCode.TOPIC_UPDATE, request)

    async def grow_topic(self, topic: str, queues: int) -> dict[str, TopicRow]:
        """Give a topic `queues` queues at every broker that has it; hidden ones are shown again.

        RemoteError (TOPIC_IN_USE) for a topic with `order` that some group has not consumed entirely.
        """
        return await self._order(RequestCode.TOPIC_GROW, TopicGrowRequest(topic, queues))

    async def remove_queues(self, topic: str, queues: int, step: str) -> dict[str, TopicRow]:
        """Take one step (wire.topic_headers) of removing the queues from `queues` on, at every broker.

        RemoteError (TOPIC_IN_USE) says why a step has to wait, and for which group.
        """
        return await self._order(RequestCode.QUEUES_REMOVE, QueuesRemoveRequest(topic, queues, step))

    async def hide_queues(self, topic: str, queues: int) -> Removal:
        """Hide the queues from `queues` on from producers, then from consumers, as far as that may be now.

        Call it again while it `waits_for` somebody.
        """
        for step in (HIDE_FROM_PRODUCERS, HIDE_FROM_CONSUMERS):
            try:
                await self.remove_queues(topic, queues, step)
            except RemoteError as error:
                if error.code != Code.TOPIC_IN_USE:
                    raise
                return Removal(step, error.remark)
        return Removal(HIDE_FROM_CONSUMERS, None)

    async def resize_topic(self, topic: str, queues: int) -> Removal:
        """Give a topic `queues` queues at every broker, as far as that may be now: growing is done at once.

        Call it again while it `waits_for` somebody. UsageError where some brokers have fewer, others more.
        """
        answers = known(await self._ask_all(RequestCode.TOPIC_LIST, TopicListRequest(True, [topic])))
        now = [
            row
            for reply in answers.values()
            for row in rows(TopicRow, reply.header(TopicListResponse).topics)
            if row.topic == topic
        ]
        if not now:
            raise RemoteError(Code.TOPIC_UNKNOWN, f"no broker has a topic {topic!r}")
        fewer = any(row.write_queues < queues for row in now)
        if fewer and any(row.write_queues > queues for row in now):
            raise UsageError(
                f"{topic} has fewer than {queues} queues at some brokers, more at others: grow it first"
            )
        if fewer:
            await self.grow_topic(topic, queues)
            return Removal(GROW, None)
        hidden = await self.hide_queues(topic, queues)
        if hidden.waits_for is not None:
            return hidden
        try:
            await self.remove_queues(topic, queues, DELETE)
        except RemoteError as error:
            if error.code != Code.TOPIC_IN_USE:
                raise
            return Removal(DELETE, error.remark)
        return Removal(DELETE, None)

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic that is hidden from consumers, or with `force` at once; its messages are gone.

        RemoteError (TOPIC_IN_USE) without `force`, while somebody may use it.
        """
        await self._order(RequestCode.TOPIC_DELETE, TopicDeleteRequest(topic, force))

    async def pause_topic(self, topic: str, pause: bool = True) -> dict[str, TopicRow]:
        """Pause or resume a topic: paused it takes and keeps, and delivers nothing."""
        return await self._order(RequestCode.TOPIC_PAUSE, TopicPauseRequest(topic, pause))

    async def topic_readers(
        self, topic: str, rows_max: int = READERS_ROWS
    ) -> dict[str, ReadersView | HoldMQError]:
        """Ask who reads a topic, at every live broker, whichever way it reads; `rows_max` of each."""

        def read(reply: Reply) -> ReadersView:
            answer = reply.header(TopicReadersResponse)
            return ReadersView(rows(ReaderRow, answer.readers), answer.total, answer.has_others)

        return await self._read_all(RequestCode.TOPIC_READERS, TopicReadersRequest(topic, rows_max), read)

    async def _order(self, code: RequestCode, request: Header) -> dict[str, TopicRow]:
        is_long = code in (RequestCode.TOPIC_DELETE, RequestCode.QUEUES_REMOVE)
        return _rows_of(await self._ask_all(code, request, DELETE_TIMEOUT_S if is_long else None))


def _rows_of(answers: Mapping[str, Reply | HoldMQError]) -> dict[str, TopicRow]:
    return {
        broker: row
        for broker, reply in known(answers, (Code.TOPIC_UNKNOWN,)).items()
        for row in rows(TopicRow, reply.header(TopicCreateResponse).topics)
    }
