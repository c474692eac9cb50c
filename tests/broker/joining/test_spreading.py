"""Brokers in this process take over what others have; each turn is taken by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from broker_stack import Stack, start_broker, stop_broker

from broker.topics.core.table import Topic
from holdmq.errors import Code, RemoteError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Request
from holdmq.rpc.server import Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupJoinRequest, GroupRequest, GroupSubscription, GroupUpdateRequest
from holdmq.wire.header import Header
from holdmq.wire.headers import HelloRequest, HelloResponse, TopicCreateRequest
from holdmq.wire.joining_headers import SpreadDigestResponse, SpreadPageRequest, SpreadPageResponse, SpreadRow
from holdmq.wire.quota_headers import QuotaRemoveRequest, QuotaRow, QuotaSetRequest
from holdmq.wire.topic_headers import QueuesRemoveRequest, TopicDeleteRequest, TopicUpdateRequest

Begin = Callable[..., Awaitable[Stack]]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    """Start the broker of a name, again if it runs."""
    running: dict[str, Stack] = {}

    async def run(name: str, **settings: object) -> Stack:
        if name in running:
            await stop_broker(running.pop(name))
        running[name] = await start_broker(tmp_path / name, name=name, **settings)
        await running[name].server.quotas.table.opened.wait()
        return running[name]

    yield run
    for stack in running.values():
        await stop_broker(stack)


def address(stack: Stack) -> str:
    return f"127.0.0.1:{stack.server.rpc.port}"


async def turn(stack: Stack, *peers: Stack) -> None:
    """Let a broker ask these others."""
    found = {f"peer-{number}": address(peer) for number, peer in enumerate(peers)}
    await stack.server.spreading.turn(found, lambda where: Client(where, "broker", "test"))


async def ask(stack: Stack, code: RequestCode, header: Header) -> None:
    await stack.client.call(code, header, 20.0)


def topics(stack: Stack) -> dict[str, int]:
    return {t.name: t.write_queues for t in stack.server.topics.table.all() if not t.name.startswith("%")}


async def delete(stack: Stack, topic: str) -> None:
    await ask(stack, RequestCode.TOPIC_DELETE, TopicDeleteRequest(topic, True))


async def test_who_lacks_a_topic_gets_it_and_what_is_here_stays(begin: Begin) -> None:
    first, second = await begin("a"), await begin("b")
    await first.create("both", 2)
    await second.create("both", 5)
    await first.create("one", 3)
    await first.create("t#tmp")
    await ask(first, RequestCode.TOPIC_CREATE, TopicCreateRequest("ordered", order=True))
    await ask(first, RequestCode.TOPIC_CREATE, TopicCreateRequest("table", kind="table"))
    await ask(first, RequestCode.TOPIC_CREATE, TopicCreateRequest("fixed", spread="fixed"))
    await first.create("hidden", 2)
    await ask(first, RequestCode.QUEUES_REMOVE, QueuesRemoveRequest("hidden", 0, "hide_from_producers"))
    await turn(second, first)
    assert topics(second) == {"both": 5, "one": 3}
    again = await begin("b")
    assert topics(again) == {"both": 5, "one": 3}, "durable"
    assert again.server.numbers()["spread_topics_taken_total"] == 0
    await turn(again, first)
    assert again.server.numbers()["spread_topics_taken_total"] == 0
    await ask(first, RequestCode.TOPIC_UPDATE, TopicUpdateRequest("fixed", spread="all"))
    await turn(again, first)
    assert set(topics(again)) == {"both", "one", "fixed"}


async def test_what_belongs_to_a_tenant_is_taken_whatever_its_quota(begin: Begin) -> None:
    first, second = await begin("a"), await begin("b")
    for number in range(3):
        await first.create(f"acme%t{number}", 1)
    await ask(first, RequestCode.GROUP_UPDATE, GroupUpdateRequest("acme%g", retry_max_times=5))
    row = list(QuotaRow("tenant", "acme", topics=2))
    await ask(first, RequestCode.QUOTA_SET, QuotaSetRequest(row))
    await turn(second, first)
    assert set(topics(second)) == {f"acme%t{number}" for number in range(3)}
    assert set(second.server.groups.settings.table.groups) == {"acme%g"}
    assert set(second.server.quotas.table.rows) == {"tenant:acme"}


async def test_as_many_as_there_may_be_are_taken_and_more_when_there_is_room(begin: Begin) -> None:
    first, second = await begin("a"), await begin("b", topics_max=3)
    for number in range(5):
        await first.create(f"t{number}", 1)
    await turn(second, first)
    assert len(topics(second)) == 3
    assert second.server.numbers()["spread_refusals"] == 1
    second.server.topics.table.topics_max = 10
    await turn(second, first)
    assert len(topics(second)) == 5
    assert second.server.numbers()["spread_refusals"] == 0


async def test_more_than_a_page_is_taken(begin: Begin) -> None:
    first, second = await begin("a", topics_max=2_000), await begin("b", topics_max=2_000)
    for name in (f"t{number}" for number in range(1_203)):
        first.server.topics.table.add(Topic(name, 1, 1, stored_queues=1))
    await turn(second, first)
    assert len(topics(second)) == 1_203
    assert second.server.book.digests() == first.server.book.digests()


async def test_a_deleted_topic_does_not_come_back_from_who_was_away(begin: Begin) -> None:
    first, second = await begin("a"), await begin("b")
    for name in ("empty", "used"):
        await first.create(name, 1)
    await turn(second, first)
    await second.produce("used", 0, (b"x", None))
    for name in ("empty", "used"):
        await delete(first, name)
    first = await begin("a")
    await turn(first, second)
    assert topics(first) == {}, "what was deleted is known over a restart"
    third = await begin("c")
    await turn(third, first, second)
    assert topics(third) == {}, "one of those that are asked knows it"
    await turn(second, third)
    assert set(topics(second)) == {"used"}, "nothing is lost by the other one"
    assert second.server.numbers()["spread_deleted_elsewhere"] == 1
    await turn(third, second)
    assert topics(third) == {}
    await first.create("used", 1)
    for stack, other in ((second, first), (third, second)):
        await turn(stack, other)
        assert set(topics(stack)) == {"used"}, "made again"
    assert second.server.numbers()["spread_deleted_elsewhere"] == 0


async def test_a_topic_that_was_taken_from_a_broker_that_deletes_it_goes_again(begin: Begin) -> None:
    first, second = await begin("a"), await begin("b")
    await first.create("t", 1)
    await turn(second, first)
    await delete(first, "t")
    assert set(topics(second)) == {"t"}
    await turn(second, first)
    assert topics(second) == {}
    assert not second.server.topics.table.is_held("t")
    await second.create("t", 1)
    assert (await second.produce("t", 0, (b"x", None))).status == Code.OK


async def test_settings_of_groups_are_taken(begin: Begin) -> None:
    first, second = await begin("a"), await begin("b")
    await turn(first)
    await second.create("t", 1)
    join = GroupJoinRequest("early", "clustering", [GroupSubscription("t", "*")])
    await ask(second, RequestCode.GROUP_JOIN, join)
    await ask(second, RequestCode.GROUP_UPDATE, GroupUpdateRequest("own", retry_max_times=2))
    for name in ("early", "own", "late"):
        request = GroupUpdateRequest(name, retry_max_times=5, delay_levels_ms=[10, 20])
        await ask(first, RequestCode.GROUP_UPDATE, request)
    await turn(second, first)
    found = second.server.groups.settings.table.groups
    assert {name: group.retry_max_times for name, group in found.items()} == {"early": 5, "own": 2, "late": 5}
    assert found["early"].mode == "clustering", "its member stays what it is"
    assert found["late"].delay_levels_ms == (10, 20)
    await ask(first, RequestCode.GROUP_UPDATE, GroupUpdateRequest("bare"))
    await turn(second, first)
    await ask(second, RequestCode.GROUP_UPDATE, GroupUpdateRequest("late", retry_max_times=16))
    await ask(first, RequestCode.GROUP_UPDATE, GroupUpdateRequest("bare", retry_max_times=9))
    await turn(second, first)
    assert second.server.groups.settings.table.groups["bare"].retry_max_times == 16, "it has its own by now"


async def test_a_deleted_group_goes_where_nobody_uses_it(begin: Begin) -> None:
    first, second = await begin("a"), await begin("b")
    await second.create("t", 1)
    for name in ("g", "used"):
        await ask(first, RequestCode.GROUP_UPDATE, GroupUpdateRequest(name, retry_max_times=5))
    await turn(second, first)
    join = GroupJoinRequest("used", "clustering", [GroupSubscription("t", "*")])
    await ask(second, RequestCode.GROUP_JOIN, join)
    for name in ("g", "used"):
        await ask(first, RequestCode.GROUP_DELETE, GroupRequest(name))
    await turn(second, first)
    assert set(second.server.groups.settings.table.groups) == {"used"}
    await turn(first, second)
    assert set(first.server.groups.settings.table.groups) == set()


async def test_quotas_are_taken_and_removed(begin: Begin) -> None:
    first, second = await begin("a"), await begin("b")
    for name, limit in (("ada", 3), ("eve", 4)):
        row = list(QuotaRow("user", name, connections=limit))
        await ask(first, RequestCode.QUOTA_SET, QuotaSetRequest(row))
    await ask(second, RequestCode.QUOTA_SET, QuotaSetRequest(list(QuotaRow("user", "eve", connections=9))))
    await turn(second, first)
    assert second.server.quotas.connections_max("user:ada") == 3
    assert second.server.quotas.connections_max("user:eve") == 9
    assert second.server.quotas.table.rows["user:ada"] == first.server.quotas.table.rows["user:ada"]
    await ask(first, RequestCode.QUOTA_REMOVE, QuotaRemoveRequest("user", "ada"))
    await turn(second, first)
    assert second.server.quotas.connections_max("user:ada") == 0
    await turn(first, second)
    assert set(first.server.quotas.table.rows) == {"user:eve"}


class _OddPeer:
    """A broker of another build: it knows no such question, or answers it oddly."""

    def __init__(self, rows: list[SpreadRow] | None, *tables: str) -> None:
        self._rows = rows
        self._digests = dict.fromkeys((*tables, "topics", "from the future"), 1)
        self.pages = 0
        routes = {} if rows is None else {
            RequestCode.SPREAD_DIGEST: self._digest, RequestCode.SPREAD_PAGE: self._page,
        }  # fmt: skip
        self.server = Server(routes, self._hello, 1 << 20)

    def _hello(self, _connection: object, _hello: HelloRequest) -> HelloResponse:
        return HelloResponse(1, "odd", "test", 0)

    def _digest(self, request: Request) -> None:
        request.reply(SpreadDigestResponse({"marks": 0, **self._digests}))

    def _page(self, request: Request) -> None:
        self.pages += 1
        request.header(SpreadPageRequest)
        request.reply(SpreadPageResponse(list(self._rows or ()), "a"))


@pytest.mark.parametrize("rows", [None, []])
async def test_an_earlier_build_has_nothing_to_tell(begin: Begin, rows: list[SpreadRow] | None) -> None:
    peer = _OddPeer(rows)
    await peer.server.listen("127.0.0.1", 0)
    first = await begin("a")
    where = f"127.0.0.1:{peer.server.port}"
    await first.server.spreading.turn({"odd": where}, lambda each: Client(each, "broker", "test"))
    assert peer.pages <= 2
    assert topics(first) == {}
    await peer.server.close()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"queues": 0},
        {"queues": "many"},
        {"queues": 5_000},
        {"queues": 1, "perm": 99},
        {"queues": 1, "first_group": "x"},
        {"queues": 1, "key_levels": True},
    ],
)
async def test_what_cannot_be_a_topic_is_refused_and_the_others_are_taken(
    begin: Begin, settings: dict[str, object]
) -> None:
    good = {"queues": 2, "from the future": 1}
    peer = _OddPeer([SpreadRow("bad", settings), SpreadRow("good", good), SpreadRow("%SYS", good)])
    await peer.server.listen("127.0.0.1", 0)
    first = await begin("a")
    where = f"127.0.0.1:{peer.server.port}"
    await first.server.spreading.turn({"odd": where}, lambda each: Client(each, "broker", "test"))
    assert topics(first) == {"good": 2}
    assert first.server.numbers()["spread_refusals"] == 1
    await peer.server.close()


async def test_a_quota_that_is_none_does_not_hold_the_topics_up(begin: Begin) -> None:
    peer = _OddPeer(
        [SpreadRow("user:ada", {"queues": 1, "kind": 7}), SpreadRow("t", {"queues": 1})], "quotas"
    )
    await peer.server.listen("127.0.0.1", 0)
    first = await begin("a")
    where = f"127.0.0.1:{peer.server.port}"
    await first.server.spreading.turn({"odd": where}, lambda each: Client(each, "broker", "test"))
    assert set(topics(first)) == {"t"}
    assert len(first.server.quotas.table.rows) == 0
    await peer.server.close()


async def test_a_table_that_nobody_has_is_refused(begin: Begin) -> None:
    first = await begin("a")
    with pytest.raises(RemoteError, match="table: one of groups, quotas, topics, marks"):
        await ask(first, RequestCode.SPREAD_PAGE, SpreadPageRequest("secrets"))
