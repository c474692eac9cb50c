from __future__ import annotations

import asyncio

import pytest
from broker_stack import Stack, Start, make_record, produce_body, refused, until

from broker.quotas import kept, requests
from broker.topics.core.table import Topic
from holdmq.credentials.access_keys import AccessKey, Grants
from holdmq.credentials.permissions import Role
from holdmq.errors import Code, RemoteError
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceResponse, ProduceRun, RunResult
from holdmq.wire.quota_headers import (
    KEY,
    TENANT,
    USER,
    QuotaChangedRequest,
    QuotaListRequest,
    QuotaListResponse,
    QuotaOwed,
    QuotaRemoveRequest,
    QuotaRemoveResponse,
    QuotaRow,
    QuotaSetRequest,
    QuotaSetResponse,
    QuotaSpendRequest,
    QuotaSpendResponse,
    QuotaSpent,
    QuotaUse,
)


async def opened(stack: Stack) -> Stack:
    await stack.server.quotas.table.opened.wait()
    return stack


async def put(stack: Stack, quota: QuotaRow) -> QuotaRow:
    reply = await stack.client.call(RequestCode.QUOTA_SET, QuotaSetRequest(list(quota)), 20.0)
    return rows(QuotaRow, [reply.header(QuotaSetResponse).quota])[0]


async def remove(stack: Stack, kind: str, name: str) -> bool:
    reply = await stack.client.call(RequestCode.QUOTA_REMOVE, QuotaRemoveRequest(kind, name), 20.0)
    return reply.header(QuotaRemoveResponse).was_present


async def listed(stack: Stack, page: int = 1_000) -> tuple[list[str], dict[str, QuotaUse]]:
    found: list[str] = []
    used: dict[str, QuotaUse] = {}
    after: str | None = ""
    while after is not None:
        reply = await stack.client.call(RequestCode.QUOTA_LIST, QuotaListRequest(after, page), 20.0)
        answer = reply.header(QuotaListResponse)
        found += [f"{row.kind}:{row.name}" for row in rows(QuotaRow, answer.quotas)]
        used.update((row.principal, row) for row in rows(QuotaUse, answer.used))
        after = answer.next_after
    return found, used


def shows(stack: Stack, key: str, *roles: Role) -> None:
    """The client has shown this access key, "" = none."""
    grants = Grants(AccessKey(key, roles=frozenset(roles or (Role.CLIENT,)), produce=("*",)))
    for connection, hello in stack.server.rpc.connections.items():
        if hello is not None and hello.client_id == "test":
            connection.grants = grants if key else None


async def produce(stack: Stack, count: int, topic: str = "t", size: int = 10) -> tuple[RunResult, int]:
    """What became of so many messages, and how long to wait, in ms."""
    records = [make_record(topic, 0, bytes(size)) for _ in range(count)]
    first = stack.next_sequence(topic, 0, count)
    response: ProduceResponse = await stack.produce_raw(
        produce_body(records), [ProduceRun(topic, 0, count, 1, 1, first)]
    )
    return rows(RunResult, response.results)[0], response.retry_after_ms


async def test_a_quota_is_set_replaced_listed_by_pages_with_its_use_and_taken_away(broker: Stack) -> None:
    await opened(broker)
    assert (await put(broker, QuotaRow(KEY, "orders", publish_rate=5, by="ada"))).changed_ms > 0
    await put(broker, QuotaRow(KEY, "orders", publish_rate=7))
    for n in range(5):
        await put(broker, QuotaRow(USER, f"u{n}", connections=1))
    assert (await listed(broker, 2))[0] == ["key:orders", *(f"user:u{n}" for n in range(5))]
    assert broker.server.numbers()["quotas"] == 6
    assert await remove(broker, USER, "u3")
    assert not await remove(broker, USER, "u3")
    assert "user:u3" not in (await listed(broker))[0]
    assert await refused(put(broker, QuotaRow(KEY, "orders", topics=1))) == Code.LIMIT_EXCEEDED


async def test_quotas_are_there_again_after_a_restart(start: Start) -> None:
    stack = await opened(await start())
    await put(stack, QuotaRow(KEY, "orders", publish_rate=5))
    await put(stack, QuotaRow(KEY, "gone", publish_rate=5))
    await remove(stack, KEY, "gone")
    stack = await opened(await start())
    assert (await listed(stack))[0] == ["key:orders"]
    assert stack.server.quotas.has_rates


