"""The settings of consumer groups at the broker: subscriptionGroup.json, pauses, deletion, over real RPC."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_stack import Stack, Start, refused, until
from group_peer import Join, groups

from holdmq.errors import Code, HoldMQError, RemoteError, StoreFormatError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    BROADCAST,
    CLUSTERING,
    GroupJoinRequest,
    GroupListResponse,
    GroupPauseRequest,
    GroupRequest,
    GroupRow,
    GroupUpdateRequest,
)
from holdmq.wire.header import rows


async def test_settings_are_kept_over_a_restart(start: Start, member: Join) -> None:
    broker = await start()
    await member(broker, "one").join()
    header = GroupUpdateRequest(
        "g", retry_max_times=3, delay_levels_ms=[1000, 5000], consume_from_min_enable=False
    )
    reply = await broker.client.call(RequestCode.GROUP_UPDATE, header)
    changed = rows(GroupRow, reply.header(GroupListResponse).groups)[0]
    assert (changed.retry_max_times, changed.delay_levels_ms, changed.mode) == (3, [1000, 5000], CLUSTERING)
    broker = await start()
    kept = (await groups(broker))["g"]
    assert kept == changed._replace(members=0)
    assert kept.retry_queue_nums == 1
    assert broker.server.groups.retry_policy("g") == (1, 3, (1000, 5000))
    assert broker.server.groups.retry_policy("nobody") is None


@pytest.mark.parametrize(
    "setting",
    [{"retry_max_times": -1}, {"retry_queue_nums": 0}, {"delay_levels_ms": [0]}, {"broker_id": 9999}],
)
async def test_settings_that_make_no_sense_are_refused(broker: Stack, setting: dict[str, int]) -> None:
    header = GroupUpdateRequest("g", **setting)  # type: ignore[arg-type]
    assert await refused(broker.client.call(RequestCode.GROUP_UPDATE, header)) == Code.GROUP_INVALID
    assert await groups(broker) == {}


async def test_members_are_told_new_retry_times(broker: Stack, member: Join) -> None:
    one = member(broker, "one")
    assert (await one.join()).retry_max_times == 16
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", retry_max_times=2))
    assert (await one.told()).retry_max_times == 2


async def test_a_disabled_group_neither_joins_nor_pulls(broker: Stack, member: Join) -> None:
    await broker.create("t")
    one = member(broker, "one")
    await one.join()
    await one.lease(0)
    held = asyncio.create_task(one.pull((0, 0), hold_ms=60_000))
    await until(lambda: broker.server.pull.hold.size)
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", consume_enable=False))
    assert await refused(one.pull((0, 0))) == Code.GROUP_DISABLED
    assert await refused(one.join()) == Code.GROUP_DISABLED
    await broker.produce("t", 0, (b"a", None))
    assert not held.done()
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", consume_enable=True))
    assert (await held)[1] == [b"a"]
    await broker.client.call(
        RequestCode.GROUP_UPDATE, GroupUpdateRequest("h", consume_broadcast_enable=False)
    )
    assert await refused(member(broker, "two", "h").join(mode=BROADCAST)) == Code.GROUP_DISABLED
    await member(broker, "two", "h").join()


async def test_a_group_that_may_not_begin_at_the_first_message_begins_at_the_end(
    broker: Stack, member: Join
) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", consume_from_min_enable=False))
    one = member(broker, "one")
    await one.join()
    assert (await one.lease(0))[0].offset == 1


async def test_a_paused_group_keeps_its_place_and_gets_nothing_until_it_is_resumed(
    start: Start, member: Join
) -> None:
    broker = await start()
    await broker.create("t")
    one = member(broker, "one")
    await one.join()
    await one.lease(0)
    held = asyncio.create_task(one.pull((0, 0), hold_ms=60_000))
    await until(lambda: broker.server.pull.hold.size)
    await broker.client.call(RequestCode.GROUP_PAUSE, GroupPauseRequest("g", True))
    assert (await one.told()).is_paused
    await broker.produce("t", 0, (b"a", None))
    pulled, got = await one.pull((0, 0))
    assert (pulled[0].status, pulled[0].next_offset, got) == (Code.OK, 0, [])
    assert broker.server.pull.hold.arrived("t", 0, None) == []
    assert not held.done()
    await broker.client.call(RequestCode.GROUP_PAUSE, GroupPauseRequest("g", False))
    assert (await held)[1] == [b"a"]
    assert not (await one.told()).is_paused
    await broker.client.call(RequestCode.GROUP_PAUSE, GroupPauseRequest("g", True))
    broker = await start()
    assert (await groups(broker))["g"].is_paused


async def test_a_group_with_members_is_not_deleted(broker: Stack, member: Join) -> None:
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    one = member(broker, "one")
    await one.join()
    await one.lease(0)
    await one.report(0, 1)
    delete = GroupRequest("g")
    assert await refused(broker.client.call(RequestCode.GROUP_DELETE, delete)) == Code.GROUP_IN_USE
    await one.leave()
    await broker.client.call(RequestCode.GROUP_DELETE, delete)
    assert await groups(broker) == {}
    assert broker.server.groups.offsets.table.saved == {}
    assert await refused(broker.client.call(RequestCode.GROUP_DELETE, delete)) == Code.GROUP_UNKNOWN
    for code in (RequestCode.GROUP_MEMBERS, RequestCode.GROUP_DELETE):
        assert await refused(broker.client.call(code, GroupRequest("nobody"))) == Code.GROUP_UNKNOWN


async def test_changes_that_wait_for_the_file_are_bounded_and_written_together(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = broker.server.groups.settings
    monkeypatch.setattr(settings._changes, "_changes_max", 5)
    calls = [broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest(f"g{i}")) for i in range(20)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    busy = [a for a in answers if isinstance(a, RemoteError)]
    assert {a.code for a in busy} <= {Code.BUSY}
    assert len(await groups(broker)) == 20 - len(busy)
    assert settings.table.data_version < 20


async def test_a_write_that_fails_changes_nothing_and_says_so(
    broker: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "store" / "config" / "subscriptionGroup.json.tmp"
    file.mkdir()
    with pytest.raises(HoldMQError, match=r"subscriptionGroup\.json"):
        await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    assert await groups(broker) == {}
    assert broker.server.groups.numbers()["group_write_failures_total"] == 1
    file.rmdir()
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    assert list(await groups(broker)) == ["g"]


async def test_a_store_with_records_does_not_start_without_its_groups(start: Start, tmp_path: Path) -> None:
    broker = await start()
    await broker.create("t")
    await broker.produce("t", 0, (b"a", None))
    for name in ("subscriptionGroup.json", "subscriptionGroup.json.bak"):
        (tmp_path / "store" / "config" / name).unlink(missing_ok=True)
    with pytest.raises(StoreFormatError, match=r"subscriptionGroup\.json.*accept-backup"):
        await start()


async def test_a_connection_that_closes_while_its_group_is_written_is_no_member(
    broker: Stack, member: Join
) -> None:
    one = member(broker, "one")
    one.client.start()
    await until(lambda: one.client.connection is not None)
    connection = one.client.connection
    assert connection is not None
    connection.send_one_way(RequestCode.GROUP_JOIN, GroupJoinRequest("g", CLUSTERING, []))
    connection.close()
    await until(lambda: "g" in broker.server.groups.settings.table.groups)
    await until(lambda: broker.server.groups.members.count("g") == 0)
    assert (await one.join()).members == ["one"]
