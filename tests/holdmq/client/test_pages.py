"""Pages of topics and groups over two brokers: every one once, in order, with what both counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from session_peer import SessionPeer
from two_brokers import Cluster, two_brokers

from holdmq.client import Admin, GroupAdmin, Message, Producer, TopicQueue
from holdmq.client.pages import column_of, merged, ranked
from holdmq.client.sessions import SessionAdmin
from holdmq.errors import HoldMQError, UsageError, WireError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import TopicCreateRequest, TopicRow

COUNTS = {"oak": (1, 4), "elm": (3, 0), "ash": (2, 2), "fir": (0, 0)}
"""Messages at broker-0 and broker-1: the first in all is the second or third at each of them."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from two_brokers(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Cluster:
    asyncio.run(fill(cluster))
    return cluster


async def fill(cluster: Cluster) -> None:
    async with Admin(cluster.registries) as admin, Producer(cluster.registries) as producer:
        for name, counts in COUNTS.items():
            await admin.create_topic(f"{name}-Forest", queues=2)
            for broker, count in zip(("broker-0", "broker-1"), counts, strict=True):
                for _ in range(count):
                    queue = TopicQueue(f"{name}-Forest", broker, 1)
                    await producer.send(Message(f"{name}-Forest", b"leaf"), queue=queue)
    # One that a single broker has.
    client = Client(f"127.0.0.1:{cluster.second.broker_port}", "console", "test")
    await client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("yew-Forest", 1))
    await client.close()


async def names(admin: Admin, **asked: Any) -> list[str]:
    return [view.topic.partition("-")[0] for view in (await admin.topic_page(**asked)).topics]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("topic", ["ash", "elm", "fir", "oak", "yew"]),
        ("-topic", ["yew", "oak", "fir", "elm", "ash"]),
        ("-messages_in", ["oak", "ash", "elm", "fir", "yew"]),
        ("bytes_in", ["fir", "yew", "elm", "ash", "oak"]),
        ("-messages_stored", ["oak", "ash", "elm", "fir", "yew"]),
        ("write_queues", ["yew", "ash", "elm", "fir", "oak"]),
        ("-read_queues", ["ash", "elm", "fir", "oak", "yew"]),
        ("kind", ["ash", "elm", "fir", "oak", "yew"]),
    ],
)
async def test_all_pages_together_are_every_topic_once_in_order(
    filled: Cluster, sort: str, expected: list[str]
) -> None:
    async with Admin(filled.registries) as admin:
        whole = await admin.topic_page(sort=sort)
        assert [view.topic.partition("-")[0] for view in whole.topics] == expected
        parts = [await names(admin, sort=sort, offset=at, count=2) for at in (0, 2, 4, 6)]
        assert [name for part in parts for name in part] == expected
        assert list(map(len, parts)) == [2, 2, 1, 0]


