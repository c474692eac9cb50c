"""A snapshot costs a log a bounded part of it, and an idle broker's log stays as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_stack import Stack, Start, until
from shared_peer import Join, bodies

from broker.kernel.snapshot_file import LOG_BYTES_MIN, LOG_PART, SnapshotFile


def test_beside_the_log_every_one_is_worth_it(tmp_path: Path) -> None:
    assert SnapshotFile(tmp_path / "a.json", None, False).is_worth(0)


def test_in_the_log_one_waits_until_the_log_has_grown_by_several_times_its_size(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "a.json", None, True)
    assert file.load() is None
    assert not file.is_worth(LOG_BYTES_MIN - 1)
    assert file.is_worth(LOG_BYTES_MIN)
    file.save({"a": "x" * LOG_BYTES_MIN}, 1)
    size = (tmp_path / "a.json").stat().st_size
    again = SnapshotFile(tmp_path / "a.json", None, True)
    assert again.load() is not None
    for each in (file, again):
        assert not each.is_worth(LOG_PART * size - 1)
        assert each.is_worth(LOG_PART * size)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.produce.producers.TICK_S", 0.01)
    monkeypatch.setattr("broker.produce.producers.SNAPSHOT_INTERVAL_S", 0.0)
    monkeypatch.setattr("broker.kernel.journal.SNAPSHOT_INTERVAL_S", 0.01)
    monkeypatch.setattr("broker.kernel.snapshot_file.LOG_BYTES_MIN", 2_000)


@pytest.mark.usefixtures("_quick")
async def test_snapshots_that_are_in_the_log_end_when_nobody_writes(start: Start, join: Join) -> None:
    broker = await start(is_state_in_log=True)
    await broker.create("t", 1)
    for number in range(40):
        await broker.produce("t", 0, (b"%d" % number * 200, None))
    await until(lambda: broker.server.producers.snapshots)
    member = await join(broker)
    got = await member.pull()
    assert bodies(got)
    await member.ack(*got)
    async with asyncio.timeout(40):
        before = -1
        while before != broker.store.confirmed_position:
            before = broker.store.confirmed_position
            await asyncio.sleep(1)  # longer than a snapshot waits for the disk
    assert broker.server.producers.snapshots < 10


@pytest.mark.usefixtures("_quick")
async def test_a_journals_snapshot_is_taken_for_its_records_or_its_age(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker: Stack = await start(is_state_in_log=True)
    journal = broker.server.shared.journal
    await broker.create("t", 1)
    await broker.produce("t", 0, *[(b"%d" % number, None) for number in range(60)])
    member = await join(broker)
    await member.ack(*(await member.pull(1)))
    await until(lambda: journal.snapshots)  # without one, retention could take what a start needs
    taken = journal.snapshots
    await member.ack(*(await member.pull(1)))
    await asyncio.sleep(0.1)
    assert journal.snapshots == taken
    for _ in range(30):
        await member.ack(*(await member.pull(1)))
    await until(lambda: journal.snapshots > taken)
    taken = journal.snapshots
    await member.ack(*(await member.pull(1)))
    monkeypatch.setattr("broker.kernel.journal.SNAPSHOT_AGE_S", 0.0)
    await until(lambda: journal.snapshots > taken)
