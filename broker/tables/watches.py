"""Watches of tables: who is told of which changes, and what happens to who does not take them.

A push goes into the connection's own buffer while its peer reads. While it does not, its watches are
told nothing and nothing is kept for them; when it reads again each is told once to scan again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from holdmq.errors import Code, RemoteError
from holdmq.rpc.connection import Connection
from holdmq.wire.codes import RequestCode
from holdmq.wire.table_headers import NO_VALUE, TableChangesPush, TableRow
from storage.api.tables import RowChanged, TableStore

WATCHES_MAX: Final = 10_000
"""Watches of all connections: each costs a kilobyte, and a look at every change of its table."""
WATCHES_PER_CONNECTION_MAX: Final = 256
PUSH_MAX_BYTES: Final = 1 << 20
"""Values in one push, but always one: between two the peer's buffer is looked at."""


class _ConnectionWatch:
    """`is_behind`: changes were not told; the next word is to scan again."""

    __slots__ = ("connection", "is_behind", "prefix", "topic", "watch_id")

    def __init__(self, connection: Connection, watch_id: int, topic: str, prefix: bytes) -> None:
        self.connection = connection
        self.watch_id = watch_id
        self.topic = topic
        self.prefix = prefix
        self.is_behind = False


class _Watched:
    """A table that is watched: its watches by prefix, and what ends the store's."""

    __slots__ = ("by_prefix", "end")

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        self.by_prefix: dict[bytes, list[_ConnectionWatch]] = {}

    def concerned(self, changes: Iterable[RowChanged]) -> dict[_ConnectionWatch, list[RowChanged]]:
        """Which watches are to be told of which changes: of each key the newest."""
        newest = {change.key: change for change in changes}
        lengths = sorted({len(prefix) for prefix in self.by_prefix})
        found: dict[_ConnectionWatch, list[RowChanged]] = {}
        for key, change in newest.items():
            for length in lengths:
                if length > len(key):
                    break
                for watch in self.by_prefix.get(key[:length], ()):
                    found.setdefault(watch, []).append(change)
        return found


class TableWatches:
    """All watches of one broker. `pushes` were sent, `rescans` are those that said: scan again."""

    def __init__(self, store: TableStore | None) -> None:
        self.count = 0
        self.pushes = 0
        self.rescans = 0
        self._store = store
        self._tables: dict[str, _Watched] = {}
        self._by_connection: dict[Connection, dict[int, _ConnectionWatch]] = {}

    def begin(self, connection: Connection, watch_id: int, topic: str, prefix: str) -> None:
        """Watch a table; an id that is in use is moved to what this asks for. Raises LIMIT_EXCEEDED."""
        assert self._store is not None
        own = self._by_connection.get(connection, {})
        if watch_id not in own:
            if len(own) >= WATCHES_PER_CONNECTION_MAX:
                raise RemoteError(
                    Code.LIMIT_EXCEEDED, f"{WATCHES_PER_CONNECTION_MAX} watches on one connection"
                )
            if self.count >= WATCHES_MAX:
                raise RemoteError(Code.LIMIT_EXCEEDED, f"{WATCHES_MAX} watches at this broker")
        self.end(connection, watch_id)
        watch = _ConnectionWatch(connection, watch_id, topic, prefix.encode())
        watched = self._tables.get(topic)
        if watched is None:
            end = self._store.watch(topic, "", lambda changes: self._changed(topic, changes))
            watched = self._tables[topic] = _Watched(end)
        watched.by_prefix.setdefault(watch.prefix, []).append(watch)
        self._by_connection.setdefault(connection, {})[watch_id] = watch
        self.count += 1

    def end(self, connection: Connection, watch_id: int) -> None:
        """Forget a watch; one that is not there is fine."""
        own = self._by_connection.get(connection)
        watch = None if own is None else own.pop(watch_id, None)
        if own is None or watch is None:
            return
        if not own:
            del self._by_connection[connection]
        self.count -= 1
        watched = self._tables[watch.topic]
        same = watched.by_prefix[watch.prefix]
        same.remove(watch)
        if not same:
            del watched.by_prefix[watch.prefix]
        if not watched.by_prefix:
            watched.end()
            del self._tables[watch.topic]

    def closed(self, connection: Connection) -> None:
        """Forget a connection's watches."""
        for watch_id in list(self._by_connection.get(connection, ())):
            self.end(connection, watch_id)

    def writable(self, connection: Connection) -> None:
        """A connection's peer reads again."""
        for watch in self._by_connection.get(connection, {}).values():
            if watch.is_behind and connection.is_writable:
                watch.is_behind = False
                self.rescans += 1
                self._send(watch, [], True)

    def _changed(self, topic: str, changes: list[RowChanged]) -> None:
        watched = self._tables.get(topic)
        if watched is not None:
            for watch, own in watched.concerned(changes).items():
                self._tell(watch, own)

    def _tell(self, watch: _ConnectionWatch, changes: list[RowChanged]) -> None:
        part: list[RowChanged] = []
        size = 0
        for change in changes:
            length = len(change.value or b"") + len(change.key)
            if part and size + length > PUSH_MAX_BYTES:
                self._push(watch, part)
                part, size = [], 0
            part.append(change)
            size += length
        self._push(watch, part)

    def _push(self, watch: _ConnectionWatch, changes: list[RowChanged]) -> None:
        if watch.is_behind or not watch.connection.is_writable:
            watch.is_behind = True
        else:
            self._send(watch, changes, False)

    def _send(self, watch: _ConnectionWatch, changes: list[RowChanged], rescan: bool) -> None:
        rows = [
            TableRow(c.key.decode(), c.version, NO_VALUE if c.value is None else len(c.value))
            for c in changes
        ]
        values = [c.value for c in changes if c.value]
        self.pushes += 1
        watch.connection.send_one_way(
            RequestCode.TABLE_CHANGED,
            TableChangesPush(watch.watch_id, rows, rescan),
            values,
            sum(map(len, values)),
        )
