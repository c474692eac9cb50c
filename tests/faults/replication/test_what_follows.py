"""What applications find at the new leader when theirs was killed: all that it had told them.

Everything is prepared before one kill, in the middle of requests that are not answered any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from applications_before import (
    DELAYED,
    LONG_MS,
    Before,
    Settings,
    asking,
    leave_unanswered,
    now_ms,
    prepare,
    produce,
    put,
    send_back,
    settings_at,
)
from cluster_view import listed, messages_of
from group_peer import GroupPeer
from processes import Stack, wait_until
from replica_processes import replica_stack
from shared_peer import Got, SharedPeer
from shared_peer import bodies as bodies_of

from holdmq.client import Consumer, DeadLetters, Message, PullConsumer, Table
from holdmq.client.admin import Admin
from holdmq.client.groups import GroupAdmin
from holdmq.errors import Code, RemoteError
from holdmq.record.origin import Origin

LATE_MAX_MS = 5_000
"""For what waits for a busy machine, too."""


class Applications(NamedTuple):
    """What was there before, and at the leader that is there now, since `leads_ms`."""

    registries: list[str]
    before: Before
    now: Settings
    stack: Stack
    leads_ms: int


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applications]:
    # Copies that stand still are waited for: what nobody has is not refused either.
    overrides = {"broker.hide_grace_s": 0, "replication.lag_ms": 10_000}
    with replica_stack(tmp_path_factory.mktemp("applications"), **overrides) as shard:
        before = asyncio.run(prepare(shard.registries, shard.stacks[shard.leader()]))
        with shard.paused_copies() as leader:
            asyncio.run(leave_unanswered(shard.stacks[leader], before.versions))
            shard.kill(leader)
        stack = shard.stacks[shard.wait_leader(leader)]
        leads_ms = now_ms()
        yield Applications(shard.registries, before, asyncio.run(settings_at(stack)), stack, leads_ms)


async def test_what_was_delayed_comes_once_and_at_its_time_also_if_nobody_led_then(
    after: Applications,
) -> None:
    due_ms = after.before.due_ms
    got: list[Message] = []
    async with PullConsumer(after.registries) as consumer:
        await consumer.assign(["delayed"], "earliest")
        while len(got) < DELAYED:
            got += await consumer.poll(hold_ms=1_000)
        got += await consumer.poll(hold_ms=500)
    assert Counter(message.body for message in got) == Counter(body for body in due_ms if body != b"far")
    while_nobody_led = [m for m in got if m.store_ms >= after.leads_ms - 2_000 > due_ms[m.body]]
    assert len(while_nobody_led) > 5, "some were due while nobody led"
    for message in got:
        due = due_ms[message.body]
        assert due <= message.store_ms <= max(due, after.leads_ms) + LATE_MAX_MS

    def are_released() -> bool:
        return after.stack.metric("broker", "holdmq_store_timer_pending") == 1

    await asyncio.to_thread(wait_until, are_released, "one that is far away waits, and nothing else")


async def test_retries_come_once_with_their_count_and_then_the_dead_letters(after: Applications) -> None:
    async with asking(after.stack) as client:
        # Nobody was told of the last of them.
        for offset, is_known in ((0, True), (1, True), (2, True), (4, False)):
            answer = await send_back(client, offset, 1)
            assert answer.status == Code.OK
            assert answer.due_ms == -1 or not is_known
    got: list[Message] = []

    def handle(message: Message) -> bool:
        got.append(message)
        return message.body != b"fails" or message.reconsume_times == 0

    async with DeadLetters(after.registries) as letters:
        found = {letter.message.body: letter async for letter in letters.read("retrying")}
        assert found[b"dead"].origin == Origin("tasks", 0, 2, 1)
        assert found[b"dead"].resent is None
        by = found[b"resent"].resent
        assert by is not None
        assert by.by == "somebody"
        resent = await letters.resend("retrying", [("broker-0", 0), ("broker-0", 1)])
        assert (resent.resent, resent.repeated, resent.failures) == (1, 1, [])
        async with Consumer(after.registries, "retrying", handle, ["tasks"], start="earliest"):
            async with asyncio.timeout(60):
                while (await letters.groups("retrying"))["retrying"].messages < 3 or len(got) < 10:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
        dead = [letter.message.body async for letter in letters.read("retrying")]
    assert dead == [b"dead", b"resent", b"fails"]
    store_ms = {message.body: message.store_ms for message in got if message.reconsume_times}
    for body, due_ms in after.before.retried_ms.items():
        assert due_ms <= store_ms[body] <= max(due_ms, after.leads_ms) + LATE_MAX_MS
    counts = Counter((message.body, message.reconsume_times) for message in got)
    retried = {(body, 1): 1 for body in (b"fails", b"later", b"air")}
    sent = {(body, 0): 1 for body in (b"fails", b"later", b"air")}
    assert counts == retried | sent | {(b"dead", 0): 2, (b"resent", 0): 2}


async def test_a_shared_group_gives_out_all_but_what_was_acknowledged(after: Applications) -> None:
    member = SharedPeer(f"127.0.0.1:{after.stack.broker_port}")
    try:
        await member.open("workers", "jobs", invisible_ms=1_000)
        got = await member.pull(20, 1_000)
        wanted = sorted({b"%d" % n for n in range(10)} - set(after.before.acknowledged))
        assert sorted(bodies_of(got)) == wanted
        assert {m.attempts > 0 for m in got if m.body == after.before.failed_once} == {True}
        assert await member.pull(20) == []
        # Nobody acknowledges these: they come again when their time is over.
        again: list[Got] = []
        async with asyncio.timeout(40):
            while len(again) < len(wanted):
                again += await member.pull(20, 2_000, invisible_ms=40_000)
        assert sorted(bodies_of(again)) == wanted
        assert await member.ack(*again) == []
        [queue] = [row for row in (await member.state("workers")).values() if row.end_offset]
        assert queue.floor == queue.end_offset
    finally:
        await member.close()


async def test_a_table_has_its_rows_with_their_versions_and_each_change_once(after: Applications) -> None:
    versions = after.before.versions
    async with asking(after.stack) as client, Table("rows", after.registries) as table:
        assert await table.get("counter") == ("counter", b"2", versions["counter"])
        with pytest.raises(RemoteError) as raised:
            await table.put("counter", b"3", if_version=versions["before"])
        assert raised.value.code == Code.ROW_CHANGED
        assert raised.value.ext_fields["version"] == versions["counter"]
        assert await table.put("counter", b"3", if_version=versions["counter"]) > versions["counter"]
        assert await table.get("deleted") is None
        assert await table.put("deleted", b"2", if_version=-1) > versions["deleted"]
        # It was made before, and the row has changed since.
        assert await put(client, "repeated", b"once", "one", again=True) == versions["repeated"]
        entry = await table.get("repeated")
        assert entry is not None
        assert entry.value == b"later"
        # Nobody knows whether this one was made: asking again makes it, or says that it was.
        made = await put(client, "air", b"new", "air", versions["air"], again=True)
        assert await table.get("air") == ("air", b"new", made)
        assert await put(client, "air", b"new", "air", versions["air"], again=True) == made
        assert [entry.key async for entry in table.scan()] == ["air", "counter", "deleted", "repeated"]


async def test_offsets_are_where_they_were_told_to_be_and_leases_are_fenced(after: Applications) -> None:
    async with GroupAdmin(after.registries) as groups:
        for group, offset in (("reported", 15), ("rewound", 4), ("cloned", 4)):
            [progress] = [row for row in await groups.progress(group, ["offsets"]) if row.queue.queue_id == 0]
            assert progress.offset == offset, group
        with pytest.raises(RemoteError) as raised:
            await groups.progress("forgotten", ["offsets"])
        assert raised.value.code == Code.GROUP_UNKNOWN
    member = GroupPeer(after.stack.broker_port, "other", "leased")
    try:
        await member.join("offsets")
        async with asyncio.timeout(40):
            while not (await member.lease(0, topic="offsets"))[0].generation:
                await asyncio.sleep(0.05)
        assert member.generations["offsets", 0] > after.before.generation
        [refused] = await member.report(0, 9, topic="offsets", generation=after.before.generation)
        assert refused.status == Code.GROUP_FENCED
    finally:
        await member.client.close()


async def test_topics_and_groups_are_as_they_were_set(after: Applications) -> None:
    assert after.now == after.before.settings
    assert "removed" not in after.now.topics.keys() | after.now.groups.keys()
    assert after.now.topics["kept"].retention_ms == LONG_MS
    assert after.now.groups["kept"].delay_levels_ms == [7, 8]
    async with asking(after.stack) as client:
        assert (await produce(client, 0, b"x", topic="read-only")).status == Code.TOPIC_PERM
    peer = GroupPeer(after.stack.broker_port, "asks", "paused")
    try:
        assert (await peer.join("kept")).is_paused
    finally:
        await peer.client.close()


async def test_what_was_paused_waits_and_what_was_deleted_is_gone(after: Applications) -> None:
    async with Admin(after.registries) as admin, PullConsumer(after.registries) as consumer:
        await consumer.assign(["paused"], "earliest")
        assert await consumer.poll(hold_ms=500) == []
        await admin.pause_topic("paused", False)
        got: list[Message] = []
        while not got:
            got += await consumer.poll(hold_ms=1_000)
        assert [message.body for message in got] == [b"old"]
        await admin.create_topic("removed", 2)
        await admin.grow_topic("shrunk", 4)
        for topic, left in (("removed", []), ("shrunk", [b"old"] * 2)):
            await listed(after.registries, topic, 2 + len(left))
            assert [m.body for m in await messages_of(after.registries, topic)] == left, topic


async def test_a_producer_s_window_knows_what_is_stored_and_refuses_a_gap(after: Applications) -> None:
    async with asking(after.stack) as client:
        # The first was answered, the second was not: it is stored now, or was.
        assert (await produce(client, 0, b"0", b"1", b"2")).base_offset == 0
        assert (await produce(client, 3, b"3", b"4")).base_offset == 3
        assert (await produce(client, 7, b"7")).status == Code.OUT_OF_SEQUENCE
        assert (await produce(client, 0, b"other", b"1", b"2")).status == Code.OUT_OF_SEQUENCE
        assert (await produce(client, 0, b"0", epoch=0)).status == Code.PRODUCER_FENCED
        assert (await produce(client, 5, b"5")).base_offset == 5
    found = await messages_of(after.registries, "windows")
    assert [message.body for message in found] == [b"%d" % n for n in range(6)]
