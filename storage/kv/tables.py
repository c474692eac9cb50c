"""Tables in the shard: each change is made in the same step as the append of its record.

So a table shows exactly what is confirmed. A walk is of one moment only within what one question to the
server brings: the keys of a page, or the values of some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from holdmq.errors import StorageError
from storage.api.batches import Appended, Batch
from storage.api.tables import (
    END_OF_WALK,
    ORDERED_KEY_BYTES,
    STOP,
    TAKE,
    Changed,
    Judge,
    Judged,
    Page,
    Reached,
    RowChanged,
    TableSize,
    VersionedRow,
    WalkedRow,
)
from storage.core.table_appends import KeyWatches, TableAppends
from storage.core.table_records import changes_in
from storage.kv.core.layout import VERSION, ShardKeys, key_at, place_of
from storage.kv.server import ShardServer

SCAN_ROWS: Final = 1_000
SCAN_BYTES: Final = 4 << 20
WALK_KEYS_FIRST: Final = 32
WALK_KEYS: Final = 256
"""Keys that a walk asks for at once: the first time, and then."""
WALK_VALUES: Final = 64
"""Values that it asks for at once at most: a caller that has enough soon ends it."""


def row_command(keys: ShardKeys, change: RowChanged) -> tuple[Any, ...]:
    """The words that change one row, its place in the order, and its table's size."""
    topic, key, value, version = change
    row = (keys.table(topic), keys.table_order(topic), key, place_of(key), topic, keys.sizes)
    return ("DELETE_ROW", *row) if value is None else ("PUT_ROW", *row, VERSION.pack(version) + value)


