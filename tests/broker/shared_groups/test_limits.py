"""Shared groups at the broker: their limits, restarts, retention and ways to other modes, over real RPC."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_stack import Stack, Start
from group_peer import GroupPeer
from shared_peer import Join, bodies, parked

from broker.kernel.events import Event
from broker.kernel.snapshot_file import SnapshotFile
from broker.shared_groups.core.shared import Shared
from broker.shared_groups.requests import SharedMode
from holdmq.errors import Code, RemoteError, StoreFormatError, StoreFullError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    GroupListResponse,
    GroupMembersResponse,
    GroupRequest,
    GroupRow,
    GroupUpdateRequest,
    MemberRow,
)
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty
from holdmq.wire.offset_headers import (
    OffsetChange,
    OffsetChangeResponse,
    OffsetCloneRequest,
    OffsetGetRequest,
    OffsetGetResponse,
    OffsetResetRequest,
    OffsetRow,
)
from holdmq.wire.shared_headers import SharedAckRequest, SharedPullRequest, SharedRange
from holdmq.wire.topic_headers import TopicGrowRequest


def over(broker: Stack, path: Path) -> SharedMode:
    """Another one over the broker's store, with a snapshot of its own."""
    server = broker.server
    return SharedMode(
        Shared(broker.store.bounds, server.groups.settings.retry_max_times, 0),
        server.groups,
        broker.store,
        broker.store.log_order,
        server.topics.table,
        SnapshotFile(path, None, False),
        server.statistics,
        kept_offset=server.groups.offsets.table.get,
        move=server.moves.move,
        may_hand_out=lambda: True,
        hello_of=server.rpc.connections.get,
        readers=server.readers,
    )


async def test_the_window_bounds_what_is_handed_out_past_the_floor(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    broker.server.shared.core.window = 8
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(20)))
    member = await join(broker)
    got = await member.pull()
    assert bodies(got) == [b"%d" % i for i in range(8)]
    await member.ack(*got[1:])
    assert await member.pull() == []
    assert broker.server.shared.numbers()["shared_windows_full"] == 1
    assert (await member.state("g"))["t", 0].is_full
    await member.ack(got[0])
    assert bodies(await member.pull()) == [b"%d" % i for i in range(8, 16)]


async def test_messages_on_disk_are_read_again_from_there(start: Start, join: Join) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, *((b"%d" % i, "a" if i % 2 else None) for i in range(20)))
    broker = await start()
    member = await join(broker, tags="a")
    got = await member.pull()
    assert bodies(got) == [b"%d" % i for i in range(1, 20, 2)]
    await member.nack(*got)
    again = await member.pull()
    assert bodies(again) == bodies(got)
    assert {m.attempts for m in again} == {1}
    assert broker.server.shared.pulls.cold_reads == 2


async def test_an_answer_is_bounded_but_always_gives_one_message(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, *((bytes(1000), None) for _ in range(10)))
    member = await join(broker)
    assert len(await member.pull(max_bytes=1)) == 1
    assert len(await member.pull(max_bytes=3500)) == 3
    assert len(await member.pull()) == 6


