"""Alarms of a broker: what is measured, what is listed, and who is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from broker_stack import Stack, until
from group_peer import GroupPeer
from receivers import HookServer, MailServer

from broker.alerts.alarms import AlarmWatch
from broker.alerts.core.registry_sight import RegistrySight
from broker.alerts.core.shard_copies import ShardCopies
from broker.alerts.leaderless import LeaderlessWatch
from broker.retry.copies import DeadLetter
from broker.shared_groups.core.queue import QueueKey
from holdmq.config.alarms import AlarmsSection
from holdmq.errors import BusyError
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty
from holdmq.wire.move_headers import TO_DEAD_LETTERS, SendBackRequest, SentBack
from holdmq.wire.statistics_headers import AlarmListResponse, AlarmRow, ChannelRow
from storage.api.store import NO_LOSS, RecordLoss, StoreState


@pytest.fixture
def hook() -> Iterator[HookServer]:
    server = HookServer()
    yield server
    server.close()


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    server = MailServer()
    yield server
    server.close()


class Watched:
    """A broker whose alarms a test looks for; `state` and `full` are what store and shared groups say."""

    def __init__(self, stack: Stack, section: AlarmsSection) -> None:
        self.stack = stack
        self.state = StoreState(True, "")
        self.loss = NO_LOSS
        self.full: list[QueueKey] = []
        self.known: ShardCopies | None = None
        self.watch = AlarmWatch(
            section,
            "broker-0",
            stack.server.backlogs,
            lambda: self.state,
            lambda: self.loss,
            lambda: self.full,
            self,
            RegistrySight(),
        )
        self.watch.start()

    replica = "a"

    @property
    def addresses(self) -> dict[str, str]:
        return {}

    def copies(self) -> ShardCopies | None:
        return self.known

    async def look(self) -> dict[tuple[str, str], AlarmRow]:
        """The alarms after one round."""
        self.watch.look()
        while self.watch._is_measuring:
            await asyncio.sleep(0)
        return {
            tuple(key): alarm.reading  # type: ignore[misc]
            for key, alarm in self.watch.alarms.raised.items()
        }


@pytest.fixture
async def watched(broker: Stack) -> AsyncIterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(**keys: Any) -> Watched:
        made.append(Watched(broker, AlarmsSection(interval_s=3600, **keys)))
        return made[-1]

    yield make
    for one in made:
        one.watch.release_all()
        await asyncio.to_thread(one.watch.close)


async def consumer(stack: Stack, group: str, offset: int) -> GroupPeer:
    """A member of a group that is at an offset of queue 0 of topic t."""
    peer = GroupPeer(stack.server.rpc.port, f"client-{group}", group)
    await peer.join("t")
    await peer.lease(0, topic="t")
    assert await peer.report(0, offset, topic="t", wait_for_disk=True) == []
    return peer


async def test_a_backlog_over_its_rules_threshold_is_told_and_so_is_its_end(
    watched: Callable[..., Watched], hook: HookServer
) -> None:
    it = watched(backlog=["bill* messages=3"], webhook_url=hook.url)
    await it.stack.create("t", 1)
    await it.stack.produce("t", 0, *((b"x", None) for _ in range(5)))
    billing = await consumer(it.stack, "billing", 1)
    other = await consumer(it.stack, "other", 1)
    assert list(await it.look()) == [("backlog_messages", "billing")]
    posted = await asyncio.to_thread(hook.next)
    (alarm,) = posted["alarms"]
    assert (posted["broker"], alarm["state"], alarm["name"], alarm["value"]) == (
        "broker-0",
        "raised",
        "billing",
        4,
    )
    assert "most of t" in alarm["text"]
    assert list(await it.look()) == [("backlog_messages", "billing")]
    assert await billing.report(0, 5, topic="t", wait_for_disk=True) == []
    assert await it.look() == {}
    (over,) = (await asyncio.to_thread(hook.next))["alarms"]
    assert (over["state"], over["value"], over["peak"]) == ("over", 0, 4)
    for peer in (billing, other):
        await peer.client.close()


async def test_a_backlog_comes_by_mail_and_webhook_once_and_its_end_once(
    watched: Callable[..., Watched], hook: HookServer, mail_server: MailServer
) -> None:
    it = watched(
        backlog=["bill* messages=3"],
        webhook_url=hook.url,
        smtp_host="127.0.0.1",
        smtp_port=mail_server.port,
        smtp_security="none",
        mail_from="holdmq@example.org",
        mail_to=["ops@example.org"],
    )
    await it.stack.create("t", 1)
    await it.stack.produce("t", 0, *((b"x", None) for _ in range(5)))
    billing = await consumer(it.stack, "billing", 1)
    for _ in range(3):
        assert list(await it.look()) == [("backlog_messages", "billing")]
    raised = await asyncio.to_thread(mail_server.next)
    assert raised["Subject"] == "[HoldMQ broker-0] raised: backlog messages of billing"
    assert await billing.report(0, 5, topic="t", wait_for_disk=True) == []
    for _ in range(3):
        assert await it.look() == {}
    # What comes next in each place is the end: the backlog came once, however often it was seen.
    assert (await asyncio.to_thread(mail_server.next))["Subject"].startswith("[HoldMQ broker-0] over:")
    told = [(await asyncio.to_thread(hook.next))["alarms"] for _ in range(2)]
    assert [[alarm["state"] for alarm in alarms] for alarms in told] == [["raised"], ["over"]]
    await asyncio.to_thread(it.watch.close)
    assert it.watch.numbers()["alarm_notices_sent_total"] == 4
    ((past, ended_ms),) = it.watch.alarms.over
    assert (past.key.name, past.peak) == ("billing", 4)
    assert ended_ms >= past.since_ms
    await billing.client.close()


async def test_a_backlog_is_raised_by_age(watched: Callable[..., Watched], monkeypatch: Any) -> None:
    it = watched(backlog=["* age_s=60"])
    await it.stack.create("t", 1)
    began_ns = time.time_ns()
    await it.stack.produce("t", 0, (b"x", None))
    peer = await consumer(it.stack, "g", 0)
    assert await it.look() == {}
    later_ns = time.time_ns() + 61 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later_ns)
    found = await it.look()
    assert list(found) == [("backlog_age", "g")]
    assert 61 <= found["backlog_age", "g"].value <= (later_ns - began_ns) / 1e9 + 1
    assert await peer.report(0, 1, topic="t", wait_for_disk=True) == []
    assert await it.look() == {}
    await peer.client.close()


async def test_the_backlogs_of_a_topic_and_of_all_are_told_over_all_groups(
    watched: Callable[..., Watched], hook: HookServer
) -> None:
    it = watched(
        backlog=["nobody messages=1"],
        backlog_topics=["t-quiet messages=100", "t* messages=8"],
        backlog_total="messages=9",
        webhook_url=hook.url,
    )
    await it.stack.create("t", 1)
    await it.stack.produce("t", 0, *((b"x", None) for _ in range(5)))
    first, second = await consumer(it.stack, "first", 1), await consumer(it.stack, "second", 2)
    assert await it.look() == {}, "seven messages of either are no eight, nor nine"
    await it.stack.produce("t", 0, (b"x", None))
    found = await it.look()
    assert {key: reading.value for key, reading in found.items()} == {
        ("topic_backlog_messages", "t"): 9,
        ("total_backlog_messages", "broker-0"): 9,
    }
    told = (await asyncio.to_thread(hook.next))["alarms"]
    assert [(one["kind"], one["name"], one["threshold"]) for one in told] == [
        ("topic_backlog_messages", "t", 8),
        ("total_backlog_messages", "broker-0", 9),
    ]
    assert "most by group first" in told[0]["text"]
    assert "most of t by group first" in told[1]["text"]
    # Within a fifth of the threshold neither is over.
    assert await second.report(0, 3, topic="t", wait_for_disk=True) == []
    assert len(await it.look()) == 2
    assert await second.report(0, 6, topic="t", wait_for_disk=True) == []
    assert await it.look() == {}
    ended = (await asyncio.to_thread(hook.next))["alarms"]
    assert [(one["state"], one["peak"]) for one in ended] == [("over", 9), ("over", 9)]
    for peer in (first, second):
        await peer.client.close()


async def test_the_backlog_of_a_topic_is_raised_by_age(
    watched: Callable[..., Watched], monkeypatch: Any
) -> None:
    it = watched(backlog_topics=["t age_s=60"], backlog_total="age_s=90")
    await it.stack.create("t", 1)
    await it.stack.produce("t", 0, (b"x", None))
    peer = await consumer(it.stack, "g", 0)
    assert await it.look() == {}
    began_ns = time.time_ns()
    for later_s, kinds in ((61, ["topic_backlog_age"]), (91, ["topic_backlog_age", "total_backlog_age"])):
        monkeypatch.setattr(time, "time_ns", lambda later_s=later_s: began_ns + later_s * 10**9)
        assert [kind for kind, _ in await it.look()] == kinds
    await peer.client.close()


async def test_dead_letters_raise_an_alarm(broker: Stack) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"x", None), (b"y", None))
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    places = [SentBack("t", 0, offset, 0, TO_DEAD_LETTERS) for offset in (0, 1)]
    await broker.client.call(RequestCode.SEND_BACK, SendBackRequest("g", places))
    broker.server.alarms.look()
    reply = await broker.client.call(RequestCode.ALARM_LIST, Empty())
    (row,) = rows(AlarmRow, reply.header(AlarmListResponse).alarms)
    assert (row.kind, row.name, row.value, row.threshold, row.is_told) == ("dead_letters", "g", 2, 1, True)
    assert "holdmq dlq read g" in row.text


async def test_dead_letters_below_the_threshold_or_with_none_raise_nothing(
    watched: Callable[..., Watched],
) -> None:
    for threshold, raised in ((0, False), (3, False), (2, True)):
        it = watched(dead_letters=threshold)
        it.watch.dead_letters([DeadLetter("g", "t", 0, 0, 3), DeadLetter("g", "t", 0, 1, 3)])
        assert (("dead_letters", "g") in await it.look()) == raised


async def test_a_log_that_takes_nothing_raises_an_alarm_until_it_does_again(
    watched: Callable[..., Watched],
) -> None:
    it = watched()
    assert await it.look() == {}
    it.state = StoreState(False, "the disk is full: /data")
    found = await it.look()
    assert found["log", "broker-0"].text == "broker broker-0 takes no messages: the disk is full: /data"
    it.state = StoreState(True, "")
    assert await it.look() == {}


async def test_a_full_window_of_a_shared_group_raises_an_alarm(watched: Callable[..., Watched]) -> None:
    it = watched()
    it.full = [QueueKey("workers", "jobs", 3)]
    assert list(await it.look()) == [("shared_window", "workers@jobs/3")]


async def test_a_leader_raises_alarms_for_its_copies(watched: Callable[..., Watched]) -> None:
    it = watched(replica_lag_s=5, copies_missing_s=0)
    all_three = ShardCopies("broker-0", ("a", "b", "c"), frozenset("abc"), {"b": 0.1, "c": 4.9})
    it.known = all_three
    assert await it.look() == {}
    it.known = all_three._replace(in_sync=frozenset("a"), behind_s={"b": 5.5, "c": 0})
    found = await it.look()
    assert found.keys() == {("replica_lag", "b"), ("one_copy_left", "broker-0")}
    assert found["one_copy_left", "broker-0"].text.endswith("start b, c")
    # Who leads no more knows nothing of copies.
    it.known = None
    assert await it.look() == {}


async def test_a_replica_tells_by_itself_that_nobody_leads(hook: HookServer) -> None:
    is_leaderless = False
    section = AlarmsSection(interval_s=0.1, webhook_url=hook.url)
    watch = LeaderlessWatch(section, "broker-0", "b", lambda: is_leaderless)
    watch.start()
    try:
        watch.look()
        assert not watch.alarms.raised
        is_leaderless = True
        posted = await asyncio.to_thread(hook.next)
        (alarm,) = posted["alarms"]
        assert (posted["broker"], alarm["state"]) == ("broker-0/b", "raised")
        assert (alarm["kind"], alarm["name"]) == ("no_leader", "broker-0")
        is_leaderless = False
        (over,) = (await asyncio.to_thread(hook.next))["alarms"]
        assert (over["kind"], over["state"]) == ("no_leader", "over")
    finally:
        watch.stop()
        await asyncio.to_thread(watch.close)


async def test_what_cannot_be_measured_for_a_while_does_not_end_an_alarm(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = watched(backlog=["* messages=1"])
    await it.stack.create("t", 1)
    await it.stack.produce("t", 0, (b"x", None))
    peer = await consumer(it.stack, "g", 0)
    assert list(await it.look()) == [("backlog_messages", "g")]

    def busy(*_: object) -> None:
        raise BusyError("others measure", 1)

    monkeypatch.setattr(it.stack.server.backlogs, "measure", busy)
    assert list(await it.look()) == [("backlog_messages", "g")]
    assert await peer.report(0, 1, topic="t", wait_for_disk=True) == []
    assert list(await it.look()) == [("backlog_messages", "g")]
    monkeypatch.undo()
    assert await it.look() == {}
    await peer.client.close()


async def test_a_measurement_that_takes_long_does_not_hold_other_alarms_up(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = watched(backlog=["* messages=1"])
    await it.stack.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    going: list[Callable[[list[Any]], None]] = []
    monkeypatch.setattr(it.stack.server.backlogs, "measure", lambda _names, done: going.append(done))
    it.state = StoreState(False, "full")
    it.watch.look()
    assert not it.watch.alarms.raised
    it.watch.look()
    assert [key.kind for key in it.watch.alarms.raised] == ["log"]
    assert (len(going), it.watch.numbers()["alarm_rounds_late_total"]) == (1, 1)
    going[0]([])
    it.watch.look()
    assert len(going) == 2
    going[1]([])


async def test_channels_are_listed_and_counted(watched: Callable[..., Watched], hook: HookServer) -> None:
    hook.statuses = [500]
    it = watched(webhook_url=hook.url)
    it.watch.channels[0]._pause_min_s = 0.001
    it.full = [QueueKey("workers", "jobs", 3)]
    await it.look()
    await asyncio.to_thread(hook.next)
    await until(lambda: it.watch.channels[0].sent == 1)
    await asyncio.to_thread(it.watch.close)
    row = it.watch.channels[0].row()
    assert row == ChannelRow("webhook", 1, 1, 0, 0, "")
    numbers = it.watch.numbers()
    assert numbers["alarms"] == numbers["alarm_notices_sent_total"] == 1
    assert numbers["alarm_delivery_failures_total"] == 1


async def test_messages_that_the_servers_lost_are_told_once_until_the_cool_down_is_over(
    watched: Callable[..., Watched], hook: HookServer
) -> None:
    it = watched(webhook_url=hook.url, cooldown_s=60)
    assert await it.look() == {}
    it.loss = RecordLoss(7, 1.0)
    assert [(key, row.value) for key, row in (await it.look()).items()] == [(("lost_records", "broker-0"), 7)]
    (alarm,) = (await asyncio.to_thread(hook.next))["alarms"]
    assert (alarm["state"], alarm["kind"], alarm["value"]) == ("raised", "lost_records", 7)
    assert "lost 7 messages that broker broker-0 had confirmed" in alarm["text"]
    it.loss = RecordLoss(7, 59.0)
    assert len(await it.look()) == 1
    it.loss = RecordLoss(7, 60.0)
    assert await it.look() == {}
    (over,) = (await asyncio.to_thread(hook.next))["alarms"]
    assert (over["state"], over["kind"]) == ("over", "lost_records")


async def test_losses_below_the_threshold_and_with_none_are_no_alarm(watched: Callable[..., Watched]) -> None:
    it, off = watched(lost_records=8), watched(lost_records=0)
    it.loss = off.loss = RecordLoss(7, 1.0)
    assert await it.look() == await off.look() == {}