async def test_a_page_has_the_sums_and_the_settings_of_both_brokers(filled: Cluster) -> None:
    async with Admin(filled.registries) as admin:
        page = await admin.topic_page(sort="-messages_in", count=1)
        (oak,) = page.topics
        assert (oak.topic, oak.messages_in, oak.messages_stored) == ("oak-Forest", 5, 5)
        assert (sorted(oak.rows), oak.queues, page.total) == (["broker-0", "broker-1"], 4, 5)
        (yew,) = (await admin.topic_page("YEW")).topics
        assert list(yew.rows) == ["broker-1"]
        (ash,) = await admin.topics(names=["ash-Forest", "none-Forest"])
        assert (ash.messages_in, ash.bytes_in) == (4, oak.bytes_in * 4 // 5)


async def test_a_search_counts_what_it_finds_alone(filled: Cluster) -> None:
    async with Admin(filled.registries) as admin:
        found = await admin.topic_page("K-FOR", "-messages_out", count=1)
        assert ([view.topic for view in found.topics], found.total) == (["oak-Forest"], 1)
        assert (await admin.topic_page("nowhere")).total == 0
        assert (await admin.topic_page("%")).total == 0
        assert (await admin.topic_page("%", include_system=True)).total > 0
        with pytest.raises(UsageError, match="sort 'colour': one of topic, kind"):
            await admin.topic_page(sort="colour")


async def test_a_broker_that_is_gone_leaves_the_pages_of_the_other(make_broker: Any, registries: Any) -> None:
    first, second = await make_broker("broker-0"), await make_broker("broker-1")
    first.topics = {name: TopicRow(name, 1, 1, 6, "log", 1, False) for name in ("a", "b")}
    second.topics = {name: TopicRow(name, 2, 2, 6, "log", 1, False) for name in ("b", "c")}
    async with Admin(registries) as admin:
        assert await names(admin) == ["a", "b", "c"]
        await second.rpc.close()
        page = await admin.topic_page()
        assert [(view.topic, view.queues) for view in page.topics] == [("a", 1), ("b", 1)]
        await first.rpc.close()
        with pytest.raises(HoldMQError):
            await admin.topic_page()


async def test_a_broker_that_answers_with_whole_lists_is_understood(
    make_broker: Any, registries: Any
) -> None:
    broker = await make_broker("broker-0")
    broker.topics = {
        name: TopicRow(name, queues, queues, 6, "log", 1, False)
        for name, queues in (("Meter", 3), ("valve", 9), ("meters", 1), ("%SYS", 7))
    }
    async with Admin(registries) as admin:
        page = await admin.topic_page("meter", "-write_queues", count=1)
        assert ([view.topic for view in page.topics], page.total) == (["Meter"], 2)
        page = await admin.topic_page("meter", "messages_in", offset=1)
        assert ([view.topic for view in page.topics], page.total) == (["meters"], 2)
        assert [view.topic for view in await admin.topics(names=["valve"])] == ["valve"]


async def test_groups_are_found_at_both_brokers(filled: Cluster) -> None:
    async with GroupAdmin(filled.registries) as groups:
        for name in ("Billing", "audit", "bill-printer"):
            await groups.update(name)
        assert set(await groups.column("group", "bill")) == {"Billing", "bill-printer"}
        assert await groups.column("members", "audit") == {"audit": 0}
        assert await groups.column("mode", "audit") == {"audit": ""}
        found = await groups.groups(["audit", "Billing", "unknown"])
        assert list(found) == ["Billing", "audit"]
        assert set(found["audit"].rows) == {"broker-0", "broker-1"}
        with pytest.raises(HoldMQError, match="column: one of group, mode, members"):
            await groups.column("colour")


async def test_sessions_of_both_brokers_are_one_list_in_order(cluster: Cluster) -> None:
    gateways = [SessionPeer(stack.broker_port) for stack in (cluster.first, cluster.second)]
    for number in range(12):
        gateway = gateways[number % 3 % 2]
        opened = await gateway.open(f"m{number:02}")
        if number % 4 == 0:
            await gateway.end(f"m{number:02}", opened.epoch)
    every = [f"m{number:02}" for number in range(12)]
    async with SessionAdmin(cluster.registries) as sessions:

        async def all_pages(count: int, is_online: bool | None = None) -> list[str]:
            found: list[str] = []
            after: str | None = ""
            while after is not None:
                page = await sessions.page("m", after, count, is_online=is_online)
                assert len(page.sessions) <= count
                found += [view.row.client_id for view in page.sessions]
                after = page.next_after
            return found

        # An end is in the list once the table has it, a moment after its answer.
        while len(await all_pages(1000)) < len(every):
            await asyncio.sleep(0.01)
        for count in (1, 5, 1000):
            assert await all_pages(count) == every
            assert await all_pages(count, True) == [name for name in every if int(name[1:]) % 4]
            assert await all_pages(count, False) == [name for name in every if int(name[1:]) % 4 == 0]
    for gateway in gateways:
        await gateway.client.close()


@pytest.mark.parametrize(
    ("names", "values"), [(["a", "b"], [1]), (["a"], [None]), ([["a"]], [1]), (["a"], [[1]])]
)
def test_what_a_broker_sends_that_is_no_column_is_refused(names: Any, values: Any) -> None:
    with pytest.raises(WireError, match="column"):
        column_of(names, values)


def test_columns_are_added_up_and_texts_are_taken_from_the_first() -> None:
    assert merged([{"a": 1, "b": "log"}, {"a": 2, "b": "table", "c": 3}], max) == {"a": 2, "b": "log", "c": 3}
    assert merged([{"a": 5}, {"a": 5}, {"a": 5}], lambda x, y: x + y) == {"a": 15}
    assert merged([], max) == {}


def test_equal_values_are_in_the_order_of_names_in_both_directions() -> None:
    column = {"d": 1, "b": 2, "c": 1, "a": 2}
    assert ranked(column) == ["c", "d", "a", "b"]
    assert ranked(column, is_descending=True) == ["a", "b", "c", "d"]
    # A broker that lies about types does not stop the page.
    assert ranked({"a": "x", "b": 1}) == ["b", "a"]