class KvTables(TableAppends):
    """All tables of one shard."""

    def __init__(
        self,
        server: ShardServer,
        keys: ShardKeys,
        is_table: Callable[[str], bool],
        append: Callable[[Batch, Appended], None],
        post: Callable[[Callable[[], object]], object],
        confirmed: Callable[[], int],
    ) -> None:
        super().__init__(is_table, append)
        self.changes = self.keyless = 0
        self._server = server
        self._keys = keys
        self._post = post
        self._confirmed = confirmed
        self._watches = KeyWatches()
        self._waiting: list[tuple[int, int, Reached]] = []
        self._waits = 0
        self._failure: StorageError | None = None
        self._sizes: dict[str, TableSize] = {}

    @property
    def applied_position(self) -> int:
        """Confirmed records below this log position are in what is read."""
        return self._confirmed()

    # What an append brings along

    def commands_of(self, batch: Batch, commands: list[Any], keys: list[str]) -> list[RowChanged]:
        """Add what changes the rows of a stamped batch; the changes, to be told once it is confirmed."""
        tables = {run.topic for run in batch.runs if self._is_table(run.topic)}
        if not tables:
            return []
        changes, keyless = changes_in(batch, tables)
        self.keyless += keyless
        for change in changes:
            words = row_command(self._keys, change)
            commands += (len(words), *words)
        for topic in tables:
            keys += (self._keys.table(topic), self._keys.table_order(topic))
        keys.append(self._keys.sizes)
        return changes

    # Called on the loop

    def watch(self, topic: str, prefix: str, changed: Changed) -> Callable[[], None]:
        """Call `changed` with confirmed changes of keys that begin with `prefix`; returns what ends it."""
        return self._watches.add(topic, prefix, changed)

    def wait_applied(self, position: int, reached: Reached) -> None:
        """Call `reached` once everything below `position` is confirmed; with an error if it never will be."""
        self._waits += 1
        heappush(self._waiting, (position, self._waits, reached))
        if self._confirmed() >= position or self._failure is not None:
            self._post(self.tell_waiting)

    def confirmed(self, changes: list[RowChanged]) -> None:
        """Tell what is confirmed."""
        if changes:
            self.changes += len(changes)
            self._watches.tell(changes)
        self.tell_waiting()

    def tell_waiting(self) -> None:
        """Answer those who wait for what is confirmed by now."""
        waiting = self._waiting
        while waiting and (waiting[0][0] <= self._confirmed() or self._failure is not None):
            heappop(waiting)[2](self._failure)

    def fail(self, error: StorageError) -> None:
        """Nothing more will be confirmed."""
        self._failure = error
        self.tell_waiting()

    def size_of(self, topic: str) -> TableSize:
        """What a table has; never waits."""
        return self._sizes.get(topic, TableSize(0, 0))

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges."""
        return {
            "tables_changes_total": self.changes,
            "tables_keyless_total": self.keyless,
            "tables_applied_position": self.applied_position,
            "tables_watches": len(self._watches),
        }

    # Called on any thread; these wait for the server

    def learn_sizes(self) -> None:
        """Ask for the sizes of all tables. Raises StorageError."""
        found: dict[str, list[int]] = {}
        for field, value in self._server.command("HGETALL", self._keys.sizes).items():
            topic, _, which = field.decode().rpartition("/")
            found.setdefault(topic, [0, 0])[which == "bytes"] = int(value)
        self._sizes = {topic: TableSize(rows, size) for topic, (rows, size) in found.items()}

    def get_many(
        self, topic: str, keys: Sequence[str], max_bytes: int | None = None
    ) -> list[VersionedRow | None]:
        """The rows of keys, all as they were at one moment; the first ones when `max_bytes` ends them."""
        if not keys:
            return []
        values = self._server.command("HMGET", self._keys.table(topic), *keys)
        found: list[VersionedRow | None] = []
        size = 0
        for key, value in zip(keys, values, strict=True):
            size += len(value or b"")
            if found and max_bytes is not None and size > max_bytes:
                break
            found.append(
                None if value is None else VersionedRow(key, value[8:], VERSION.unpack_from(value)[0])
            )
        return found

    def scan(
        self,
        topic: str,
        prefix: str = "",
        after: str | None = None,
        max_count: int = SCAN_ROWS,
        max_bytes: int = SCAN_BYTES,
    ) -> Page:
        """A page of the rows whose keys begin with `prefix`, behind the key `after`; at least one row."""
        begin = prefix.encode()
        ordered = begin[:ORDERED_KEY_BYTES]
        rows: list[VersionedRow] = []
        size = 0

        def judge(key: bytes) -> Judged:
            if key.startswith(begin):
                return TAKE
            return b"" if key.startswith(ordered) else END_OF_WALK

        for key, value, version in self.walk(topic, begin, None if after is None else after.encode(), judge):
            size += len(key) + len(value)
            if rows and (len(rows) >= max_count or size > max_bytes):
                return Page(rows, rows[-1].key)
            rows.append(VersionedRow(key.decode(), bytes(value), version))
        return Page(rows, None)

    def walk(self, topic: str, begin: bytes, after: bytes | None, judge: Judge) -> Generator[WalkedRow]:
        """The rows that `judge` takes, from key `begin` on, or behind `after`, in the order of `place_of`.

        Each key is judged when the walk gets to it: the caller may ask the judge how far it is. Keys of more
        than 367 bytes lie in no order among those that begin as they do: there it goes on one by one,
        whatever the judge says.
        """
        jump = begin[:ORDERED_KEY_BYTES]
        low = b"[" + jump
        if after is not None and (place := place_of(after)) >= jump:
            low = b"(" + place
        count = WALK_KEYS_FIRST
        while True:
            page = self._server.command(
                "ZRANGEBYLEX", self._keys.table_order(topic), low, "+", "LIMIT", 0, count
            )
            keys = [key_at(place) for place in page]
            values: dict[bytes, bytes | None] = {}
            ahead = 1
            for at, key in enumerate(keys):
                if page[at] < jump:
                    continue
                judged = judge(key)
                if judged is STOP:
                    return
                if judged is not TAKE:
                    ahead = 1
                    if len(key) <= ORDERED_KEY_BYTES:
                        if not isinstance(judged, bytes):
                            return
                        jump = judged[:ORDERED_KEY_BYTES]
                    continue
                if key not in values:
                    # Whoever takes one key after another soon takes many: each question brings more.
                    some = keys[at : at + ahead]
                    found = self._server.command("HMGET", self._keys.table(topic), *some)
                    values = dict(zip(some, found, strict=True))
                    ahead = min(2 * ahead, WALK_VALUES)
                value = values[key]
                if value is not None:  # deleted meanwhile
                    yield WalkedRow(key, memoryview(value)[8:], VERSION.unpack_from(value)[0])
            if len(page) < count:
                return
            count = WALK_KEYS
            low = b"[" + jump if jump > page[-1] else b"(" + page[-1]
