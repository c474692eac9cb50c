"""Which messages were handled before: what comes again is known again, within a window of time.

Groups get every message at least once. What a handler does once for good needs a memory of what it has done:
in the database that the handler writes, by the same transaction (`SeenInSql`), it is exact; in a table of the
brokers (`SeenInTable`) it is for effects that no transaction can hold.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

from holdmq.client.tables import Table
from holdmq.errors import Code, RemoteError, UsageError
from holdmq.message import Message

WINDOW_S: Final = 7 * 86_400.0
"""How long a key is remembered: longer than a group may lag, and than its retries take."""
PRUNE_MAX: Final = 10_000
"""Keys that one call of `prune` forgets at most."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

ParamStyle = Literal["qmark", "format"]
"""How a database's module marks parameters: ? (sqlite3) or %s (psycopg); PEP 249 calls it so."""


def key_of(message: Message) -> str:
    """What a message is known by: the id that its producer gave it, or where it is stored.

    Of a message without an id, one that was sent back and came again is another one.
    """
    if message.unique_id is not None:
        return message.unique_id
    return f"{message.broker}/{message.topic}/{message.queue_id}/{message.queue_offset}"


class SqlCursor(Protocol):
    """What PEP 249 says of a cursor, as far as it is used here."""

    @property
    def rowcount(self) -> int:
        """Rows that the last statement changed."""

    def execute(self, statement: str, parameters: Any = ..., /) -> Any:
        """Run a statement with its parameters."""

    def close(self) -> Any:
        """Be done with the cursor."""


class SqlConnection(Protocol):
    """A connection of PEP 249; the caller begins and commits its transactions."""

    def cursor(self) -> SqlCursor:
        """Return a new cursor."""


class SeenInSql:
    """Keys in a table of the application's own database: SQLite from 3.24 on, or PostgreSQL.

    `scope`: what handles the messages, such as the group's name; each has keys of its own. `clock`: seconds
    since the epoch. Use the connection, and the transaction, that the handler's own statements use::

        with database:                            # one transaction
            if seen.first(database, key_of(message)):
                database.execute("UPDATE accounts SET …")
    """

    def __init__(
        self,
        scope: str,
        *,
        table: str = "holdmq_seen",
        paramstyle: ParamStyle = "qmark",
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not _NAME.fullmatch(table):
            raise UsageError(f"table {table!r} is no name of a table: a letter, then letters, digits and _")
        if paramstyle not in ("qmark", "format"):
            raise UsageError(f"paramstyle {paramstyle!r} is not qmark or format")
        if window_s <= 0:
            raise UsageError(f"window_s {window_s} is not above 0")
        mark = "?" if paramstyle == "qmark" else "%s"
        self._scope = scope
        self._window_s = window_s
        self._clock = clock
        # The name was checked above: no statement takes one as a parameter.
        columns = "scope TEXT NOT NULL, name TEXT NOT NULL, seen_at DOUBLE PRECISION NOT NULL"
        self._create = (
            f"CREATE TABLE IF NOT EXISTS {table} ({columns}, PRIMARY KEY (scope, name))",
            f"CREATE INDEX IF NOT EXISTS {table}_at ON {table} (scope, seen_at)",
        )
        self._insert = (
            f"INSERT INTO {table} (scope, name, seen_at) VALUES ({mark}, {mark}, {mark}) "  # noqa: S608
            "ON CONFLICT DO NOTHING"
        )
        self._delete = (
            f"DELETE FROM {table} WHERE scope = {mark} AND name IN "  # noqa: S608
            f"(SELECT name FROM {table} WHERE scope = {mark} AND seen_at < {mark} "
            f"ORDER BY seen_at LIMIT {PRUNE_MAX})"
        )

    def create(self, connection: SqlConnection) -> None:
        """Make the table unless it is there; the caller commits."""
        for statement in self._create:
            self._run(connection, statement)

    def first(self, connection: SqlConnection, key: str) -> bool:
        """Note a key; whether it is the first time. It counts if the transaction is committed, and only then.

        Two members that handle one message at the same time are kept apart by the database: the second one
        waits for the first one's transaction.
        """
        return self._run(connection, self._insert, self._scope, key, self._clock()) == 1

    def prune(self, connection: SqlConnection) -> int:
        """Forget keys that are older than the window, PRUNE_MAX at most; how many. The caller commits."""
        before = self._clock() - self._window_s
        return self._run(connection, self._delete, self._scope, self._scope, before)

    @staticmethod
    def _run(connection: SqlConnection, statement: str, *parameters: object) -> int:
        cursor = connection.cursor()
        try:
            cursor.execute(statement, parameters)
            return cursor.rowcount
        finally:
            cursor.close()


class SeenInTable:
    """Keys in a table of the brokers, for effects that no transaction holds: a mail, a call of a service.

    Between such an effect and a note of it a process may be killed, whatever the order. So choose: `claim`
    before the effect, and it happens at most once; or `seen` before and `claim` after, and it happens at
    least once, and again only if the process ended just in between.
    """

    def __init__(
        self, table: Table, *, window_s: float = WINDOW_S, clock: Callable[[], float] = time.time
    ) -> None:
        """`table` is open, and of this purpose only; see `Table.create`."""
        self._table = table
        self._window_s = window_s
        self._clock = clock
        self._pruned_to: str | None = None

    async def seen(self, key: str) -> bool:
        """Whether the key was claimed, within the window."""
        entry = await self._table.get(key)
        return entry is not None and not self._is_old(entry.value)

    async def claim(self, key: str) -> bool:
        """Note a key once it is in the log; True for one caller alone, whoever else asks at the same time.

        True again, later, once the key is older than the window. Raises as `Table.put`.
        """
        entry = await self._table.get(key)
        if entry is not None and not self._is_old(entry.value):
            return False
        version = -1 if entry is None else entry.version
        try:
            await self._table.put(key, b"%d" % round(self._clock() * 1000), if_version=version)
        except RemoteError as error:
            if error.code == Code.ROW_CHANGED:
                return False
            raise
        return True

    async def forget(self, key: str) -> None:
        """Take a claim back: its effect surely did not happen."""
        await self._table.delete(key)

    async def prune(self) -> int:
        """Look at the next page of the table, and forget keys that are too old; how many.

        Call it now and then, as often as a page of keys is claimed at least.
        """
        page = await self._table.scan_page(after=self._pruned_to)
        self._pruned_to = page.next_after
        forgotten = 0
        for entry in page.entries:
            if self._is_old(entry.value):
                forgotten += await self._forget(entry.key, entry.version)
        return forgotten

    async def _forget(self, key: str, version: int) -> bool:
        """Whether the row was still this one."""
        try:
            await self._table.delete(key, if_version=version)
        except RemoteError as error:
            if error.code == Code.ROW_CHANGED:
                return False  # claimed again meanwhile
            raise
        return True

    def _is_old(self, value: bytes) -> bool:
        return int(value) / 1000 < self._clock() - self._window_s
