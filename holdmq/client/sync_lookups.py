"""Tables and look-ups of messages without async; see `holdmq.client.sync`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from holdmq.client.queries import PAGE_MESSAGES, MessagePage, Messages, QueueAt
from holdmq.client.sync import _Blocking
from holdmq.client.table_watch import TableChange, TableReset, TableWatch
from holdmq.client.tables import PAGE_ROWS, Table, TableEntry, TablePage
from holdmq.message import Message, MessageId, TopicQueue


class SyncTable(_Blocking[Table]):
    """A blocking `Table`; takes the same settings."""

    def __init__(self, name: str, registries: Sequence[str], **settings: Any) -> None:
        super().__init__(Table, (name, list(registries)), settings)

    def create(self, queues: int = 0) -> None:
        """Create the table; see `Table.create`."""
        self._run(lambda t: t.create(queues))

    def get(self, key: str) -> TableEntry | None:
        """The row of a key; see `Table.get`."""
        return self._run(lambda t: t.get(key))

    def get_many(self, keys: Iterable[str]) -> list[TableEntry | None]:
        """The rows of many keys; see `Table.get_many`."""
        wanted = list(keys)
        return self._run(lambda t: t.get_many(wanted))

    def put(
        self, key: str, value: bytes, *, if_version: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Give a key a value; see `Table.put`."""
        return self._run(lambda t: t.put(key, value, if_version=if_version, timeout_s=timeout_s))

    def delete(self, key: str, *, if_version: int | None = None, timeout_s: float | None = None) -> int:
        """Take a key's value away; see `Table.delete`."""
        return self._run(lambda t: t.delete(key, if_version=if_version, timeout_s=timeout_s))

    def scan_page(self, prefix: str = "", after: str | None = None, max_count: int = PAGE_ROWS) -> TablePage:
        """A page of rows; see `Table.scan_page`."""
        return self._run(lambda t: t.scan_page(prefix, after, max_count))

    def scan(self, prefix: str = "") -> Iterator[TableEntry]:
        """All rows, page by page; see `Table.scan`."""
        after: str | None = None
        while True:
            page = self.scan_page(prefix, after)
            yield from page.entries
            after = page.next_after
            if after is None:
                return

    def watch(self, prefix: str = "", *, with_rows: bool = True) -> SyncTableWatch:
        """Be told of changes; see `Table.watch`."""

        async def begin(table: Table) -> TableWatch:
            watch = table.watch(prefix, with_rows=with_rows)
            await watch.start()
            return watch

        return SyncTableWatch(self, self._run(begin))


class SyncTableWatch:
    """A blocking `TableWatch`. Made by `SyncTable.watch`; `close` it, or use it with `with`."""

    def __init__(self, table: SyncTable, watch: TableWatch) -> None:
        self._table = table
        self._watch = watch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, timeout_s: float | None = None) -> list[TableChange | TableReset]:
        """What happened since the last call; see `TableWatch.poll`."""
        return self._table._run(lambda _: self._watch.poll(timeout_s))

    def close(self) -> None:
        """End the watch."""
        self._table._run(lambda _: self._watch.close())


class SyncMessages(_Blocking[Messages]):
    """A blocking `Messages`; takes the same settings."""

    def __init__(self, registries: Sequence[str], **settings: Any) -> None:
        super().__init__(Messages, (list(registries),), settings)

    def get(self, message_id: MessageId | str) -> Message:
        """The message that an id names; see `Messages.get`."""
        return self._run(lambda m: m.get(message_id))

    def find(
        self,
        topic: str,
        key: str = "",
        *,
        unique_id: str = "",
        begin_ms: int = 0,
        end_ms: int | None = None,
        count: int = PAGE_MESSAGES,
        cursor: str | None = None,
    ) -> MessagePage:
        """A page of messages with a key; see `Messages.find`."""
        return self._run(
            lambda m: m.find(
                topic, key, unique_id=unique_id, begin_ms=begin_ms, end_ms=end_ms, count=count, cursor=cursor
            )
        )

    def newest(self, topic: str, tag_filter: str | None = None) -> Iterator[Message]:
        """A topic's messages, newest first, for as long as they are asked for; see `Messages.newest`."""
        return self._stream(lambda m: m.newest(topic, tag_filter), 1)

    def offsets_at(self, topic: str, time_ms: int) -> dict[TopicQueue, QueueAt]:
        """Where every queue stood at a time; see `Messages.offsets_at`."""
        return self._run(lambda m: m.offsets_at(topic, time_ms))

    def replay(
        self, topic: str, from_ms: int, to_ms: int | None = None, tag_filter: str | None = None
    ) -> Iterator[Message]:
        """A topic's messages since a time; see `Messages.replay`."""
        return self._stream(lambda m: m.replay(topic, from_ms, to_ms, tag_filter), 256)

    def _stream(self, begin: Callable[[Messages], AsyncIterator[Message]], count: int) -> Iterator[Message]:
        async def begun(messages: Messages) -> AsyncIterator[Message]:
            return begin(messages)

        async def some(_: Messages) -> list[Message]:
            found: list[Message] = []
            while len(found) < count:
                message = await anext(stream, None)
                if message is None:
                    break
                found.append(message)
            return found

        stream = self._run(begun)
        while part := self._run(some):
            yield from part
