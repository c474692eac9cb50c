"""The broker's readers: the table, the one timer that ends silent ones, and who is told of a topic unread.

Rooms whose clients read say so here. Gateways read the log and name no single topic: who they read for is
asked of their room when somebody wants to know (broker.app.topic_readers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from broker.kernel.events import Event
from broker.kernel.request_family import RequestFamily
from broker.readers.core.table import ReaderTable, SubscriberKey, TopicReader
from holdmq.rpc.connection import Connection

Reader = TopicReader[Connection]


class TopicReaders(RequestFamily):
    """Keeps who reads which topic at this broker. `unread(topic)` happens when its last reader has gone."""

    def __init__(self, table: ReaderTable[Connection] | None = None) -> None:
        self.unread: Event[[str]] = Event()
        self.table: ReaderTable[Connection] = ReaderTable() if table is None else table
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def numbers(self) -> Mapping[str, int]:
        return {
            "topic_readers_subscribed": self.table.subscribers,
            "topic_readers_asking": self.table.asking,
            "topic_readers_silenced_total": self.table.silenced,
            "topic_readers_unnamed_total": self.table.unnamed,
        }

    def subscribe(
        self, connection: Connection, kind: str, group: str, topics: Iterable[str], member_id: int = 0
    ) -> None:
        """A member of a group reads these topics until it leaves, and those that it had before no more."""
        key = SubscriberKey(connection, group, member_id)
        self._tell(self.table.subscribe(key, kind, topics, self._loop.time()))

    def unsubscribe(self, connection: Connection, group: str, member_id: int = 0) -> None:
        """A member left; one that is not known changes nothing."""
        self._tell(self.table.unsubscribe(SubscriberKey(connection, group, member_id)))

    def seen(self, connection: Connection, group: str, member_id: int = 0) -> bool:
        """A member of a group reads; False = it is none."""
        return self.table.seen(SubscriberKey(connection, group, member_id), self._loop.time())

    def asked(self, connection: Connection, kind: str, topics: Iterable[str], group: str = "") -> None:
        """A connection asks for messages of these topics, which exist."""
        now = self._loop.time()
        for topic in topics:
            self.table.asked(connection, kind, group, topic, now)
        if self._timer is None:
            self._set_timer()

    def closed(self, connection: Connection) -> None:
        self._tell(self.table.close(connection))

    def topic_gone(self, topic: str) -> None:
        """A topic is not there any more."""
        self.table.forget(topic)

    def release_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        at = self.table.next_deadline()
        self._timer = None if at is None else self._loop.call_at(at, self._expire)

    def _expire(self) -> None:
        unread = self.table.expire(self._loop.time())
        self._set_timer()
        self._tell(unread)

    def _tell(self, unread: list[str]) -> None:
        for topic in unread:
            self.unread.happened(topic)
