"""Offsets over real RPC: reports, what the file has, resets, clones, age, retention's needs."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from broker_stack import Stack, Start, refused
from group_peer import GroupPeer, Join
from tested_engine import state_file

import broker.groups.offset_file
import broker.kernel.offset_times
from holdmq.errors import Code, HoldMQError, StoreFormatError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.offset_headers import (
    TO_EARLIEST,
    TO_LATEST,
    TO_OFFSET,
    TO_TIME,
    OffsetChange,
    OffsetChangeResponse,
    OffsetCloneRequest,
    OffsetReport,
    OffsetReportRequest,
    OffsetResetRequest,
)


@pytest.fixture
async def one(broker: Stack, member: Join) -> GroupPeer:
    """The member of a group that has leased the queues of a topic with ten messages in each of two."""
    return await consumer(broker, member)


async def consumer(broker: Stack, member: Join, group: str = "g") -> GroupPeer:
    if broker.server.topics.table.get("t") is None:
        await broker.create("t")
        for q in range(2):
            await broker.produce("t", q, *((b"%d" % i, None) for i in range(10)))
    made = member(broker, "one", group)
    await made.join()
    await made.lease(0, 1, 2, 3)
    return made


async def reset(broker: Stack, to: str, value: int = 0, **header: Any) -> list[OffsetChange]:
    request = OffsetResetRequest("g", "t", to, value, **header)
    reply = await broker.client.call(RequestCode.OFFSET_RESET, request, 40.0)
    return rows(OffsetChange, reply.header(OffsetChangeResponse).changes)


async def clone(broker: Stack, source: str, target: str, **header: Any) -> list[OffsetChange]:
    request = OffsetCloneRequest(source, target, **header)
    reply = await broker.client.call(RequestCode.OFFSET_CLONE, request, 40.0)
    return rows(OffsetChange, reply.header(OffsetChangeResponse).changes)


def in_file(tmp_path: Path) -> dict[str, Any]:
    text = state_file(tmp_path, "consumerOffset.json")
    table: dict[str, Any] = json.loads(text)["content"]["offsetTable"]
    return table


# Reports


async def test_a_report_raises_the_offset_and_never_lowers_it(one: GroupPeer) -> None:
    assert await one.report(0, 7) == []
    assert await one.report(0, 4) == []
    row = (await one.offsets("t"))[0]
    assert (row.topic, row.queue_id, row.offset, row.first_offset, row.end_offset) == ("t", 0, 7, 0, 10)


async def test_where_a_group_begins_is_said_once(one: GroupPeer) -> None:
    """Members that start at the same time see it at different places: the later would pass messages over."""
    for queue_id, offset in ((0, 0), (0, 10), (1, 10)):
        assert await one.report(queue_id, offset, only_first=True) == []
    assert [row.offset for row in await one.offsets("t")][:2] == [0, 10]


async def test_reports_are_refused_each_with_its_reason(broker: Stack, one: GroupPeer) -> None:
    assert [r.status for r in await one.report(0, 11)] == [Code.OFFSET_AHEAD]
    assert [r.status for r in await one.report(9, 1)] == [Code.QUEUE_UNKNOWN]
    assert [r.status for r in await one.report(0, 1, topic="nowhere")] == [Code.QUEUE_UNKNOWN]
    assert [r.status for r in await one.report(0, 1, generation=1)] == [Code.GROUP_FENCED]
    assert (await one.offsets("t"))[0].offset == -1
    assert broker.server.groups.offsets.numbers()["offset_reports_refused_total"] == 4
    nobody = GroupPeer(broker, "one", "nobody")
    assert await refused(nobody.report(0, 1)) == Code.GROUP_UNKNOWN
    await nobody.client.close()


async def test_an_offset_of_an_older_log_epoch_is_refused(
    broker: Stack, one: GroupPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(broker.store), "epoch", property(lambda _: 2))
    assert [r.status for r in await one.report(0, 5, log_epoch=1)] == [Code.OFFSET_AHEAD]
    assert await one.report(0, 5, log_epoch=2) == []


async def test_a_one_way_report_counts(broker: Stack, one: GroupPeer) -> None:
    connection = one.client.connection
    assert connection is not None
    report = OffsetReport("t", 0, one.generations["t", 0], 3, 0)
    connection.send_one_way(RequestCode.OFFSET_REPORT, OffsetReportRequest("g", [report]))
    assert (await one.offsets("t"))[0].offset == 3


async def test_the_first_report_of_a_queue_is_logged(
    one: GroupPeer, capsys: pytest.CaptureFixture[str]
) -> None:
    await one.report(0, 7)
    await one.report(0, 8)
    assert capsys.readouterr().out.count("first offsets in a topic") == 1


async def test_offsets_are_bounded(broker: Stack, one: GroupPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.server.groups.offsets.table, "_offsets_max", 1)
    assert await one.report(0, 1) == []
    assert [r.status for r in await one.report(1, 1)] == [Code.LIMIT_EXCEEDED]
    assert await refused(reset(broker, TO_LATEST)) == Code.LIMIT_EXCEEDED
    many = OffsetReportRequest("g", [OffsetReport("t", 0, 0, 0, 0)] * 16_385)
    assert await refused(broker.client.call(RequestCode.OFFSET_REPORT, many)) == Code.LIMIT_EXCEEDED


# The file


async def test_offsets_are_saved_at_intervals(start: Start, member: Join, tmp_path: Path) -> None:
    broker = await start(offset_save_interval_s=0.05)
    one = await consumer(broker, member)
    await one.report(0, 7)
    async with asyncio.timeout(40):
        while in_file(tmp_path) != {"t@g": {"0": 7}}:
            await asyncio.sleep(0.02)


async def test_who_waits_for_the_disk_is_answered_when_the_file_has_it(
    start: Start, member: Join, tmp_path: Path
) -> None:
    broker = await start(offset_save_interval_s=3600)
    one = await consumer(broker, member)
    await one.report(0, 5)
    assert in_file(tmp_path) == {}
    assert (await one.offsets("t", read_type="store"))[0].offset == -1
    assert (await one.offsets("t", read_type="memory"))[0].offset == 5
    await one.report(1, 6, wait_for_disk=True)
    assert in_file(tmp_path) == {"t@g": {"0": 5, "1": 6}}
    await one.report(0, 9)
    assert (await one.offsets("t", read_type="store"))[0].offset == 5
    assert (await one.offsets("t"))[0].offset == 9


async def test_with_sync_commit_every_answered_report_is_on_disk(
    start: Start, member: Join, tmp_path: Path
) -> None:
    broker = await start(offset_save_interval_s=3600, offset_commit="sync")
    one = await consumer(broker, member)
    saves = broker.server.groups.offset_file.saves
    await asyncio.gather(*(one.report(q, offset) for q in (0, 1) for offset in range(1, 11)))
    assert in_file(tmp_path) == {"t@g": {"0": 10, "1": 10}}
    assert broker.server.groups.offset_file.saves - saves < 20


async def test_offsets_survive_a_restart(start: Start, member: Join) -> None:
    one = await consumer(await start(), member)
    await one.report(0, 7)
    broker = await start()
    again = member(broker, "one")
    await again.join()
    assert [row.offset for row in await again.lease(0, 1)] == [7, -1]


async def test_no_offset_is_saved_before_the_log_up_to_it_is_on_disk(
    broker: Stack, one: GroupPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, looks = 0, 0

    def look(_: object) -> int:
        nonlocal looks
        looks += 1
        return synced

    monkeypatch.setattr(type(broker.store), "synced_position", property(look))
    waiting = asyncio.create_task(one.report(0, 7, wait_for_disk=True))
    while looks < 5:
        await asyncio.sleep(0.01)
    assert not waiting.done()
    assert in_file(tmp_path) == {}
    synced = broker.store.confirmed_position
    assert await waiting == []
    assert in_file(tmp_path) == {"t@g": {"0": 7}}


async def test_a_log_that_never_gets_on_disk_is_told_to_who_waits(
    broker: Stack, one: GroupPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(broker_file(), "SYNC_WAIT_S", 0.05)
        broken.setattr(type(broker.store), "synced_position", property(lambda _: 0))
        with pytest.raises(HoldMQError, match="the log is not on disk up to"):
            await one.report(0, 7, wait_for_disk=True)
        assert in_file(tmp_path) == {}
    assert await one.report(0, 7, wait_for_disk=True) == []


async def test_a_write_that_fails_is_told_counted_and_tried_again(
    start: Start, member: Join, tmp_path: Path
) -> None:
    broker = await start(offset_save_interval_s=3600)
    one = await consumer(broker, member)
    blocker = tmp_path / "store" / "config" / "consumerOffset.json.tmp"
    blocker.mkdir()
    with pytest.raises(HoldMQError, match=r"consumerOffset\.json"):
        await one.report(0, 7, wait_for_disk=True)
    assert broker.server.groups.offsets.numbers()["offset_save_failures_total"] == 1
    blocker.rmdir()
    assert await one.report(0, 7, wait_for_disk=True) == []
    assert in_file(tmp_path) == {"t@g": {"0": 7}}


async def test_those_who_wait_for_the_file_are_bounded(
    broker: Stack, one: GroupPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.server.groups.offset_file, "_waiters_max", 2)
    calls = [one.report(0, offset, wait_for_disk=True) for offset in range(1, 11)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    codes = [a.code for a in answers if isinstance(a, HoldMQError)]
    assert codes
    assert set(codes) == {Code.BUSY}


async def test_a_store_with_records_does_not_start_without_its_offsets(
    start: Start, member: Join, tmp_path: Path
) -> None:
    one = await consumer(await start(), member)
    await one.report(0, 7, wait_for_disk=True)
    path = tmp_path / "store" / "config" / "consumerOffset.json"
    # The file is gone when the next start looks for it: taken away after the last one's end.
    broker = await start()
    path.unlink()
    path.with_name(path.name + ".bak").unlink()
    with pytest.raises(StoreFormatError, match=r"consumerOffset\.json.*accept-backup"):
        await start()
    assert broker.server.groups.offsets.table.size == 1


async def test_offsets_outside_of_their_queues_are_moved_inside_at_the_start_and_told(
    start: Start, member: Join, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = await start()
    one = await consumer(broker, member)
    await one.report(0, 7)
    broker.server.groups.offsets.table.reset("g", "t", 1, 99)
    broker = await start()
    assert broker.server.groups.offsets.table.get("g", "t", 1) == 10
    assert broker.server.groups.offsets.table.get("g", "t", 0) == 7
    assert broker.server.groups.offsets.numbers()["offsets_moved_at_start_total"] == 1
    assert "outside of its queue" in capsys.readouterr().out


# Questions


async def test_a_groups_progress_is_told_with_the_age_of_its_backlog(
    start: Start, member: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_ms = time.time_ns() // 1_000_000
    broker = await start()
    one = await consumer(broker, member)
    await one.report(0, 4)
    await one.report(1, 10)
    found = await one.offsets()
    assert [(r.queue_id, r.offset, r.end_offset) for r in found] == [
        (0, 4, 10),
        (1, 10, 10),
        (2, -1, 0),
        (3, -1, 0),
    ]
    assert began_ms - 60_000 < found[0].oldest_ms <= time.time_ns() // 1_000_000
    assert [r.oldest_ms for r in found[1:]] == [0, 0, 0]
    # The same from disk, in several turns.
    monkeypatch.setattr(broker_times(), "LOOKS_PER_TURN", 1)
    broker = await start()
    again = member(broker, "one")
    await again.join()
    broker.server.groups.offsets.table.report("g", "t", 1, 3)
    broker.server.groups.offsets.table.reset("g", "t", 1, 3)
    cold = await again.offsets("t")
    assert cold[0] == found[0]
    assert cold[1].oldest_ms == cold[0].oldest_ms or cold[1].oldest_ms > 0


async def test_questions_that_make_no_sense_are_refused(broker: Stack, one: GroupPeer) -> None:
    assert await refused(one.offsets("t", read_type="tape")) == Code.MISSING_FIELD
    assert await refused(reset(broker, "tomorrow")) == Code.MISSING_FIELD
    assert await refused(reset(broker, TO_LATEST, queue_ids=[7])) == Code.QUEUE_UNKNOWN
    assert await one.offsets("nowhere") == []


async def test_an_offset_that_retention_passed_moves_to_the_first_and_is_counted(
    broker: Stack, one: GroupPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.report(0, 2)
    monkeypatch.setattr(broker.store, "bounds", lambda _topic, _queue: (6, 10))
    assert (await one.renew(0))[0].offset == 6
    numbers = broker.server.groups.offsets.numbers()
    assert (numbers["offsets_behind_total"], numbers["offsets_behind_messages_total"]) == (1, 4)
    assert (await one.offsets("t"))[0].offset == 6


# Resets


@pytest.mark.parametrize(
    ("to", "value", "after"),
    [(TO_EARLIEST, 0, 0), (TO_LATEST, 0, 10), (TO_OFFSET, 4, 4), (TO_OFFSET, 99, 10), (TO_OFFSET, -1, 0)],
)
async def test_a_reset_moves_a_group_and_is_on_disk(
    broker: Stack, one: GroupPeer, tmp_path: Path, to: str, value: int, after: int
) -> None:
    await one.report(0, 7)
    assert await reset(broker, to, value, dry_run=True) == await reset(broker, to, value, dry_run=True)
    changes = await reset(broker, to, value, queue_ids=[0])
    assert changes == [OffsetChange("t", 0, 7, after)]
    assert in_file(tmp_path) == {"t@g": {"0": after}}


async def test_a_dry_run_changes_nothing(broker: Stack, one: GroupPeer) -> None:
    await one.report(0, 7)
    changes = await reset(broker, TO_EARLIEST, dry_run=True)
    assert [(c.before, c.after) for c in changes] == [(7, 0), (-1, 0), (-1, 0), (-1, 0)]
    assert (await one.renew(0))[0].offset == 7


async def test_a_reset_to_a_time_finds_the_first_message_of_it(broker: Stack, one: GroupPeer) -> None:
    await asyncio.sleep(0.02)
    at_ms = time.time_ns() // 1_000_000
    await broker.produce("t", 0, (b"later", None))
    changes = await reset(broker, TO_TIME, at_ms)
    assert [c.after for c in changes] == [10, 10, 0, 0]
    assert [c.after for c in await reset(broker, TO_TIME, 0)] == [0, 0, 0, 0]


async def test_nothing_of_before_a_reset_can_be_reported_after_it(broker: Stack, one: GroupPeer) -> None:
    await one.report(0, 7)
    waiting = asyncio.create_task(one.pull((0, 10), hold_ms=60_000))
    while not broker.server.pull.hold.size:
        await asyncio.sleep(0.01)
    await reset(broker, TO_OFFSET, 3)
    assert (await waiting)[0][0].status == Code.GROUP_FENCED
    assert (await one.told()).freed
    assert [r.status for r in await one.report(0, 8)] == [Code.GROUP_FENCED]
    assert [row.status for row in await one.renew(0)] == [Code.GROUP_FENCED]
    assert (await one.lease(0))[0].offset == 3
    assert await one.report(0, 4) == []


async def test_a_group_that_may_not_begin_at_the_first_message_is_not_reset_to_it(
    broker: Stack, one: GroupPeer
) -> None:
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", consume_from_min_enable=False))
    assert await refused(reset(broker, TO_EARLIEST)) == Code.GROUP_DISABLED
    assert [c.after for c in await reset(broker, TO_OFFSET, 1, queue_ids=[0])] == [1]


async def test_a_group_that_has_not_begun_can_be_given_its_start(start: Start, member: Join) -> None:
    broker = await start()
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    assert await refused(reset(broker, TO_EARLIEST)) == Code.GROUP_UNKNOWN
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    await reset(broker, TO_EARLIEST)
    one = member(broker, "one")
    await one.join()
    assert (await one.lease(0))[0].offset == 0


async def test_offsets_are_cloned_to_a_group_without_members(
    broker: Stack, one: GroupPeer, member: Join, tmp_path: Path
) -> None:
    await one.report(0, 7)
    await one.report(1, 3)
    assert await refused(clone(broker, "nobody", "h")) == Code.GROUP_UNKNOWN
    assert await refused(clone(broker, "h", "g")) == Code.GROUP_UNKNOWN
    assert await refused(clone(broker, "g", "%h")) == Code.GROUP_INVALID
    assert await clone(broker, "g", "h", dry_run=True) == [
        OffsetChange("t", 0, -1, 7),
        OffsetChange("t", 1, -1, 3),
    ]
    assert "h" not in broker.server.groups.settings.table.groups
    # Retries stay with the group that failed: another would never pass its offset in them.
    broker.server.groups.offsets.table.reset("g", "%RETRY%g", 0, 5)
    await clone(broker, "g", "h")
    assert in_file(tmp_path)["t@h"] == {"0": 7, "1": 3}
    assert "%RETRY%g@h" not in in_file(tmp_path)
    assert await clone(broker, "g", "h", topics=["u"]) == []
    other = member(broker, "two", "h")
    await other.join()
    assert [row.offset for row in await other.lease(0, 1)] == [7, 3]
    assert await refused(clone(broker, "g", "h")) == Code.GROUP_IN_USE
    assert await refused(clone(broker, "g", "g")) == Code.GROUP_IN_USE


# Retention


async def test_retention_is_told_what_groups_need_as_it_was_saved(start: Start, member: Join) -> None:
    broker = await start(offset_save_interval_s=0.05)
    file = broker.server.groups.offset_file
    one = await consumer(broker, member)
    assert list(file.needs()) == []
    await one.report(0, 7)
    before_ms = time.time_ns() // 1_000_000
    async with asyncio.timeout(40):
        while [(n.reader, n.topic, n.queue_id, n.offset) for n in file.needs()] != [("group g", "t", 0, 7)]:
            await asyncio.sleep(0.02)
    async with asyncio.timeout(40):
        while next(iter(file.needs())).seen_ms < before_ms:
            await asyncio.sleep(0.02)
    await one.leave()
    for _ in range(2):
        needed = file._needed
        async with asyncio.timeout(40):
            while file._needed is needed:
                await asyncio.sleep(0.01)
    left = next(iter(file.needs())).seen_ms
    # Who is gone is as old as he is, over a restart too.
    broker = await start(offset_save_interval_s=0.05)
    need = next(iter(broker.server.groups.offset_file.needs()))
    assert (need.offset, need.seen_ms) == (7, left)


def broker_file() -> Any:
    return broker.groups.offset_file


def broker_times() -> Any:
    return broker.kernel.offset_times
