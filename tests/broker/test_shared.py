"""Shared groups over a real store and real RPC: members, deliveries, progress over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from broker_stack import Stack
from group_peer import GroupPeer
from shared_peer import Got, SharedPeer

from broker.shared import SharedMode
from holdmq.atomic_file import AtomicFile
from holdmq.errors import Code, HoldMQError, RemoteError, StoreFormatError, StoreFullError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    GroupJoinRequest,
    GroupListResponse,
    GroupMembersResponse,
    GroupPauseRequest,
    GroupRequest,
    GroupRow,
    GroupUpdateRequest,
    MemberRow,
    Subscription,
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
from holdmq.wire.topic_headers import TopicGrowRequest, TopicPauseRequest

Join = Callable[..., Awaitable[SharedPeer]]
Start = Callable[..., Awaitable[Stack]]


@pytest.fixture
async def join() -> AsyncIterator[Join]:
    """Open a member on a connection of its own; all are closed with the test."""
    peers: list[SharedPeer] = []

    async def run(broker: Stack, *topics: str, group: str = "g", **settings: object) -> SharedPeer:
        peer = SharedPeer(f"127.0.0.1:{broker.server.rpc.port}", f"member-{len(peers)}")
        peers.append(peer)
        return await peer.open(group, *(topics or ("t",)), **settings)  # type: ignore[arg-type]

    yield run
    for peer in peers:
        await peer.close()


async def parked(broker: Stack, count: int = 1) -> None:
    while sum(member.parked is not None for member in broker.server.shared.core.members.values()) < count:
        await asyncio.sleep(0.005)


def bodies(messages: list[Got]) -> list[bytes]:
    return [message.body for message in messages]


async def test_what_one_member_has_no_other_gets(broker: Stack, join: Join) -> None:
    await broker.create("t", 2)
    for queue_id in range(2):
        await broker.produce("t", queue_id, *((b"%d-%d" % (queue_id, i), None) for i in range(10)))
    first, second = await join(broker), await join(broker)
    some = await first.pull(12)
    others = await second.pull(100)
    assert len(some) == 12
    assert sorted(bodies(some) + bodies(others)) == sorted(
        b"%d-%d" % (q, i) for q in range(2) for i in range(10)
    )
    assert await first.pull() == await second.pull() == []
    assert await first.ack(*some) == await second.ack(*others) == []
    state = await first.state("g")
    assert {(row.floor, row.in_flight, row.acknowledged) for (t, _), row in state.items() if t == "t"} == {
        (10, 0, 0)
    }


async def test_a_message_comes_again_to_another_member_when_its_time_is_over(
    broker: Stack, join: Join
) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    lazy, eager = await join(broker), await join(broker)
    (kept, lost) = await lazy.pull(invisible_ms=200)
    assert await lazy.extend(kept, invisible_ms=60_000) == []
    (again,) = await eager.pull(hold_ms=10_000)
    assert (again.body, again.attempts) == (b"b", 1)
    assert await lazy.ack(lost) == [SharedRange(lost.receipt, lost.offset, 1)]
    assert await eager.ack(again) == []
    assert await lazy.ack(kept) == []
    assert (await lazy.state("g"))["t", 0].floor == 2


async def test_a_lost_connection_gives_its_messages_to_the_others(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    first, second = await join(broker), await join(broker)
    got = await first.pull()
    await first.ack(got[1])
    waiting = asyncio.create_task(second.pull(hold_ms=10_000))
    await parked(broker)
    await first.close()
    assert [(m.body, m.attempts) for m in await waiting] == [(b"a", 1)]


async def test_a_member_that_leaves_costs_no_attempt(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    first, second = await join(broker), await join(broker)
    await first.pull()
    await first.leave()
    assert [(m.body, m.attempts) for m in await second.pull()] == [(b"a", 0)]
    with pytest.raises(RemoteError, match="not open"):
        await first.pull()


async def test_given_back_it_comes_at_once_or_after_its_delay(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"now", None), (b"later", None))
    member = await join(broker)
    now, later = await member.pull()
    assert await member.nack(now) == []
    assert await member.nack(later, delay_ms=150) == []
    assert [(m.body, m.attempts) for m in await member.pull()] == [(b"now", 1)]
    assert (await member.state("g"))["t", 0].waiting == 1
    assert [(m.body, m.attempts) for m in await member.pull(hold_ms=10_000)] == [(b"later", 1)]


async def test_a_parked_pull_is_woken_by_an_arrival_and_one_member_gets_it(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    members = [await join(broker) for _ in range(3)]
    waiting = [asyncio.create_task(member.pull(hold_ms=10_000)) for member in members]
    await parked(broker, 3)
    for i in range(3):
        await broker.produce("t", 0, (b"%d" % i, None))
    got = [message for task in waiting for message in await task]
    assert sorted(bodies(got)) == [b"0", b"1", b"2"]
    assert {len(task.result()) for task in waiting} == {1}


async def test_a_hold_ends_with_an_empty_answer(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker)
    assert await member.pull(hold_ms=30) == []
    assert not broker.server.shared.core.groups["g"].waiting


async def test_a_closed_connection_takes_its_parked_pull_along(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    first, second = await join(broker), await join(broker)
    waiting = asyncio.create_task(first.pull(hold_ms=10_000))
    await parked(broker)
    await first.close()
    with pytest.raises(HoldMQError):
        await waiting
    while broker.server.shared.core.groups["g"].waiting:
        await asyncio.sleep(0.005)
    await broker.produce("t", 0, (b"a", None))
    assert bodies(await second.pull()) == [b"a"]


async def test_a_member_has_no_more_in_flight_than_its_ready_count(broker: Stack, join: Join) -> None:
    await broker.create("t", 2)
    for queue_id in range(2):
        await broker.produce("t", queue_id, *((b"%d" % i, None) for i in range(5)))
    member = await join(broker, ready_max=4)
    got = await member.pull()
    assert len(got) == 4
    waiting = asyncio.create_task(member.pull(hold_ms=10_000))
    await parked(broker)
    await broker.produce("t", 0, (b"more", None))
    await member.ping()
    assert not waiting.done()
    await member.ack(got[0])
    assert len(await waiting) == 1


async def test_one_pull_at_a_time(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker)
    waiting = asyncio.create_task(member.pull(hold_ms=10_000))
    await parked(broker)
    with pytest.raises(RemoteError, match="one SHARED_PULL"):
        await member.pull()
    await member.leave()
    assert await waiting == []


async def test_what_was_acknowledged_stays_so_over_a_restart(start: Start, join: Join) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(10)))
    member = await join(broker)
    got = await member.pull()
    assert await member.ack(*got[:3], *got[5:7]) == []
    await member.nack(got[9])
    assert [m.attempts for m in await member.pull()] == [1]
    broker = await start()
    member = await join(broker)
    found = {m.body: m.attempts for m in await member.pull()}
    # The two in flight at the broker's end are nobody's failure; what failed before is known.
    assert found == {b"3": 0, b"4": 0, b"7": 0, b"8": 0, b"9": 1}
    assert (await member.state("g"))["t", 0].floor == 3


async def test_a_snapshot_knows_what_the_log_knew(start: Start, join: Join) -> None:
    broker = await start()
    await broker.create("t", 2)
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(20)))
    member = await join(broker)
    got = await member.pull()
    await member.ack(*got[:5], got[10])
    await member.nack(got[6], got[7])
    (again, _) = await member.pull()
    await member.nack(again, delay_ms=60_000)
    journal = broker.server.shared.journal
    while not journal.snapshots:
        journal.save_snapshot()
        await asyncio.sleep(0.02)
    await member.ack(got[19])
    broker = await start()
    assert broker.server.shared.journal._offset > 0
    member = await join(broker)
    found = {m.body: m.attempts for m in await member.pull()}
    assert found == {
        **{b"%d" % i: 0 for i in (5, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18)}, b"6": 2, b"7": 1,
    }  # fmt: skip


async def test_a_group_begins_at_the_end_unless_told_and_never_jumps_later(start: Start, join: Join) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"before", None))
    member = await join(broker, start="latest")
    assert [tuple(row) for row in member.started] == [("t", 0, 1)]
    await broker.produce("t", 0, (b"after", None))
    broker = await start()
    await broker.produce("t", 0, (b"later", None), producer_id=2)
    member = await join(broker, start="latest")
    assert member.started == []
    # One answer is from the disk or from memory.
    assert bodies(await member.pull() + await member.pull()) == [b"after", b"later"]


async def test_queues_that_appear_are_read_from_their_beginning(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker, "t", "unborn", start="latest")
    await broker.client.call(RequestCode.TOPIC_GROW, TopicGrowRequest("t", 3))
    await broker.create("unborn", 2)
    await broker.produce("t", 2, (b"grown", None))
    await broker.produce("unborn", 1, (b"born", None))
    assert sorted(bodies(await member.pull())) == [b"born", b"grown"]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("a/b", [b"a/b"]),
        ("a/b||c", [b"a/b", b"c"]),
        ("a/#", [b"a", b"a/b", b"a/c"]),
        ("+/b", [b"a/b"]),
        ("*", [b"None", b"a", b"a/b", b"a/c", b"c"]),
    ],
)
async def test_a_filter_hands_out_what_it_names_and_passes_the_rest_by(
    broker: Stack, join: Join, tags: str, expected: list[bytes]
) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, *((str(tag).encode(), tag) for tag in (None, "a", "a/b", "a/c", "c")))
    member = await join(broker, tags=tags)
    got = await member.pull()
    assert bodies(got) == expected
    assert await member.ack(*got) == []
    assert await member.pull() == []
    assert (await member.state("g"))["t", 0].floor == 5


async def test_members_with_another_filter_are_refused(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await join(broker, tags="a")
    with pytest.raises(RemoteError, match="filter 'a'") as caught:
        await join(broker, tags="b")
    assert caught.value.code == Code.MODE_CONFLICT


async def test_modes_do_not_mix(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.client.call(
        RequestCode.GROUP_JOIN, GroupJoinRequest("c", "clustering", [Subscription("t", "*")])
    )
    with pytest.raises(RemoteError) as caught:
        await join(broker, group="c")
    assert caught.value.code == Code.MODE_CONFLICT
    await join(broker, group="s")
    with pytest.raises(RemoteError) as caught:
        await broker.client.call(
            RequestCode.GROUP_JOIN, GroupJoinRequest("s", "clustering", [Subscription("t", "*")])
        )
    assert caught.value.code == Code.MODE_CONFLICT


async def test_a_paused_group_gets_nothing_until_it_is_resumed(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker)
    await broker.client.call(RequestCode.GROUP_PAUSE, GroupPauseRequest("g", True))
    waiting = asyncio.create_task(member.pull(hold_ms=10_000))
    await parked(broker)
    await broker.produce("t", 0, (b"a", None))
    await member.ping()
    assert not waiting.done()
    await broker.client.call(RequestCode.GROUP_PAUSE, GroupPauseRequest("g", False))
    assert bodies(await waiting) == [b"a"]


async def test_a_paused_topic_delivers_nothing_until_it_is_resumed(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker)
    await broker.client.call(RequestCode.TOPIC_PAUSE, TopicPauseRequest("t", True))
    waiting = asyncio.create_task(member.pull(hold_ms=10_000))
    await parked(broker)
    await broker.produce("t", 0, (b"a", None))
    await member.ping()
    assert not waiting.done()
    await broker.client.call(RequestCode.TOPIC_PAUSE, TopicPauseRequest("t", False))
    assert bodies(await waiting) == [b"a"]


async def test_a_message_at_its_last_attempt_goes_to_the_dead_letters_once(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", retry_max_times=2))
    await broker.produce("t", 0, (b"poison", None), (b"good", None))
    member = await join(broker)
    seen = []
    while True:
        got = await member.pull(hold_ms=300)
        if not got:
            break
        for message in got:
            if message.body == b"good":
                await member.ack(message)
            else:
                seen.append(message.attempts)
                await member.nack(message)
    assert seen == [0, 1, 2]
    assert broker.store.bounds("%DLQ%g", 0) == (0, 1)
    assert (await member.state("g"))["t", 0].floor == 2
    assert broker.server.shared.numbers()["shared_moved_total"] == 1


async def test_a_long_delay_is_a_retry_that_does_not_hold_the_floor(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    member = await join(broker)
    first, second = await member.pull()
    await member.ack(second)
    await member.nack(first, delay_ms=61_000)
    while (await member.state("g"))["t", 0].floor < 2:
        await asyncio.sleep(0.01)
    assert broker.store.timer.pending == 1


async def test_a_retry_that_is_due_comes_with_the_attempts_that_it_had(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    member = await join(broker)
    await member.ack(*await member.pull())
    moved: asyncio.Queue[object] = asyncio.Queue()
    broker.server.moves.move("g", "t", 0, 0, 3, 0, moved.put_nowait)
    await moved.get()
    (retry,) = await member.pull(hold_ms=10_000)
    assert (retry.topic, retry.body, retry.attempts) == ("%RETRY%g", b"a", 4)
    await member.nack(retry)
    (retry,) = await member.pull(hold_ms=10_000)
    assert retry.attempts == 5


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
        header = SharedPullRequest(member.member_id, 10, 1 << 20, 60_000)
        peer.client.request(RequestCode.SHARED_PULL, header, lambda _reply: None, 90.0)
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
    first = asyncio.create_task(narrow.pull(hold_ms=10_000))
    await parked(broker)
    second = asyncio.create_task(wide.pull(hold_ms=10_000))
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
    shared = SharedMode(broker.store, broker.server.topics.table, tmp_path / "shared.json")
    with pytest.raises(StoreFormatError, match="--accept-backup"):
        await asyncio.to_thread(shared.load)
    shared.close()
    shared = SharedMode(
        broker.store, broker.server.topics.table, tmp_path / "store" / "config" / "shared.json"
    )
    await asyncio.to_thread(shared.load)
    assert shared.floor("g", "t", 0) == 1
    shared.close()


async def test_a_group_ahead_of_its_queue_goes_on_at_the_end(
    start: Start, join: Join, tmp_path: Path
) -> None:
    broker = await start()
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    AtomicFile(tmp_path / "ahead.json").save({"offset": 0, "entries": [["g", "t", 0, 50, [60, 1], []]]}, 1)
    shared = SharedMode(broker.store, broker.server.topics.table, tmp_path / "ahead.json")
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
    held = asyncio.create_task(crowded.pull(hold_ms=10_000))
    with pytest.raises(RemoteError):
        await refused
    await parked(broker)
    waiting = asyncio.create_task(other.pull(hold_ms=10_000))
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
        patch.setattr(groups, "on_handed_over", lambda _: None)
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