async def test_a_receipt_of_another_member_is_none(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    first, second = await join(broker), await join(broker)
    (got,) = await first.pull()
    assert await second.ack(got) == [SharedRange(got.receipt, 0, 1)]
    assert await second.nack(got) == [SharedRange(got.receipt, 0, 1)]
    request = SharedAckRequest(first.member_id, [SharedRange(got.receipt, 0, 1)])
    with pytest.raises(RemoteError, match="not open"):
        await second.client.call(RequestCode.SHARED_ACK, request)
    assert await first.ack(got) == []
    assert await first.ack(got) == [SharedRange(got.receipt, 0, 1)]


async def test_what_cannot_be_is_refused(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    for settings in ({"ready_max": 0}, {"ready_max": 65_537}, {"invisible_ms": 99}, {"start": "now"}):
        with pytest.raises(RemoteError):
            await join(broker, **settings)
    with pytest.raises(RemoteError, match="system topic"):
        await join(broker, "%SHARED%")
    with pytest.raises(RemoteError):
        await join(broker, tags="a/b#")
    member = await join(broker)
    with pytest.raises(RemoteError, match="at least one"):
        await member.client.call(RequestCode.SHARED_PULL, SharedPullRequest(member.member_id, 0, 1))
    with pytest.raises(RemoteError, match="rows"):
        await member.ack()


async def test_a_temporary_group_goes_with_its_last_member(start: Start, join: Join) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    member = await join(broker, group="g#tmp")
    await member.ack(*await member.pull())
    await member.leave()
    assert "g#tmp" not in broker.server.shared.core.groups
    member = await join(broker, group="g#tmp")
    assert bodies(await member.pull()) == [b"a"]
    assert broker.store.bounds("%SHARED%", 0) == (0, 0)


async def test_while_the_store_refuses_nothing_is_acknowledged_and_nothing_begins(
    broker: Stack, join: Join
) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    member = await join(broker, invisible_ms=60_000)
    first, second = await member.pull()
    full = StoreFullError("no space", operation="write")
    broker.store._watermark_passed(full)
    with pytest.raises(RemoteError) as caught:
        await member.ack(first)
    assert caught.value.code == Code.STORE_FULL
    with pytest.raises(RemoteError) as caught:
        await join(broker, group="other", start="latest")
    assert caught.value.code == Code.STORE_FULL
    broker.store._watermark_passed(None)
    assert await member.ack(first, second) == []
    await broker.produce("t", 0, (b"c", None))
    other = await join(broker, group="other", start="latest")
    # Where it would have begun stands: it was told to nobody else.
    assert bodies(await other.pull()) == [b"c"]


async def test_retention_is_told_what_groups_have_yet_to_do(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    member = await join(broker)
    got = await member.pull()
    await member.ack(got[0])
    needs = {(need.reader, need.topic, need.queue_id): need for need in broker.server.shared.needs()}
    assert needs["group g", "t", 0].offset == 1
    assert needs["group g", "t", 0].seen_ms > 1_700_000_000_000
    await member.leave()
    assert next(iter(broker.server.shared.needs())).seen_ms > 1_700_000_000_000


async def test_what_retention_took_is_passed_by_counted_and_not_waited_for(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    member = await join(broker)
    (_, kept) = await member.pull()
    await member.nack(kept)
    deleted: asyncio.Queue[object] = asyncio.Queue()
    broker.store.delete_queue("t", 0, deleted.put_nowait)
    assert await deleted.get() is None
    await broker.produce("t", 0, (b"c", None))
    assert bodies(await member.pull()) == [b"c"]
    assert broker.server.shared.numbers()["shared_behind_total"] == 2


async def test_ten_thousand_parked_pulls_cost_no_task_and_no_timer_of_their_own(
    broker: Stack, join: Join
) -> None:
    await broker.create("t", 1)
    peer = await join(broker)
    tasks = len(asyncio.all_tasks())
    shared = broker.server.shared
    connection = next(iter(shared._members))
    for number in range(10_000):
        member = shared.core.join("g", connection, 10, 30_000, ("t", "%RETRY%g"))
        shared._members[connection][member.member_id] = member
        header = SharedPullRequest(member.member_id, 10, 1 << 20, 120_000)
        peer.client.request(RequestCode.SHARED_PULL, header, lambda _reply: None, 200.0)
        if number % 500 == 0:
            await asyncio.sleep(0)
    await parked(broker, 10_000)
    assert len(asyncio.all_tasks()) <= tasks
    assert len(shared.core.deadlines) <= 20_000
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(30)))
    assert shared.core.in_flight == 30
    await peer.close()
    while shared.core.members:
        await asyncio.sleep(0.01)
    assert not shared.core.groups["g"].waiting


async def test_a_reset_begins_anew_where_it_says_and_stays_so(start: Start, join: Join) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(6)))
    member = await join(broker)
    got = await member.pull()
    await member.ack(*got[:4])
    await member.nack(got[4], delay_ms=200)
    reset = OffsetResetRequest("g", "t", "offset", 2)
    await broker.client.call(RequestCode.OFFSET_RESET, reset)
    assert await member.ack(got[5]) == [SharedRange(got[5].receipt, 5, 1)]
    again = await member.pull()
    assert [(m.offset, m.attempts) for m in again] == [(2, 0), (3, 0), (4, 0), (5, 0)]
    await member.ack(again[0])
    assert await member.pull(hold_ms=300) == []
    broker = await start()
    member = await join(broker)
    assert [m.offset for m in await member.pull()] == [3, 4, 5]
    assert (await member.state("g"))["t", 0].floor == 3


async def test_a_group_that_consumed_in_another_mode_goes_on_where_it_was(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(6)))
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    await broker.client.call(RequestCode.OFFSET_RESET, OffsetResetRequest("g", "t", "offset", 4))
    member = await join(broker, start="latest")
    assert bodies(await member.pull()) == [b"4", b"5"]


