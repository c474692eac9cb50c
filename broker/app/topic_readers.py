"""TOPIC_READERS: who reads a topic, whichever way it reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol

from broker.kernel.request_family import HelloOf, RequestFamily
from broker.readers.core.table import TopicReader
from broker.topics.core.table import TopicTable
from holdmq.errors import Code, RemoteError
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.reader_headers import ReaderRow, TopicReadersRequest, TopicReadersResponse

ROWS_MAX: Final = 10_000
"""Rows of one answer, each some 200 bytes: it fits any frame."""


class NamedReaders(Protocol):
    """Readers that name the topics that they read."""

    def of(self, topic: str) -> list[TopicReader[Connection]]:
        """The readers of a topic."""

    def has_others(self, topic: str) -> bool:
        """Whether there are more, which are not named."""


class FilteringReaders(Protocol):
    """Readers of the log, which choose messages by filters."""

    def readers_of(self, topic: str) -> Iterable[TopicReader[Connection]]:
        """Those whose filters may pass messages of a topic."""


class TopicReaderList(RequestFamily):
    """Tells who reads a topic: `named` readers, and those of each of `by_filter`, if MQTT may see it."""

    def __init__(
        self,
        topics: TopicTable,
        named: NamedReaders,
        by_filter: Sequence[FilteringReaders],
        hello_of: HelloOf,
    ) -> None:
        self._topics = topics
        self._named = named
        self._by_filter = by_filter
        self._hello_of = hello_of
        # One difference for all answers: the same moment is the same number in each of them.
        self._began_ms = time.time_ns() / 1e6 - asyncio.get_running_loop().time() * 1e3

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.TOPIC_READERS: self._list}

    def _list(self, request: Request) -> None:
        header = request.header(TopicReadersRequest)
        if not 1 <= header.rows_max <= ROWS_MAX:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"1 to {ROWS_MAX} rows are possible")
        topic = header.topic
        known = self._topics.get(topic)
        rooms = () if known is None or known.is_temporary else self._by_filter
        others = chain.from_iterable(room.readers_of(topic) for room in rooms)
        found = sorted([*self._named.of(topic), *others], key=lambda reader: reader.since_at)
        rows = [self._row(reader) for reader in found[: header.rows_max]]
        request.reply(TopicReadersResponse(rows, len(found), self._named.has_others(topic)))

    def _row(self, reader: TopicReader[Connection]) -> ReaderRow:
        connection = reader.owner
        hello = self._hello_of(connection)
        return ReaderRow(
            reader.kind,
            reader.group,
            "" if hello is None else hello.client_id,
            "" if hello is None else hello.role,
            connection.address,
            connection.principal,
            self._wall_ms(reader.since_at),
            self._wall_ms(reader.seen_at),
        )

    def _wall_ms(self, at: float) -> int:
        return int(self._began_ms + at * 1e3)
