"""What a broker counts: on its own, and over RPC."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest
from broker_stack import Stack, make_record
from group_peer import GroupPeer
from shared_peer import Join

from broker.alerts import backlog as backlogs
from broker.alerts.statistics_calls import ROWS_MAX
from broker.kernel.core.windows import (
    BYTES_OUT,
    BYTES_REPLAYED,
    COLUMNS,
    GIVEN_BACK,
    LASTING,
    MESSAGES_OUT,
    MESSAGES_REPLAYED,
    REQUEUED,
    TIMED_OUT,
    TRAFFIC,
)
from broker.kernel.statistics import NO_QUEUE, Statistics, TrafficSource
from holdmq.errors import Code, RemoteError
from holdmq.rpc.connection import Connection
from holdmq.wire.codes import RequestCode
from holdmq.wire.column_headers import ColumnQueue, PullColumnsRequest
from holdmq.wire.group_headers import GroupRequest, GroupSubscription, GroupUpdateRequest
from holdmq.wire.header import rows
from holdmq.wire.headers import PullQueue, PullRequest, TopicListRequest, TopicListResponse, TopicStats
from holdmq.wire.move_headers import SendBackRequest, SentBack
from holdmq.wire.offset_headers import TO_OFFSET, OffsetResetRequest
from holdmq.wire.shared_headers import (
    SharedAckRequest,
    SharedCloseRequest,
    SharedDelivery,
    SharedOpenRequest,
    SharedOpenResponse,
    SharedPullRequest,
    SharedPullResponse,
    SharedRange,
)
from holdmq.wire.statistics_headers import (
    BacklogRequest,
    BacklogResponse,
    BacklogRow,
    CountsRow,
    GroupTopicRow,
    StatisticsRequest,
    StatisticsResponse,
)
from holdmq.wire.topic_headers import TopicDeleteRequest

BACK = (REQUEUED, TIMED_OUT, GIVEN_BACK)


def tick(statistics: Statistics, now: float, step: int = 1) -> None:
    statistics.tick(now)
    while statistics.settle(step):
        pass


def put(statistics: Statistics, topic: str, queue_id: int, messages: int) -> None:
    counts = statistics.of(topic, queue_id)
    counts.messages_in += messages
    counts.bytes_in += 10 * messages


def test_queues_count_in_their_topic_and_in_the_broker() -> None:
    statistics = Statistics()
    put(statistics, "t", 0, 1)
    put(statistics, "t", 1, 2)
    put(statistics, "u", NO_QUEUE, 4)
    assert statistics.topic_totals(["t", "x"]) == {"t": [3, 30, *[0] * (COLUMNS - 2)], "x": [0] * COLUMNS}
    tick(statistics, 1.0)
    put(statistics, "t", 0, 8)
    tick(statistics, 2.0)
    assert statistics.queues.recent(("t", 0)).minute[:2] == [9, 90]
    assert statistics.topics.recent("t").second[:2] == [8, 80]
    assert statistics.topics.recent("t").day[:4] == [11, 110, 0, 0]
    assert statistics.topics.recent("u").hour[0] == 4
    assert statistics.broker.recent("").total[:2] == [15, 150]
    assert ("u", NO_QUEUE) not in statistics.queues


def test_queues_without_a_place_count_in_their_topic_only() -> None:
    statistics = Statistics(queues_max=2)
    for queue_id in range(3):
        put(statistics, "t", queue_id, 1)
    tick(statistics, 1.0)
    assert statistics.topics.recent("t").total[0] == 3
    assert sorted(statistics.queues.recent(("t", q)).total[0] for q in range(3)) == [0, 1, 1]
    assert statistics.numbers()["statistics_unnamed_total"] == 1


def test_what_is_not_settled_yet_is_in_the_totals_and_is_not_lost_by_the_next_tick() -> None:
    statistics = Statistics()
    for second in (1.0, 2.0):
        for queue_id in range(3):
            put(statistics, "t", queue_id, 1)
        statistics.of_group("g", "t").messages_out += 1
        statistics.tick(second)
        assert statistics.settle(1)
        assert statistics.topic_totals(["t"])["t"][0] == 3 * second
    assert statistics.topics.recent("t").total[0] == 4
    tick(statistics, 3.0)
    assert statistics.topics.recent("t").minute[0] == 6
    assert statistics.broker.recent("").total[0] == 6
    assert statistics.groups.recent("g").day[2] == 2


def test_temporary_groups_count_together() -> None:
    statistics = Statistics()
    for name in ("a#tmp", "b#tmp"):
        statistics.of_group(name, "t").messages_out += 1
    tick(statistics, 1.0)
    assert len(statistics.groups) == 1
    assert statistics.groups.recent("#tmp").total[2] == 2


def test_what_is_gone_leaves_no_counts() -> None:
    statistics = Statistics()
    for _ in range(2):
        put(statistics, "t", 0, 1)
        put(statistics, "t", NO_QUEUE, 1)
        statistics.of_group("g", "t").messages_out += 1
        tick(statistics, 1.0)
        put(statistics, "t", 0, 1)
        statistics.of_group("g", "t").messages_out += 1
        statistics.forget_topic("t", 4)
        statistics.forget_group("g")
        tick(statistics, 2.0)
        assert statistics.topic_totals(["t"])["t"][0] == 0
        numbers = statistics.numbers()
        assert [numbers[f"statistics_{what}"] for what in ("topics", "queues", "groups")] == [0, 0, 0]


# Over RPC


async def statistics_of(stack: Stack, **wanted: Any) -> StatisticsResponse:
    """The answer after a tick a second later."""
    statistics = stack.server.statistics
    tick(statistics, statistics.broker._ticked_at + 1.0)
    reply = await stack.client.call(RequestCode.STATISTICS, StatisticsRequest(**wanted))
    return reply.header(StatisticsResponse)


async def backlog_of(stack: Stack, *groups: str, rows_max: int = 100) -> list[BacklogRow]:
    reply = await stack.client.call(RequestCode.BACKLOG, BacklogRequest(list(groups) or None, rows_max))
    return rows(BacklogRow, reply.header(BacklogResponse).backlog)


async def group_with(stack: Stack, group: str, topic: str, offsets: dict[int, int]) -> GroupPeer:
    """A member of a group that has consumed a topic up to these offsets."""
    peer = GroupPeer(stack.server.rpc.port, f"client-{group}", group)
    await peer.join(topic)
    await peer.lease(*offsets, topic=topic)
    for queue_id, offset in offsets.items():
        assert await peer.report(queue_id, offset, topic=topic, wait_for_disk=True) == []
    return peer


async def test_a_batch_counts_in_its_topic_queue_and_broker_with_its_latency(broker: Stack) -> None:
    await broker.create("t", 2)
    await broker.produce("t", 1, (b"a", None), (b"b", "x"))
    await broker.pull(PullQueue("t", 1, 0, 0))
    await broker.pull(PullQueue("t", 1, 0, 2))
    size = len(make_record("t", 1, b"a")) + len(make_record("t", 1, b"b", "x"))
    answer = await statistics_of(broker, queues=True)
    (topic,) = rows(CountsRow, answer.topics)
    assert (topic.name, topic.queue_id) == ("t", -1)
    assert topic.total[:TRAFFIC] == [2, size, 2, size]
    assert topic.hour == topic.day == [topic.total[column] for column in LASTING]
    assert topic.total == topic.second == topic.minute
    puts, put_us, gets, get_us = topic.total[TRAFFIC : TRAFFIC + 4]
    assert (puts, gets) == (1, 1)
    assert put_us > 0
    assert get_us >= 0
    empty, full = rows(CountsRow, answer.queues)
    assert (empty.queue_id, empty.day) == (0, [0] * len(LASTING))
    assert (full.queue_id, full.day) == (1, topic.day)
    assert rows(CountsRow, answer.broker)[0].total == topic.total
    assert answer.covered_ms[0] == 1000
    assert len(answer.covered_ms) == 4


async def test_what_spark_and_replays_read_is_counted_apart_from_what_consumers_pull(broker: Stack) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(3)))
    await broker.pull(PullQueue("t", 0, 0, 2))
    again = PullRequest([PullQueue("t", 0, 0, 0)], 1 << 20, is_replay=True)
    await broker.client.call(RequestCode.PULL, again)
    columns = PullColumnsRequest([ColumnQueue("t", 0, 0, 0, 3)], ["body"], 1 << 20)
    await broker.client.call(RequestCode.PULL_COLUMNS, columns)
    answer = await statistics_of(broker, sources=True)
    (topic,) = rows(CountsRow, answer.topics)
    (client,) = rows(CountsRow, answer.clients)
    for counted in (topic, client):
        assert (counted.total[MESSAGES_OUT], counted.total[MESSAGES_REPLAYED]) == (1, 6)
        assert counted.total[BYTES_REPLAYED] == counted.total[BYTES_OUT] * 6 == counted.day[5]
    assert (client.name, client.total[0], answer.users) == ("test", 3, [])
    listed = await broker.client.call(RequestCode.TOPIC_LIST, TopicListRequest(False, ["t"]))
    (stats,) = rows(TopicStats, listed.header(TopicListResponse).stats)
    assert (stats.messages_out, stats.messages_replayed) == (1, 6)
    numbers = broker.server.numbers()
    assert (numbers["messages_out_total"], numbers["messages_replayed_total"]) == (1, 6)


async def test_what_comes_back_from_consumers_is_counted_by_group_and_topic(
    broker: Stack, join: Join
) -> None:
    await broker.create("t", 1)
    await broker.create("u", 1)
    member = await join(broker, "t", "u")
    await broker.produce("t", 0, *((b"%d" % i, None) for i in range(4)))
    got = await member.pull(invisible_ms=100)
    await member.nack(got[0], delay_ms=0)
    await member.nack(got[1], delay_ms=20_000)
    # The other two are late.
    while broker.server.shared.core.counts.expired < 2:
        await asyncio.sleep(0.01)
    peer = await group_with(broker, "g2", "u", {0: 0})
    await broker.produce("u", 0, (b"x", None))
    back = SendBackRequest("g2", [SentBack("u", 0, broker.store.bounds("u", 0)[1] - 1, 0, 0)])
    await broker.client.call(RequestCode.SEND_BACK, back)
    answer = await statistics_of(broker, group_topics=True)
    found = {(row.group, row.topic): row.total for row in rows(GroupTopicRow, answer.group_topics)}
    assert found["g", "t"][MESSAGES_OUT] >= 4
    assert [found["g", "t"][column] for column in BACK] == [4, 2, 2]
    assert [found["g2", "u"][column] for column in BACK] == [1, 0, 1]
    (total,) = rows(CountsRow, answer.broker)
    assert [total.total[column] for column in BACK] == [5, 2, 3]
    assert total.total[MESSAGES_OUT] == found["g", "t"][MESSAGES_OUT]
    numbers = broker.server.numbers()
    assert (numbers["messages_requeued_total"], numbers["messages_timed_out_total"]) == (5, 2)
    await broker.client.call(RequestCode.TOPIC_DELETE, TopicDeleteRequest("t", True))
    answer = await statistics_of(broker, group_topics=True)
    assert [row.topic for row in rows(GroupTopicRow, answer.group_topics)] == ["u"]
    await peer.client.close()


async def test_a_message_that_is_given_up_is_not_requeued(broker: Stack, join: Join) -> None:
    await broker.create("t", 1)
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g", retry_max_times=0))
    member = await join(broker)
    await broker.produce("t", 0, (b"x", None))
    (got,) = await member.pull()
    await member.nack(got, delay_ms=0)
    answer = await statistics_of(broker, group_topics=True)
    (row,) = rows(GroupTopicRow, answer.group_topics)
    assert [row.total[column] for column in BACK] == [0, 0, 1]


def test_sources_count_by_client_and_by_access_key_and_those_past_the_bound_together() -> None:
    sources = iter([TrafficSource("a", "key"), TrafficSource("b", "key"), TrafficSource("c", "")])
    statistics = Statistics(source_of=lambda _: next(sources))
    statistics.clients.rows_max = 2
    for _ in range(3):
        statistics.of_connection(cast("Connection", None)).messages_in += 5
    tick(statistics, 1.0, 10)
    assert sum(statistics.clients.recent(name).total[0] for name in "abc") == 10
    assert statistics.users.recent("key").total[0] == 10
    assert statistics.numbers()["statistics_unnamed_total"] == 1


async def test_the_list_of_topics_counts_up_to_this_moment(broker: Stack) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    await statistics_of(broker)
    await broker.produce("t", 0, (b"b", None))
    reply = await broker.client.call(RequestCode.TOPIC_LIST, TopicListRequest(False))
    (row,) = rows(TopicStats, reply.header(TopicListResponse).stats)
    assert (row.messages_in, row.messages_stored) == (2, 2)


async def test_a_groups_pulls_count_for_it(broker: Stack) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None), (b"b", None))
    peer = GroupPeer(broker.server.rpc.port, "one", "g")
    await peer.join("t")
    leased = await peer.lease(0, topic="t")
    pull = PullRequest([PullQueue("t", 0, 0, 0)], 1 << 20, 0, None, "g", [leased[0].generation])
    await peer.client.call(RequestCode.PULL, pull)
    (group,) = rows(CountsRow, (await statistics_of(broker)).groups)
    assert group.name == "g"
    assert group.total[2] == 2
    assert group.total[3] > 0
    await peer.client.close()


async def test_a_shared_groups_pulls_count_for_it_and_its_topic(broker: Stack) -> None:
    await broker.create("t", 1)
    member_id, _ = await shared_member(broker, "s", 3)
    answer = await statistics_of(broker, groups=["s", "unknown"])
    known, unknown = rows(CountsRow, answer.groups)
    assert (known.total[2], unknown.total[2]) == (3, 0)
    assert rows(CountsRow, answer.topics)[0].total[2] == 3
    assert member_id


async def shared_member(stack: Stack, group: str, messages: int) -> tuple[int, list[SharedDelivery]]:
    """A member of a shared group that was given so many messages, and has them in flight."""
    opened = await stack.client.call(
        RequestCode.SHARED_OPEN, SharedOpenRequest(group, [GroupSubscription("t", "*")])
    )
    member_id = opened.header(SharedOpenResponse).member_id
    await stack.produce("t", 0, *((b"%d" % i, None) for i in range(messages)))
    pulled = await stack.client.call(RequestCode.SHARED_PULL, SharedPullRequest(member_id, messages, 1 << 20))
    return member_id, rows(SharedDelivery, pulled.header(SharedPullResponse).deliveries)


async def test_counts_of_a_topic_go_with_it(broker: Stack) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    assert rows(CountsRow, (await statistics_of(broker)).topics)
    await broker.client.call(RequestCode.TOPIC_DELETE, TopicDeleteRequest("t", True), 20.0)
    assert not (await statistics_of(broker)).topics


async def test_too_many_rows_are_refused_by_number(broker: Stack) -> None:
    for wanted in ({"rows_max": 0}, {"topics": ["t"] * (ROWS_MAX + 1)}):
        with pytest.raises(RemoteError) as refused:
            await broker.client.call(RequestCode.STATISTICS, StatisticsRequest(**wanted))  # type: ignore[arg-type]
        assert refused.value.code == Code.LIMIT_EXCEEDED
        assert str(ROWS_MAX) in str(refused.value)


async def test_the_backlog_of_a_group_is_counted_and_aged(broker: Stack) -> None:
    await broker.create("t", 2)
    before_ms = time.time_ns() // 1_000_000
    for queue_id in (0, 1):
        await broker.produce("t", queue_id, (b"a", None), (b"b", None), (b"c", None))
    peer = await group_with(broker, "g", "t", {0: 1, 1: 3})
    (row,) = await backlog_of(broker)
    assert (row.group, row.mode, row.topic, row.messages, row.queues) == ("g", "clustering", "t", 2, 2)
    assert before_ms <= row.oldest_ms <= time.time_ns() // 1_000_000
    assert await backlog_of(broker, "g") == [row]
    assert await backlog_of(broker, "other") == []
    assert await peer.report(0, 3, topic="t", wait_for_disk=True) == []
    (row,) = await backlog_of(broker)
    assert (row.messages, row.oldest_ms) == (0, 0)
    await peer.client.close()


async def test_the_longest_backlogs_come_first_and_the_rest_is_said(broker: Stack) -> None:
    await broker.create("t", 1)
    await broker.produce("t", 0, *((b"x", None) for _ in range(5)))
    peers = [await group_with(broker, f"g{at}", "t", {0: at}) for at in (4, 1, 3)]
    assert [(row.group, row.messages) for row in await backlog_of(broker)] == [
        ("g1", 4),
        ("g3", 2),
        ("g4", 1),
    ]
    reply = await broker.client.call(RequestCode.BACKLOG, BacklogRequest(None, 2))
    answer = reply.header(BacklogResponse)
    assert (len(answer.backlog), answer.left_out) == (2, 1)
    for peer in peers:
        await peer.client.close()


async def test_what_a_shared_group_has_in_flight_is_backlog_and_what_is_acknowledged_is_not(
    broker: Stack,
) -> None:
    await broker.create("t", 1)
    member_id, (delivery,) = await shared_member(broker, "s", 4)
    retries = "%RETRY%s"
    rows_of = {row.topic: row for row in await backlog_of(broker, "s")}
    assert (rows_of["t"].mode, rows_of["t"].messages, rows_of["t"].queues) == ("shared", 4, 1)
    assert rows_of["t"].oldest_ms > 0
    assert set(rows_of) <= {"t", retries}
    # The second of four: the floor stays.
    acked = SharedAckRequest(member_id, [SharedRange(delivery.receipt, 1, 1)])
    await broker.client.call(RequestCode.SHARED_ACK, acked)
    assert {row.topic: row.messages for row in await backlog_of(broker, "s")}["t"] == 3


async def test_a_shared_group_that_was_reset_counts_once(broker: Stack) -> None:
    await broker.create("t", 1)
    member_id, _ = await shared_member(broker, "s", 4)
    await broker.client.call(RequestCode.SHARED_CLOSE, SharedCloseRequest(member_id))
    await broker.client.call(RequestCode.OFFSET_RESET, OffsetResetRequest("s", "t", TO_OFFSET, 1))
    assert broker.server.groups.offsets.table.get("s", "t", 0) == 1
    (row,) = [row for row in await backlog_of(broker, "s") if row.topic == "t"]
    assert (row.messages, row.queues) == (3, 1)


async def test_ages_are_read_once_and_at_most_so_many_at_a_time(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "LOOKUPS_MAX", 2)
    await broker.create("t", 3)
    for queue_id in range(3):
        await broker.produce("t", queue_id, (b"a", None))
    peer = await group_with(broker, "g", "t", {0: 0, 1: 0, 2: 0})
    await backlog_of(broker)
    numbers = broker.server.backlogs.numbers()
    assert (numbers["backlog_lookups_total"], numbers["backlog_ages_unknown"]) == (2, 1)
    await backlog_of(broker)
    await backlog_of(broker)
    numbers = broker.server.backlogs.numbers()
    assert (numbers["backlog_lookups_total"], numbers["backlog_ages_unknown"]) == (3, 0)
    monkeypatch.setattr(backlogs, "AGES_MAX", 2)
    await backlog_of(broker)
    assert broker.server.backlogs.numbers()["backlog_ages"] == 2
    await peer.client.close()


async def test_many_groups_are_measured_in_many_turns_of_the_loop(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "QUEUES_PER_TURN", 1)
    await broker.create("t", 1)
    await broker.produce("t", 0, (b"a", None))
    peers = [await group_with(broker, f"g{at}", "t", {0: 0}) for at in range(3)]
    found = await backlog_of(broker)
    assert [(row.group, row.messages) for row in found] == [("g0", 1), ("g1", 1), ("g2", 1)]
    assert broker.server.backlogs.numbers()["backlog_measurements"] == 0
    for peer in peers:
        await peer.client.close()


async def test_a_measurement_too_many_is_told_to_come_later(
    broker: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "MEASURING_MAX", 0)
    with pytest.raises(RemoteError) as refused:
        await backlog_of(broker)
    assert refused.value.code == Code.BUSY
    monkeypatch.undo()
    assert await backlog_of(broker) == []


async def test_a_group_that_is_deleted_has_neither_counts_nor_backlog(broker: Stack) -> None:
    await broker.client.call(RequestCode.GROUP_UPDATE, GroupUpdateRequest("g"))
    broker.server.statistics.of_group("g", "t").messages_out += 1
    assert (await statistics_of(broker)).groups
    await broker.client.call(RequestCode.GROUP_DELETE, GroupRequest("g"))
    assert not (await statistics_of(broker)).groups
    assert await backlog_of(broker) == []
