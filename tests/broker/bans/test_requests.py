from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from broker_stack import Stack, Start, refused, until

from broker.bans import requests
from holdmq.errors import Code
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Request
from holdmq.wire.ban_headers import (
    ADDRESS,
    CLIENT_ID,
    PATTERN,
    BanAddRequest,
    BanAddResponse,
    BanChangedRequest,
    BanListRequest,
    BanListResponse,
    BanRemoveRequest,
    BanRemoveResponse,
    BanRow,
)
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows


class Clock:
    """A wall clock that tests move."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class Gateway:
    """A gateway worker that hears of bans."""

    def __init__(self, stack: Stack) -> None:
        self.made: list[BanRow] = []
        self.lifted: list[tuple[str, str]] = []
        address = f"127.0.0.1:{stack.server.rpc.port}"
        self.client = Client(address, "gateway", "gateway-0", on_request=self._told)

    def _told(self, request: Request) -> None:
        push = request.header(BanChangedRequest)
        self.made += rows(BanRow, push.made)
        self.lifted += [(kind, value) for kind, value in push.lifted]


@pytest.fixture
async def gateway(broker: Stack) -> AsyncIterator[Gateway]:
    await opened(broker)
    gateway = Gateway(broker)
    await gateway.client.connected(20.0)
    yield gateway
    await gateway.client.close()


async def opened(stack: Stack) -> Stack:
    """The same, once its bans are known."""
    await stack.server.bans.table.opened.wait()
    return stack


async def ban(stack: Stack, kind: str, value: str, until_ms: int = 0, reason: str = "") -> BanRow:
    request = BanAddRequest(list(BanRow(kind, value, reason, "ada", 0, until_ms)))
    reply = await stack.client.call(RequestCode.BAN_ADD, request, 20.0)
    return rows(BanRow, [reply.header(BanAddResponse).ban])[0]


async def lift(stack: Stack, kind: str, value: str) -> bool:
    reply = await stack.client.call(RequestCode.BAN_REMOVE, BanRemoveRequest(kind, value), 20.0)
    return reply.header(BanRemoveResponse).was_present


async def listed(stack: Stack, page: int = 1_000) -> list[str]:
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        reply = await stack.client.call(RequestCode.BAN_LIST, BanListRequest(after, page), 20.0)
        answer = reply.header(BanListResponse)
        found += [row.value for row in rows(BanRow, answer.bans)]
        after = answer.next_after
    return found


async def test_a_ban_is_told_to_gateways_listed_replaced_and_lifted(broker: Stack, gateway: Gateway) -> None:
    made = await ban(broker, ADDRESS, "10.1.2.3/8", reason="first")
    assert (made.value, made.by) == ("10.0.0.0/8", "ada")
    assert made.made_ms > 0
    again = await ban(broker, ADDRESS, "10.0.0.0/8", reason="second")
    await until(lambda: gateway.made == [made, again])
    for n in range(5):
        await ban(broker, CLIENT_ID, f"c{n}")
    assert await listed(broker, 2) == ["10.0.0.0/8", "c0", "c1", "c2", "c3", "c4"]
    assert await lift(broker, ADDRESS, "10.9.9.9/8")
    assert not await lift(broker, ADDRESS, "10.0.0.0/8")
    await until(lambda: gateway.lifted == [(ADDRESS, "10.0.0.0/8")])
    assert "10.0.0.0/8" not in await listed(broker)


async def test_bans_are_there_again_after_a_restart_and_those_that_ended_meanwhile_are_not(
    start: Start,
) -> None:
    clock = Clock()
    stack = await opened(await start(clock_ms=clock))
    await ban(stack, CLIENT_ID, "for ever")
    await ban(stack, CLIENT_ID, "a minute", clock.now_ms + 60_000)
    await ban(stack, CLIENT_ID, "lifted")
    await lift(stack, CLIENT_ID, "lifted")
    clock.now_ms += 60_000
    stack = await opened(await start(clock_ms=clock))
    assert await listed(stack) == ["for ever"]
    await until(lambda: stack.server.numbers()["bans_expired_total"] == 1)
    assert stack.server.numbers()["bans"] == 1


async def test_bans_and_patterns_that_fit_any_beginning_are_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "OPEN_PATTERNS_MAX", 2)
    stack = await opened(await start(bans_max=4))
    await asyncio.gather(ban(stack, PATTERN, "*a"), ban(stack, PATTERN, "?b"))
    assert await refused(ban(stack, PATTERN, "*c")) == Code.LIMIT_EXCEEDED
    await ban(stack, PATTERN, "c*")
    await ban(stack, CLIENT_ID, "d")
    assert await refused(ban(stack, CLIENT_ID, "e")) == Code.LIMIT_EXCEEDED
    await ban(stack, CLIENT_ID, "d", reason="replaced")
    assert stack.server.numbers()["bans_refused_total"] == 2
    await lift(stack, PATTERN, "*a")
    await ban(stack, PATTERN, "*c")


async def test_what_cannot_be_a_ban_is_refused(start: Start) -> None:
    clock = Clock()
    stack = await opened(await start(clock_ms=clock))
    assert await refused(ban(stack, ADDRESS, "here")) == Code.LIMIT_EXCEEDED
    assert await refused(ban(stack, CLIENT_ID, "c", clock.now_ms)) == Code.LIMIT_EXCEEDED
    assert await refused(lift(stack, "colour", "red")) == Code.LIMIT_EXCEEDED
    assert await listed(stack) == []
