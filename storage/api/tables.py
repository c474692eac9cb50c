"""Tables: the newest value by key.

Threads: as in `storage.api.queues`. A method that says "blocking" belongs on a reader pool; the others are
called on the event loop, and every callback runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from holdmq.errors import StorageError
    from storage.api.batches import Appended, Batch

KEY_BYTES_MAX: Final = 32 << 10
"""The longest key: as long as a tag may be."""
ORDERED_KEY_BYTES: Final = 367
"""Longer keys are in the order of their first so many bytes."""


class VersionedRow(NamedTuple):
    """A key and what it has; `version` rises with every change of the key."""

    key: str
    value: bytes
    version: int


class RowChanged(NamedTuple):
    """A key that was put, or deleted (`value` None), by the record at log position `version`."""

    topic: str
    key: bytes
    value: bytes | None
    version: int


class Page(NamedTuple):
    """A part of a scan. `next_after`: ask again behind this key; None = that was all."""

    rows: list[VersionedRow]
    next_after: str | None


class Walking(Enum):
    """What becomes of a key that a walk meets."""

    TAKE = "its row is wanted"
    END = "no key behind it is"
    STOP = "it is not looked at any more"


TAKE: Final = Walking.TAKE
END_OF_WALK: Final = Walking.END
STOP: Final = Walking.STOP
Judged = Walking | bytes
"""Bytes: the row is not wanted, nor any before the first key that is not below these; empty = the next."""
Judge = Callable[[bytes], Judged]


class WalkedRow(NamedTuple):
    """A row that a walk met. `value` is a view that ends with the next step."""

    key: bytes
    value: memoryview
    version: int


class TableSize(NamedTuple):
    """How many rows a table has, and the bytes of their keys and values."""

    rows: int
    size_bytes: int


Changed = Callable[[list[RowChanged]], object]
Reached = Callable[["StorageError | None"], object]


class KeyChange(NamedTuple):
    """What a key has from now on (`value` None = nothing), and the queue of its record."""

    queue_id: int
    key: str
    value: bytes | None


class TableWrites(Protocol):
    """Changes of tables, as records in the log."""

    def put(
        self,
        topic: str,
        key: str,
        value: bytes,
        done: Appended,
        queue_id: int = 0,
        born_ms: int = 0,
        unique_id: str = "",
    ) -> Batch:
        """Append a key's value; the batch, as `MessageStore.append` left it, with `done` as there.

        Its position is the row's version, provisional until `done` says otherwise; -1 = refused at once.
        Raises RecordError for a key that is empty or too long, and for a topic that is no table.
        """

    def delete(
        self,
        topic: str,
        key: str,
        done: Appended,
        queue_id: int = 0,
        born_ms: int = 0,
        unique_id: str = "",
    ) -> Batch:
        """Append that a key has no value from now on; otherwise as `put`."""

    def change_many(
        self, topic: str, changes: Sequence[KeyChange], done: Appended, born_ms: int = 0
    ) -> Batch:
        """Append changes, at least one, as one batch: all of them are confirmed, or none; otherwise as `put`.

        Of one key the last counts, if all of its changes name the same queue.
        """


class TableReads(Protocol):
    """Rows of tables: the newest value by key, of confirmed records, a moment after confirmation."""

    def get_many(
        self, topic: str, keys: Sequence[str], max_bytes: int | None = None
    ) -> list[VersionedRow | None]:
        """Blocking: the rows of keys, in their order, all as they were at one moment. Raises StorageError.

        Only the first ones when their values together exceed `max_bytes`, but always one.
        """

    def scan(
        self,
        topic: str,
        prefix: str = "",
        after: str | None = None,
        max_count: int = ...,
        max_bytes: int = ...,
    ) -> Page:
        """Blocking: rows whose keys begin with `prefix`, behind the key `after`; at least one if there is
        one. In the order of the keys' bytes; keys of more than 367 bytes by their first 367, then in some
        fixed order. Raises StorageError."""

    def walk(self, topic: str, begin: bytes, after: bytes | None, judge: Judge) -> Generator[WalkedRow]:
        """Blocking: the rows that `judge` takes, from key `begin` on, or behind `after`; as of one moment.

        In the order of `scan`. The caller closes it when it wants no more, soon: it holds a transaction open.
        Raises StorageError.
        """

    def size_of(self, topic: str) -> TableSize:
        """What a table has, as of `applied_position`; never waits."""


class TableNews(Protocol):
    """How far tables are, and who is told of their changes."""

    @property
    def applied_position(self) -> int:
        """Confirmed records below this log position are in what `get_many` and `scan` show."""

    def watch(self, topic: str, prefix: str, changed: Changed) -> Callable[[], None]:
        """Call `changed` with applied changes of keys that begin with `prefix`; returns what ends it."""

    def wait_applied(self, position: int, reached: Reached) -> None:
        """Call `reached` once everything below `position` is applied; with an error if it never will be."""


class TableStore(TableWrites, TableReads, TableNews, Protocol):
    """All tables of a store."""
