"""Watching a table: what changes, as it changes, from every broker that the table is on.

Brokers push changes; who takes them slowly is told to scan again instead. Here both come out as one stream
that a dict can follow, and what waits in it is bounded: of each key only the newest change waits, and past
PENDING_ROWS_MAX keys the broker's rows are read again when there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from holdmq.client.route import Link
from holdmq.errors import HoldMQError, UsageError
from holdmq.rpc.connection import Connection, Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import HelloResponse
from holdmq.wire.table_headers import (
    TableChangesPush,
    TableRow,
    TableUnwatchRequest,
    TableWatching,
    TableWatchRequest,
)

if TYPE_CHECKING:
    from holdmq.client.tables import Table

PENDING_ROWS_MAX: Final = 20_000
"""Keys whose newest change waits to be taken; a scan goes on while it is half of that."""
PENDING_BYTES_MAX: Final = 64 << 20
PAGE_ROWS: Final = 1_000
"""Rows read at a time: so many more may wait, of each broker."""
RETRY_S: Final = 0.5

_watch_ids = itertools.count(1)


class TableChange(NamedTuple):
    """A key has a new value, or none any more (`value` None)."""

    key: str
    value: bytes | None
    version: int
    broker: str


class TableReset(NamedTuple):
    """Forget the rows that came from this broker: all that it has come next."""

    broker: str


class TableComplete(NamedTuple):
    """All rows of this broker have come; until a TableReset of it what comes are changes."""

    broker: str


Event = TableChange | TableReset | TableComplete


class _Stream:
    """What is known of one broker: which of its pushes are old, and whether its rows must be read again."""

    __slots__ = ("is_behind", "is_connected", "is_read", "position", "recent", "stirred", "task", "told")

    def __init__(self) -> None:
        self.is_connected = False
        self.is_behind = False
        self.is_read = False
        self.position = -1
        """Changes below this log position are in rows that were read."""
        self.recent: dict[str, int] = {}
        """Versions at or above it that were read too."""
        self.told: dict[str, int] = {}
        """Versions that were pushed while a page was on its way: the page may have older ones."""
        self.stirred = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class TableWatch:
    """Changes of a table's keys. Made by `Table.watch`; `async for`, or `poll`; `close` it in the end.

    After a `TableReset` the rows of one broker come again, as changes, and then a `TableComplete`: a copy
    forgets at the first what it had from that broker, and is whole at the second. Of changes that follow
    each other quickly only the last may come; versions of a key rise.
    """

    def __init__(
        self, table: Table, prefix: str, with_rows: bool, on_closed: Callable[[TableWatch], None]
    ) -> None:
        self.table = table
        self.prefix = prefix
        self._on_closed = on_closed
        self._with_rows = with_rows
        self._watch_id = next(_watch_ids)
        self._streams: dict[str, _Stream] = {}
        self._pending: dict[tuple[str, str | type[Event]], Event] = {}
        self._pending_bytes = 0
        self._taken: deque[Event] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._error: HoldMQError | None = None
        self._is_started = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._taken:
            self._taken.extend(await self.poll())
        return self._taken.popleft()

    @property
    def is_complete(self) -> bool:
        """Whether every broker's rows were read: what was taken, and what waits, is the whole table."""
        return bool(self._streams) and all(stream.is_read for stream in self._streams.values())

    @property
    def waiting(self) -> int:
        """Events that wait to be taken."""
        return len(self._pending)

    async def start(self) -> None:
        """Begin: every change that is acknowledged after this returned is told. Raises as `Table.get`."""
        if self._is_started:
            return
        self._is_started = True
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        routes = self.table.routes
        routes.on_push.append(self._pushed)
        routes.on_up.append(self._up)
        routes.on_down.append(self._down)
        routes.on_routes.append(self._routed)
        for broker in await self.table.brokers():
            await self._watch(broker)
            self._follow(broker)

    async def poll(self, timeout_s: float | None = None) -> list[Event]:
        """What happened since the last call, waiting for something if nothing did.

        [] after `timeout_s`.
        Raises the error that ended the watch for good (the table was deleted, or may not be read).
        """
        if self._is_closed:
            raise UsageError("the watch was closed")
        await self.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._pending and self._error is None:
                    self._news.clear()
                    await self._news.wait()
        if self._error is not None and not self._pending:
            raise self._error
        events = list(self._pending.values())
        self._pending.clear()
        self._pending_bytes = 0
        self._room.set()
        return events

    async def close(self) -> None:
        """End the watch; closing again changes nothing."""
        self._on_closed(self)
        self._is_closed = True
        routes = self.table.routes
        if self._is_started and self._pushed in routes.on_push:
            routes.on_push.remove(self._pushed)
            routes.on_up.remove(self._up)
            routes.on_down.remove(self._down)
            routes.on_routes.remove(self._routed)
        for broker, stream in self._streams.items():
            if stream.task is not None:
                stream.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await stream.task
            with contextlib.suppress(HoldMQError):
                connection = routes.link(broker).client.connection
                if connection is not None:
                    connection.send_one_way(RequestCode.TABLE_UNWATCH, TableUnwatchRequest(self._watch_id))
        self._streams.clear()

    # One task per broker reads its rows when they must be read

    def _follow(self, broker: str) -> None:
        stream = self._stream(broker)
        if stream.task is None:
            run = self._keep(broker, stream)
            stream.task = asyncio.get_running_loop().create_task(run, name=f"watch {self.table.name}")

    def _stream(self, broker: str) -> _Stream:
        stream = self._streams.get(broker)
        if stream is None:
            stream = self._streams[broker] = _Stream()
            stream.is_behind = self._with_rows
            stream.is_read = not self._with_rows
        return stream

    async def _watch(self, broker: str) -> None:
        stream = self._stream(broker)
        request = TableWatchRequest(self.table.name, self.prefix, self._watch_id)
        reply = await self.table.call(RequestCode.TABLE_WATCH, broker, request)
        stream.position = reply.header(TableWatching).position
        stream.is_connected = self.table.routes.link(broker).is_up

    async def _keep(self, broker: str, stream: _Stream) -> None:
        while True:
            try:
                if not stream.is_connected:
                    await self._watch(broker)
                    stream.is_behind = True
                # A read that failed on a connection that lives on is begun again.
                if stream.is_behind or not stream.is_read:
                    await self._read(broker, stream)
            except HoldMQError as error:
                if not error.retriable:
                    self._error = error
                    self._news.set()
                    return
                await asyncio.sleep(RETRY_S)
                continue
            if stream.is_connected and not stream.is_behind:
                stream.stirred.clear()
                await stream.stirred.wait()

    async def _read(self, broker: str, stream: _Stream) -> None:
        """Tell all rows of a broker, page by page, as there is room for them."""
        self._forget(broker)
        stream.is_behind, stream.is_read = False, False
        stream.position = -1
        stream.recent.clear()
        self._put((broker, TableReset), TableReset(broker))
        after: str | None = None
        while True:
            while len(self._pending) > PENDING_ROWS_MAX // 2 or self._pending_bytes > PENDING_BYTES_MAX // 2:
                self._room.clear()
                await self._room.wait()
            count = min(PAGE_ROWS, PENDING_ROWS_MAX // 2)
            stream.told.clear()
            position, page = await self.table.scan_broker(broker, self.prefix, after, count)
            if stream.is_behind:
                return
            stream.position = max(stream.position, position)
            for key, value, version in page.entries:
                if version >= position:
                    stream.recent[key] = version
                if version > stream.told.get(key, -1):
                    self._add(TableChange(key, value, version, broker))
            after = page.next_after
            if after is None:
                stream.is_read = True
                stream.told.clear()
                self._put((broker, TableComplete), TableComplete(broker))
                return

    # What brokers say

    def _pushed(self, link: Link, request: Request) -> bool:
        if request.command.code != RequestCode.TABLE_CHANGED:
            return False
        push = request.header(TableChangesPush)
        stream = self._streams.get(link.name)
        if push.watch_id != self._watch_id or stream is None:
            return False
        if push.rescan:
            self._set_behind(link.name, stream)
            return True
        from holdmq.client.tables import with_values

        for row, value in with_values(request.body, rows(TableRow, push.rows)):
            if stream.is_behind:
                return True
            if row.version >= stream.position and row.version > stream.recent.get(row.key, -1):
                stream.recent.pop(row.key, None)
                if not stream.is_read:
                    stream.told[row.key] = row.version
                self._add(TableChange(row.key, value, row.version, link.name))
                if (
                    max(len(self._pending), len(stream.told)) > PENDING_ROWS_MAX
                    or self._pending_bytes > PENDING_BYTES_MAX
                ):
                    self._set_behind(link.name, stream)
        return True

    def _set_behind(self, broker: str, stream: _Stream) -> None:
        """Rows are read again: what waits of this broker is void."""
        stream.is_behind, stream.is_read = True, False
        self._forget(broker)
        stream.stirred.set()

    def _up(self, link: Link, connection: Connection, hello: HelloResponse) -> None:
        stream = self._streams.get(link.name)
        if stream is not None:
            stream.stirred.set()

    def _down(self, link: Link, reason: HoldMQError) -> None:
        stream = self._streams.get(link.name)
        if stream is not None:
            stream.is_connected = False
            stream.stirred.set()

    def _routed(self, topics: frozenset[str]) -> None:
        route = self.table.routes.get(self.table.name) if self.table.name in topics else None
        for queue in route.read_queues if route is not None else ():
            if queue.broker not in self._streams:
                self._follow(queue.broker)
        for broker in [name for name in self._streams if self.table.routes.is_given_up(name)]:
            self._give_up(broker)

    def _give_up(self, broker: str) -> None:
        """What a broker had is lost with it: a copy forgets that, and waits for nothing more."""
        stream = self._streams.pop(broker)
        if stream.task is not None:
            stream.task.cancel()
        self._forget(broker)
        self._put((broker, TableReset), TableReset(broker))
        self._put((broker, TableComplete), TableComplete(broker))

    # What waits

    def _add(self, change: TableChange) -> None:
        if not self.table.is_owner(change.broker, change.key):
            return
        before = self._pending.get((change.broker, change.key))
        if isinstance(before, TableChange):
            if before.version >= change.version:
                return
            # The newest change of a key comes last, so that the order of keys is that of their changes.
            del self._pending[change.broker, change.key]
            self._pending_bytes -= len(before.value or b"") + len(before.key)
        self._put((change.broker, change.key), change)
        self._pending_bytes += len(change.value or b"") + len(change.key)

    def _put(self, name: tuple[str, str | type[Event]], event: Event) -> None:
        self._pending[name] = event
        self._news.set()

    def _forget(self, broker: str) -> None:
        self._pending = {name: event for name, event in self._pending.items() if name[0] != broker}
        self._pending_bytes = sum(
            len(e.value or b"") + len(e.key) for e in self._pending.values() if isinstance(e, TableChange)
        )
        self._room.set()
