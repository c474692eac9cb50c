"""Shared groups over a real store and real RPC: members, deliveries, progress over restarts."""

from __future__ import annotations

import asyncio

import pytest
from broker_stack import Stack, Start, until
from shared_peer import Join, bodies, parked

from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    GroupJoinRequest,
    GroupPauseRequest,
    GroupSubscription,
    GroupUpdateRequest,
)
from holdmq.wire.shared_headers import SharedRange
from holdmq.wire.topic_headers import TopicGrowRequest, TopicPauseRequest


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
    lazy, eager = await join(broker, invisible_ms=100), await join(broker)
    (kept, lost) = await lazy.pull(invisible_ms=600_000)
    assert await lazy.extend(lost, invisible_ms=100) == []
    (again,) = await eager.pull(hold_ms=40_000)
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
    waiting = asyncio.create_task(second.pull(hold_ms=40_000))
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


def let_pass(broker: Stack, seconds: float) -> None:
    """What shared groups wait for comes so much sooner."""
    shared = broker.server.shared
    waiting = shared.core.deadlines
    waiting._heap = [(at - seconds, serial, item) for at, serial, item in waiting._heap]
    shared._set_timer()


async def test_given_back_it_comes_at_once_or_after_its_delay(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"now", None), (b"later", None))
    member = await join(broker)
    now, later = await member.pull()
    assert await member.nack(now) == []
    assert await member.nack(later, delay_ms=50_000) == []
    assert [(m.body, m.attempts) for m in await member.pull()] == [(b"now", 1)]
    assert (await member.state("g"))["t", 0].waiting == 1
    let_pass(broker, 50)
    assert [(m.body, m.attempts) for m in await member.pull(hold_ms=40_000)] == [(b"later", 1)]


async def test_a_parked_pull_is_woken_by_an_arrival_and_one_member_gets_it(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    members = [await join(broker) for _ in range(3)]
    waiting = [asyncio.create_task(member.pull(hold_ms=40_000)) for member in members]
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
    waiting = asyncio.create_task(first.pull(hold_ms=40_000))
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
    waiting = asyncio.create_task(member.pull(hold_ms=40_000))
    await parked(broker)
    await broker.produce("t", 0, (b"more", None))
    await member.ping()
    assert not waiting.done()
    await member.ack(got[0])
    assert len(await waiting) == 1


async def test_one_pull_at_a_time(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker)
    waiting = asyncio.create_task(member.pull(hold_ms=40_000))
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


async def test_what_a_group_has_begun_elsewhere_it_reads_from_its_beginning(
    broker: Stack, join: Join
) -> None:
    for topic in ("begun", "new"):
        await broker.create(topic, 1)
        await broker.produce(topic, 0, (topic.encode(), None))
    member = await join(broker, "begun", "new", start="latest", begun=["begun"])
    assert bodies(await member.pull()) == [b"begun"]
    again = await join(broker, "begun", "new", start="latest", begun=["begun", "new"])
    assert again.started == [], "where it stands is known by now"


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
        RequestCode.GROUP_JOIN, GroupJoinRequest("c", "clustering", [GroupSubscription("t", "*")])
    )
    with pytest.raises(RemoteError) as caught:
        await join(broker, group="c")
    assert caught.value.code == Code.MODE_CONFLICT
    await join(broker, group="s")
    with pytest.raises(RemoteError) as caught:
        await broker.client.call(
            RequestCode.GROUP_JOIN, GroupJoinRequest("s", "clustering", [GroupSubscription("t", "*")])
        )
    assert caught.value.code == Code.MODE_CONFLICT


async def test_a_paused_group_gets_nothing_until_it_is_resumed(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    member = await join(broker)
    await broker.client.call(RequestCode.GROUP_PAUSE, GroupPauseRequest("g", True))
    waiting = asyncio.create_task(member.pull(hold_ms=40_000))
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
    waiting = asyncio.create_task(member.pull(hold_ms=40_000))
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
    seen: list[int] = []
    while len(seen) < 3 or (await member.state("g"))["t", 0].floor < 2:
        for message in await member.pull(hold_ms=20):
            if message.body == b"good":
                await member.ack(message)
            else:
                seen.append(message.attempts)
                await member.nack(message)
    assert await member.pull(hold_ms=100) == []
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
    await until(lambda: broker.store.timer.pending == 1)


async def test_a_retry_that_is_due_comes_with_the_attempts_that_it_had(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    member = await join(broker)
    await member.ack(*await member.pull())
    moved: asyncio.Queue[object] = asyncio.Queue()
    broker.server.moves.move("g", "t", 0, 0, 3, 0, moved.put_nowait)
    await moved.get()
    (retry,) = await member.pull(hold_ms=40_000)
    assert (retry.topic, retry.body, retry.attempts) == ("%RETRY%g", b"a", 4)
    await member.nack(retry)
    (retry,) = await member.pull(hold_ms=40_000)
    assert retry.attempts == 5
