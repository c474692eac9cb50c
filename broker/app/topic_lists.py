"""TOPIC_LIST: topics with their traffic, or a column of them for whoever shows them page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from broker.kernel.core.windows import (
    BYTES_IN,
    BYTES_OUT,
    BYTES_REPLAYED,
    MESSAGES_IN,
    MESSAGES_OUT,
    MESSAGES_REPLAYED,
    TRAFFIC,
)
from broker.kernel.request_family import RequestFamily
from broker.kernel.statistics import Statistics
from broker.topics.core.table import Topic, TopicTable
from holdmq.errors import Code, WireError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import TopicListRequest, TopicListResponse, TopicStats
from storage.api.store import OrderedStore

QUEUES_PER_TURN: Final = 1024
"""Queues whose bounds are looked at in one turn of the loop: below a millisecond."""
STORED: Final = "messages_stored"
COUNTED: Final = {
    "messages_in": MESSAGES_IN,
    "bytes_in": BYTES_IN,
    "messages_out": MESSAGES_OUT,
    "bytes_out": BYTES_OUT,
    "messages_replayed": MESSAGES_REPLAYED,
    "bytes_replayed": BYTES_REPLAYED,
}
SETTINGS: Final = ("topic", "kind", "write_queues", "read_queues")


class TopicLists(RequestFamily):
    """Answers TOPIC_LIST from memory, in turns of the loop where many queues are to be looked at."""

    def __init__(self, store: OrderedStore, topics: TopicTable, statistics: Statistics) -> None:
        self._store = store
        self._topics = topics
        self._statistics = statistics

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.TOPIC_LIST: self._list}

    def _list(self, request: Request) -> None:
        asked = request.header(TopicListRequest)
        found = self._topics.found(asked.include_system, asked.names, asked.search)
        topics = [topic for topic in found if request.connection.sees(topic.name)]
        if asked.column in ("", STORED):
            self._count_stored(request, asked.column, topics, iter(topics), [])
            return
        names = [topic.name for topic in topics]
        values: list[int | str]
        if asked.column in COUNTED:
            values = [*self._statistics.topic_column(names, COUNTED[asked.column])]
        elif asked.column == "kind":
            values = [topic.kind for topic in topics]
        elif asked.column == "write_queues":
            values = [topic.write_queues for topic in topics]
        elif asked.column == "read_queues":
            values = [topic.read_queues for topic in topics]
        elif asked.column == "topic":
            values = [*names]
        else:
            known = ", ".join((*SETTINGS, *COUNTED, STORED))
            raise WireError(f"column: one of {known}", Code.MISSING_FIELD)
        request.reply(TopicListResponse([], [], names, values))

    def _count_stored(
        self, request: Request, column: str, topics: list[Topic], left: Iterator[Topic], stored: list[int]
    ) -> None:
        queues = 0
        for topic in left:
            bounds = [self._store.bounds(topic.name, queue_id) for queue_id in range(topic.read_queues)]
            stored.append(sum(end - first for first, end in bounds))
            queues += topic.read_queues
            if queues >= QUEUES_PER_TURN:
                asyncio.get_running_loop().call_soon(
                    self._count_stored, request, column, topics, left, stored
                )
                return
        names = [topic.name for topic in topics]
        if column:
            request.reply(TopicListResponse([], [], names, [*stored]))
            return
        totals = self._statistics.topic_totals(names)
        stats = [
            TopicStats._make(
                [
                    name,
                    *totals[name][:TRAFFIC],
                    count,
                    totals[name][MESSAGES_REPLAYED],
                    totals[name][BYTES_REPLAYED],
                ]
            )
            for name, count in zip(names, stored, strict=True)
        ]
        request.reply(TopicListResponse([topic.row() for topic in topics], stats))