async def test_a_member_gets_nothing_of_topics_that_others_subscribe_to(broker: Stack, join: Join) -> None:
    await broker.create("a", 1)
    await broker.create("b", 1)
    narrow, wide = await join(broker, "a"), await join(broker, "a", "b")
    first = asyncio.create_task(narrow.pull(hold_ms=40_000))
    await parked(broker)
    second = asyncio.create_task(wide.pull(hold_ms=40_000))
    await parked(broker, 2)
    await broker.produce("b", 0, (b"b", None))
    assert bodies(await second) == [b"b"]
    await broker.produce("a", 0, (b"a", None))
    assert bodies(await first) == [b"a"]
    await wide.leave()
    await narrow.leave()
    alone = await join(broker, "a")
    assert bodies(await alone.pull()) == [b"a"]


async def test_a_start_without_its_snapshot_refuses_when_the_log_does_not_have_it_all(
    start: Start, join: Join, tmp_path: Path
) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    member = await join(broker)
    await member.ack(*await member.pull())
    journal = broker.server.shared.journal
    while not journal.snapshots:
        journal.save_snapshot()
        await asyncio.sleep(0.02)
    gone: asyncio.Queue[object] = asyncio.Queue()
    broker.store.delete_queue("%SHARED%", 0, gone.put_nowait)
    assert await gone.get() is None
    shared = over(broker, tmp_path / "shared.json")
    with pytest.raises(StoreFormatError, match="--accept-backup"):
        await asyncio.to_thread(shared.load)
    shared.close()
    shared = over(broker, tmp_path / "store" / "config" / "shared.json")
    await asyncio.to_thread(shared.load)
    assert shared.floor("g", "t", 0) == 1
    shared.close()


async def test_a_group_ahead_of_its_queue_goes_on_at_the_end(
    start: Start, join: Join, tmp_path: Path
) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    SnapshotFile(tmp_path / "ahead.json", None, False).save(
        {"offset": 0, "entries": [["g", "t", 0, 50, [60, 1], []]]}, 1
    )
    shared = over(broker, tmp_path / "ahead.json")
    await asyncio.to_thread(shared.load)
    assert shared.floor("g", "t", 0) == 1
    shared.close()


async def test_what_a_filter_rejected_is_not_looked_at_again_after_a_restart(
    start: Start, join: Join
) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, *((b"no", "other") for _ in range(50)), (b"yes", "want"))
    member = await join(broker, tags="want")
    journal = broker.server.shared.journal
    while not journal.snapshots:
        journal.save_snapshot()
        await asyncio.sleep(0.02)
    (got,) = await member.pull()
    # A delivery is as long as its messages lie apart, whatever lay before them.
    (delivery,) = broker.server.shared.core.deliveries.values()
    assert (delivery.first, delivery.left) == (50, 1)
    while journal.snapshots < 2:
        journal.save_snapshot()
        await asyncio.sleep(0.02)
    broker = await start()
    assert broker.server.shared.floor("g", "t", 0) == 50
    member = await join(broker, tags="want")
    assert [m.offset for m in await member.pull()] == [got.offset]


async def test_a_group_that_is_switched_off_is_refused(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker)
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", consume_enable=False))
    with pytest.raises(RemoteError) as caught:
        await member.pull()
    assert caught.value.code == Code.GROUP_DISABLED
    with pytest.raises(RemoteError):
        await join(broker)
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", consume_enable=True))
    assert await member.pull() == []


async def test_a_member_without_room_does_not_hold_up_the_others(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    crowded, other = await join(broker, ready_max=1), await join(broker)
    (got,) = await crowded.pull()
    broker.store._watermark_passed(StoreFullError("no space", operation="write"))
    refused = asyncio.create_task(crowded.ack(got))
    # Sent while its only message is on its way to be acknowledged, it has room for a moment.
    held = asyncio.create_task(crowded.pull(hold_ms=40_000))
    with pytest.raises(RemoteError):
        await refused
    await parked(broker)
    waiting = asyncio.create_task(other.pull(hold_ms=40_000))
    await parked(broker, 2)
    broker.store._watermark_passed(None)
    await broker.produce("t", 0, (b"b", None))
    assert bodies(await waiting) == [b"b"]
    assert not held.done()
    assert await crowded.ack(got) == []
    await broker.produce("t", 0, (b"c", None))
    assert bodies(await held) == [b"c"]


async def test_a_queue_that_appeared_while_nobody_was_there_is_read_from_its_beginning(
    broker: Stack, join: Join
) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"before", None))
    member = await join(broker, start="latest")
    await member.leave()
    await broker.client.call(RequestCode.TOPIC_GROW, TopicGrowRequest("t", 2))
    await broker.produce("t", 1, (b"grown", None))
    member = await join(broker, start="latest")
    assert bodies(await member.pull()) == [b"grown"]


