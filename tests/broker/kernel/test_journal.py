"""Who waits for a record is told when the log has it, whichever append it left with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.kernel.snapshot_file import SnapshotFile
from broker.mqtt_shares.core.records import BEGINS
from broker.mqtt_shares.journal import ShareJournal
from holdmq.errors import StorageError, StoreFullError
from storage.api.batches import Appended, Batch

GROUP = "$share/g/t"


class HeldAppends:
    """A log that confirms its appends, the oldest first, when a test says so."""

    def __init__(self) -> None:
        self.held: list[Callable[[StorageError | None], None]] = []
        self._end = 0

    def append(self, batch: Batch, appended: Appended) -> None:
        batch.runs[0].base_offset, self._end = self._end, self._end + len(batch.sizes)
        self.held.append(lambda error: appended(batch, error))

    def end(self, error: StorageError | None = None) -> None:
        self.held.pop(0)(error)


@pytest.fixture
def appends() -> HeldAppends:
    return HeldAppends()


@pytest.fixture
async def journal(tmp_path: Path, appends: HeldAppends) -> AsyncIterator[ShareJournal]:
    order: Any = SimpleNamespace(confirmed_position=0, synced_position=0)
    file = SnapshotFile(tmp_path / "shareGroups.json", None, False)
    queues: Any = appends
    made = ShareJournal(queues, order, file, list, lambda: 0)
    yield made
    made.close()


async def test_who_has_no_news_waits_for_the_news_that_left_before(
    journal: ShareJournal, appends: HeldAppends
) -> None:
    told: list[StorageError | None] = []
    journal.news.add(BEGINS, GROUP, 0)
    journal.write()
    await asyncio.sleep(0)
    journal.write(told.append)
    await asyncio.sleep(0)
    assert len(appends.held) == 1
    assert told == [], "the log does not have it yet"
    appends.end()
    assert told == [None]


async def test_who_has_no_news_is_told_that_the_log_refused_the_newest(
    journal: ShareJournal, appends: HeldAppends
) -> None:
    told: list[StorageError | None] = []
    for position in range(2):
        journal.news.add(BEGINS, GROUP, position)
        journal.write()
        await asyncio.sleep(0)
    journal.write(told.append)
    await asyncio.sleep(0)
    appends.end()
    assert told == []
    full = StoreFullError("full", operation="append", path="/store")
    appends.end(full)
    assert told == [full]


async def test_who_waits_for_nothing_is_told_at_once(journal: ShareJournal, appends: HeldAppends) -> None:
    told: list[StorageError | None] = []
    journal.write(told.append)
    await asyncio.sleep(0)
    assert (told, appends.held) == ([None], [])
