"""Changes of tables as batches for the log, and who is told of them: the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from holdmq.errors import Code, RecordError
from holdmq.names.topics import is_temporary
from storage.api.batches import Appended, Batch, BatchRun, sizes_of
from storage.api.tables import Changed, KeyChange, RowChanged
from storage.core.table_records import table_record


class TableAppends:
    """Appends what changes tables: `storage.api.tables.TableWrites`. `is_table` says of a topic whether it
    is one.
    """

    def __init__(self, is_table: Callable[[str], bool], append: Callable[[Batch, Appended], None]) -> None:
        self._is_table = is_table
        self._append = append

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
        """Store a key's value; `done` as of `MessageStore.append`, which is before the table shows it.

        Who must read what it wrote waits with `wait_applied(batch.end, …)`. Raises RecordError for a
        key that is empty or too long, and for a topic that is no table.
        """
        return self._change(topic, key, value, done, queue_id, born_ms, unique_id)

    def delete(
        self,
        topic: str,
        key: str,
        done: Appended,
        queue_id: int = 0,
        born_ms: int = 0,
        unique_id: str = "",
    ) -> Batch:
        """Take a key's value away; otherwise as `put`."""
        return self._change(topic, key, None, done, queue_id, born_ms, unique_id)

    def _change(
        self,
        topic: str,
        key: str,
        value: bytes | None,
        done: Appended,
        queue_id: int,
        born_ms: int,
        unique_id: str,
    ) -> Batch:
        self._check_table(topic)
        record = table_record(topic, queue_id, key, value, born_ms, unique_id)
        batch = Batch(memoryview(bytearray(record)), sizes_of([record]), [BatchRun(topic, queue_id, 1)])
        self._append(batch, done)
        return batch

    def change_many(
        self, topic: str, changes: Sequence[KeyChange], done: Appended, born_ms: int = 0
    ) -> Batch:
        """Append changes as one batch, by queue; otherwise as `put`."""
        self._check_table(topic)
        ordered = sorted(changes, key=lambda change: change.queue_id)
        records = [
            table_record(topic, change.queue_id, change.key, change.value, born_ms) for change in ordered
        ]
        runs = [
            BatchRun(topic, queue_id, len(list(same)))
            for queue_id, same in groupby(ordered, lambda change: change.queue_id)
        ]
        batch = Batch(memoryview(bytearray().join(records)), sizes_of(records), runs)
        self._append(batch, done)
        return batch

    def _check_table(self, topic: str) -> None:
        if is_temporary(topic) or not self._is_table(topic):
            raise RecordError(f"topic {topic} is no table", Code.TOPIC_INVALID)


class _KeyWatch(NamedTuple):
    topic: str
    prefix: bytes
    changed: Changed


class KeyWatches:
    """Tells those who watch keys of their changes. Called on the loop."""

    def __init__(self) -> None:
        self._watches: list[_KeyWatch] = []

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, topic: str, prefix: str, changed: Changed) -> Callable[[], None]:
        """Call `changed` with changes of keys that begin with `prefix`; returns what ends it."""
        watch = _KeyWatch(topic, prefix.encode(), changed)
        self._watches = [*self._watches, watch]

        def end() -> None:
            self._watches = [other for other in self._watches if other is not watch]

        return end

    def tell(self, changes: list[RowChanged]) -> None:
        """Tell each watch of the changes that it wants."""
        for watch in self._watches:
            own = [
                change
                for change in changes
                if change.topic == watch.topic and change.key.startswith(watch.prefix)
            ]
            if own:
                watch.changed(own)