async def test_who_asks_for_groups_members_and_offsets_is_told_of_shared_ones(
    broker: Stack, join: Join
) -> None:
    await broker.create("t", 2)
    await broker.produce("t", 0, (b"a", None), (b"b", None), (b"c", None))
    member, other = await join(broker, tags="*"), await join(broker)
    got = await member.pull()
    await member.ack(got[0], got[2])

    listed = (await broker.client.call(RequestCode.GROUP_LIST, Empty())).header(GroupListResponse)
    assert [(r.group, r.mode, r.members) for r in rows(GroupRow, listed.groups)] == [("g", "shared", 2)]
    reply = await broker.client.call(RequestCode.GROUP_MEMBERS, GroupRequest("g"))
    found = rows(MemberRow, reply.header(GroupMembersResponse).members)
    assert [(row.client_id, row.mode, row.subscriptions) for row in found] == [
        (name, "shared", [["t", "*"]]) for name in ("member-0", "member-1")
    ]
    assert all(row.joined_ms > 1_700_000_000_000 and row.address for row in found)

    async def offsets(group: str) -> dict[tuple[str, int], tuple[int, int, int]]:
        answer = await broker.client.call(RequestCode.OFFSET_GET, OffsetGetRequest(group))
        listed = rows(OffsetRow, answer.header(OffsetGetResponse).offsets)
        return {(r.topic, r.queue_id): (r.offset, r.end_offset, r.done) for r in listed if r.topic == "t"}

    assert await offsets("g") == {("t", 0): (1, 3, 1), ("t", 1): (0, 0, 0)}
    for peer in (member, other):
        await peer.leave()
    # A reset shows where the group was, and a clone begins there.
    dry = OffsetResetRequest("g", "t", "latest", 0, [0], True)
    answer = (await broker.client.call(RequestCode.OFFSET_RESET, dry)).header(OffsetChangeResponse)
    assert rows(OffsetChange, answer.changes) == [OffsetChange("t", 0, 1, 3)]
    await broker.client.call(RequestCode.OFFSET_CLONE, OffsetCloneRequest("g", "copy", None, False))
    assert await offsets("copy") == {("t", 0): (1, 3, 0), ("t", 1): (0, 0, 0)}
    # Retries stay with the group that failed.
    assert broker.server.groups.offsets.table.topics("copy") == ["t"]


async def test_a_shared_group_that_consumes_in_clustering_goes_on_where_it_was(
    broker: Stack, join: Join, start: Start
) -> None:
    await broker.create("t", 2)
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(5)))
    shared = await join(broker)
    got = await shared.pull()
    await shared.ack(got[0], got[1], got[3])
    peer = GroupPeer(broker, "one")
    with pytest.raises(RemoteError, match="mode shared"):
        await peer.join("t")
    await shared.leave()
    await peer.join("t")
    assert [(row.queue_id, row.offset) for row in await peer.lease(0, 1)] == [(0, 2), (1, 0)]
    assert await peer.report(0, 4, wait_for_disk=True) == []
    assert {row.offset for row in await peer.offsets("t")} == {4, 0}
    assert not broker.server.shared.core.groups
    await peer.client.close()
    # And back again, over a restart.
    broker = await start()
    shared = await join(broker)
    assert bodies(await shared.pull()) == [b"4"]


async def test_a_hand_over_that_a_crash_cut_off_leaves_nothing_of_the_shared_group(
    broker: Stack, join: Join
) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    shared = await join(broker)
    await shared.ack((await shared.pull())[0])
    await shared.leave()
    groups = broker.server.groups
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "handed_over", Event())
        peer = GroupPeer(broker, "one")
        await peer.join("t")
        await peer.lease(0)
        assert await peer.report(0, 2) == []
        await peer.leave()
    await peer.join("t")
    assert [row.offset for row in await peer.lease(0)] == [2]
    assert not broker.server.shared.core.groups
    await peer.client.close()


async def test_a_temporary_shared_group_is_shown_while_it_has_members(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker, group="g#tmp")

    async def listed() -> list[tuple[str, str, int]]:
        answer = await broker.client.call(RequestCode.GROUP_LIST, Empty())
        found = rows(GroupRow, answer.header(GroupListResponse).groups)
        return [(row.group, row.mode, row.members) for row in found]

    assert await listed() == [("g#tmp", "shared", 1)]
    reply = await broker.client.call(RequestCode.GROUP_MEMBERS, GroupRequest("g#tmp"))
    assert len(reply.header(GroupMembersResponse).members) == 1
    await member.leave()
    assert await listed() == []
