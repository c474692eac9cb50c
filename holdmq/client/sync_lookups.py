"""Tables and look-ups of messages without async; see `holdmq.client.sync`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from holdmq.client.queries import Messages
from holdmq.client.sync import _awaited, _Blocking
from holdmq.client.table_watch import Event, TableWatch
from holdmq.client.tables import Table, TableEntry
from holdmq.message import Message


class SyncTable(_Blocking[Table]):
    """A blocking `Table`; takes the same settings."""

    def __init__(self, name: str, registries: Sequence[str], **settings: Any) -> None:
        super().__init__(Table, (name, list(registries)), settings)

    create = _awaited(Table.create)
    get = _awaited(Table.get)
    put = _awaited(Table.put)
    delete = _awaited(Table.delete)
    scan_page = _awaited(Table.scan_page)

    def get_many(self, keys: Iterable[str]) -> list[TableEntry | None]:
        """The rows of many keys; see `Table.get_many`."""
        wanted = list(keys)
        return self._run(lambda t: t.get_many(wanted))

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

    def poll(self, timeout_s: float | None = None) -> list[Event]:
        """What happened since the last call; see `TableWatch.poll`."""
        return self._table._run(lambda _: self._watch.poll(timeout_s))

    def close(self) -> None:
        """End the watch of the table."""
        self._table._run(lambda _: self._watch.close())


class SyncMessages(_Blocking[Messages]):
    """A blocking `Messages`; takes the same settings."""

    def __init__(self, registries: Sequence[str], **settings: Any) -> None:
        super().__init__(Messages, (list(registries),), settings)

    get = _awaited(Messages.get)
    find = _awaited(Messages.find)
    offsets_at = _awaited(Messages.offsets_at)

    def newest(self, topic: str, tag_filter: str | None = None) -> Iterator[Message]:
        """A topic's messages, newest first, for as long as they are asked for; see `Messages.newest`."""
        return self._stream(lambda m: m.newest(topic, tag_filter), 1)

    def replay(
        self, topic: str, from_ms: int, to_ms: int | None = None, tag_filter: str | None = None
    ) -> Iterator[Message]:
        """A topic's messages since a time; see `Messages.replay`."""
        return self._stream(lambda m: m.replay(topic, from_ms, to_ms, tag_filter), 256)

    def _stream(self, begin: Callable[[Messages], AsyncIterator[Message]], count: int) -> Iterator[Message]:
        async def some(_: Messages) -> list[Message]:
            found: list[Message] = []
            while len(found) < count:
                message = await anext(stream, None)
                if message is None:
                    break
                found.append(message)
            return found

        stream = self._on_loop(begin)
        while part := self._run(some):
            yield from part
