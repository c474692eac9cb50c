"""What leaves the timer and is refused waits again, where the log has it by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from holdmq.errors import StorageError, StoreFullError
from holdmq.record.codec import encode_record
from storage.api.batches import Appended, Batch, BatchRun, sizes_of
from storage.api.timer import TIMER_QUEUE, TIMER_TOPIC, waiting_record
from storage.core.delayed import Entry
from storage.core.stamper import Stamper
from storage.log.timer.core.timer import Rows, entries_of_rows, rows_of
from storage.log.timer.files import WaitingRecords
from storage.log.timer.releases import RETRY_S, Releases

DUE_MS = 1_700_000_000_000


class ReadPlaces:
    """A log that has one waiting record, wherever it is asked for; it notes where."""

    def __init__(self) -> None:
        record = encode_record(b"devices", 0, b"late", b"", 5)
        self.record = waiting_record(record, DUE_MS, lambda _: None)
        self.positions: list[int] = []

    def read(self, rows: Rows, use: Callable[[memoryview, Entry], object]) -> list[Any]:
        for entry in entries_of_rows(rows):
            self.positions.append(entry.position)
            run = BatchRun(TIMER_TOPIC, TIMER_QUEUE, 1, base_offset=entry.first)
            batch = Batch(memoryview(bytearray(self.record)), sizes_of([self.record]), [run], entry.position)
            Stamper().stamp(batch, b"store id")
            use(batch.records, entry)
        return []


def test_a_refused_release_is_read_where_it_was_rolled_to_meanwhile() -> None:
    places = ReadPlaces()
    appended: list[tuple[Batch, Appended]] = []
    now_s = [0.0]
    releases = Releases(
        cast("WaitingRecords", places), lambda _: 1, lambda batch, done: appended.append((batch, done)),
        lambda call: call(), lambda: None, lambda: now_s[0],
    )  # fmt: skip
    entry = Entry(DUE_MS, 3, 100, len(places.record))
    releases.due.add(rows_of([entry]))

    def leave(error: StorageError | None) -> None:
        releases.take_back()
        now_s[0] += RETRY_S
        releases.prepare(DUE_MS)
        releases.release(DUE_MS)
        batch, done = appended.pop()
        releases.move(entry._replace(position=100 + 1000 * len(places.positions)))
        done(batch, error)

    leave(StoreFullError("no room", operation="append"))
    leave(StoreFullError("no room", operation="append"))
    leave(None)
    assert places.positions == [100, 1100, 2100], "its first segment may have gone since"
    assert releases.left(3)
    assert not releases.left(3)