async def test_quotas_are_bounded(broker: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened(broker)
    monkeypatch.setattr(requests, "QUOTAS_MAX", 2)
    await asyncio.gather(*(put(broker, QuotaRow(USER, f"u{n}", sessions=1)) for n in range(2)))
    assert await refused(put(broker, QuotaRow(USER, "u2", sessions=1))) == Code.LIMIT_EXCEEDED
    await put(broker, QuotaRow(USER, "u1", sessions=2))


async def test_gateways_are_told_of_each_change(broker: Stack) -> None:
    await opened(broker)
    made: list[QuotaRow] = []
    removed: list[tuple[str, str]] = []

    def told(request: Request) -> None:
        push = request.header(QuotaChangedRequest)
        made.extend(rows(QuotaRow, push.made))
        removed.extend((kind, name) for kind, name in push.removed)

    gateway = Client(f"127.0.0.1:{broker.server.rpc.port}", "gateway", "gateway-0", on_request=told)
    try:
        await gateway.connected(20.0)
        quota = await put(broker, QuotaRow(USER, "ada", publish_rate=5))
        await remove(broker, USER, "ada")
        await until(lambda: (made, removed) == ([quota], [(USER, "ada")]))
    finally:
        await gateway.close()


async def test_a_producer_beyond_the_rate_of_its_key_is_told_how_long_to_wait_and_others_are_not(
    broker: Stack,
) -> None:
    await opened(broker)
    await broker.create("t")
    await put(broker, QuotaRow(KEY, "orders", publish_rate=100))
    assert (await produce(broker, 300))[0].status == Code.OK, "it is anonymous"
    shows(broker, "orders")
    assert (await produce(broker, 300))[0].status == Code.OK, "a burst is lent"
    result, wait_ms = await produce(broker, 1)
    assert result.status == Code.BUSY
    assert "quota" in result.remark
    assert 1_000 < wait_ms <= 2_001
    shows(broker, "")
    _, used = await listed(broker)
    assert used["key:orders"].waited == 1
    assert used["key:orders"].messages_per_s > 10
    shows(broker, "other")
    # Its sequence was not taken: it is the next one still.
    broker.sequences.clear()
    broker.next_sequence("t", 0, 600)
    assert (await produce(broker, 1))[0].status == Code.OK
    shows(broker, "orders", Role.SERVICE)
    assert (await produce(broker, 1))[0].status == Code.OK, "a gateway's clients have quotas of their own"
    assert broker.server.numbers()["quota_waits_total"] == 1


async def test_who_waits_for_its_rate_is_not_numbered_anew_by_what_it_sends_behind_that(
    broker: Stack,
) -> None:
    """Of a producer that is new here, the first batch is refused, and the second one comes in time."""
    await opened(broker)
    await broker.create("t")
    await put(broker, QuotaRow(KEY, "orders", publish_rate=10))
    shows(broker, "orders")
    assert (await produce(broker, 12))[0].status == Code.OK
    records = [make_record("t", 1, b"x")]

    async def send(sequence: int) -> int:
        response = await broker.produce_raw(produce_body(records), [ProduceRun("t", 1, 1, 9, 1, sequence)])
        return int(rows(RunResult, response.results)[0].status)

    assert await send(0) == Code.BUSY
    await asyncio.sleep(0.3)
    assert await send(1) == Code.OUT_OF_SEQUENCE
    assert await send(0) == Code.OK


async def test_what_clients_of_gateways_send_counts_with_what_producers_do(broker: Stack) -> None:
    await opened(broker)
    await put(broker, QuotaRow(USER, "*", publish_rate=100))
    spent = [list(QuotaSpent("user:ada", 150, 0)), list(QuotaSpent("user:eve", 50, 0))]
    spent += [list(QuotaSpent("key:none", 5_000, 0)), list(QuotaSpent("user:eve", -5_000, -1))]
    reply = await broker.client.call(RequestCode.QUOTA_SPEND, QuotaSpendRequest(spent), 20.0)
    (owed,) = rows(QuotaOwed, reply.header(QuotaSpendResponse).owed)
    assert owed.principal == "user:ada"
    assert 100 < owed.owed_ms <= 201, "of the half second three tenths are lent"
    many = [list(QuotaSpent("user:ada", 1, 0))] * 1_001
    asked = broker.client.call(RequestCode.QUOTA_SPEND, QuotaSpendRequest(many), 20.0)
    assert await refused(asked) == Code.LIMIT_EXCEEDED


async def test_a_connection_more_than_a_key_may_have_is_refused_by_name(broker: Stack) -> None:
    await opened(broker)
    await put(broker, QuotaRow(KEY, "orders", connections=2))
    shows(broker, "orders")
    (connection,) = (c for c in broker.server.rpc.connections if c.principal == "orders")
    broker.server.quotas.admit(connection)
    shows(broker, "")
    await put(broker, QuotaRow(KEY, "orders", connections=1))
    shows(broker, "orders")
    with pytest.raises(RemoteError, match="key:orders has the 1 connections") as raised:
        broker.server.quotas.admit(connection)
    assert raised.value.code == Code.QUOTA_EXCEEDED
    shows(broker, "")
    _, used = await listed(broker)
    assert (used["key:orders"].connections, used["key:orders"].refused) == (0, 1)


async def test_who_publishes_to_a_tenant_s_topics_keeps_its_rate_whoever_he_is(broker: Stack) -> None:
    await opened(broker)
    broker.server.topics.table.add(Topic("acme%t", 1, 1))
    broker.server.topics.table.add(Topic("other%t", 1, 1))
    await put(broker, QuotaRow(TENANT, "acme", publish_rate=10))
    for status in (Code.OK, Code.BUSY):
        assert (await produce(broker, 20, "acme%t"))[0].status == status
    assert (await produce(broker, 20, "other%t"))[0].status == Code.OK


async def test_a_tenant_has_as_many_topics_as_its_quota_allows_also_after_a_restart(start: Start) -> None:
    stack = await opened(await start())
    await put(stack, QuotaRow(TENANT, "acme", topics=2))
    for name in ("acme%a", "acme%b", "other%a", "c"):
        await stack.create(name, 1)
    assert await refused(stack.create("acme%c", 1)) == Code.QUOTA_EXCEEDED
    await stack.create("acme%b", 1)
    stack = await opened(await start())
    with pytest.raises(RemoteError, match="tenant:acme has the 2 topics that its quota allows: delete some"):
        await stack.create("acme%c", 1)
    await stack.create("d", 1)
    _, used = await listed(stack)
    assert (used["tenant:acme"].topics, used["tenant:acme"].refused) == (2, 1)


async def test_a_tenant_that_keeps_all_that_it_may_is_refused_more_until_something_went(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "LOOK_S", 0.05)
    stack = await opened(await start())
    for name in ("acme%t", "other%t"):
        await stack.create(name, 1)
    await put(stack, QuotaRow(TENANT, "acme", kept_bytes=50_000))
    assert (await produce(stack, 90, "acme%t", 1_000))[0].status == Code.OK
    quotas = stack.server.quotas
    await until(lambda: quotas.kept.of("acme") > 90_000)
    assert quotas.kept.of("acme") < 120_000
    result, _ = await produce(stack, 1, "acme%t")
    assert result.status == Code.QUOTA_EXCEEDED
    assert "tenant:acme keeps the 50000 bytes" in result.remark
    assert (await produce(stack, 1, "other%t"))[0].status == Code.OK
    stack = await opened(await start())
    await until(lambda: stack.server.quotas.kept.of("acme") > 90_000)
    stack.sequences.clear()
    stack.next_sequence(
        "acme%t", 0, 90
    )  # what was refused before the restart is no gap that a start knows of
    assert (await produce(stack, 1, "acme%t"))[0].status == Code.QUOTA_EXCEEDED
    _, used = await listed(stack)
    assert used["tenant:acme"].kept_bytes > 90_000
    await put(stack, QuotaRow(TENANT, "acme", kept_bytes=500_000))
    assert (await produce(stack, 1, "acme%t"))[0].status == Code.OK
    await remove(stack, TENANT, "acme")
    await until(lambda: stack.server.quotas.kept.of("acme") == 0)
