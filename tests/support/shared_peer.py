"""A member of a shared group, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

import pytest
from broker_stack import Stack

from holdmq.record.codec import decode_record
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupSubscription
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty
from holdmq.wire.shared_headers import (
    SharedAckRequest,
    SharedCloseRequest,
    SharedDelivery,
    SharedExtendRequest,
    SharedNack,
    SharedNackRequest,
    SharedOpenRequest,
    SharedOpenResponse,
    SharedPullRequest,
    SharedPullResponse,
    SharedQueueRow,
    SharedRange,
    SharedSettleResponse,
    SharedStart,
    SharedStateRequest,
    SharedStateResponse,
)


class Got(NamedTuple):
    """One message in flight at a member."""

    receipt: int
    topic: str
    queue_id: int
    offset: int
    attempts: int
    body: bytes


class SharedPeer:
    """A member on a connection of its own."""

    def __init__(self, address: str, client_id: str = "member") -> None:
        self.client = Client(address, "client", client_id)
        self.member_id = 0
        self.started: list[SharedStart] = []

    async def open(
        self,
        group: str,
        *topics: str,
        ready_max: int = 1024,
        invisible_ms: int = 30_000,
        start: str = "earliest",
        tags: str = "*",
        begun: Sequence[str] = (),
    ) -> SharedPeer:
        subscriptions = [GroupSubscription(topic, tags) for topic in topics]
        request = SharedOpenRequest(group, subscriptions, ready_max, invisible_ms, start, begun=list(begun))
        answer = (await self.client.call(RequestCode.SHARED_OPEN, request)).header(SharedOpenResponse)
        self.member_id = answer.member_id
        self.started = rows(SharedStart, answer.started)
        return self

    async def pull(
        self, messages_max: int = 100, hold_ms: int = 0, max_bytes: int = 1 << 20, invisible_ms: int = 0
    ) -> list[Got]:
        request = SharedPullRequest(self.member_id, messages_max, max_bytes, hold_ms, invisible_ms)
        reply = await self.client.call(RequestCode.SHARED_PULL, request, 40.0 + hold_ms / 1e3)
        return taken(reply)

    async def ack(self, *messages: Got) -> list[SharedRange]:
        request = SharedAckRequest(self.member_id, ranges(messages))
        reply = await self.client.call(RequestCode.SHARED_ACK, request)
        return rows(SharedRange, reply.header(SharedSettleResponse).refused)

    async def nack(self, *messages: Got, delay_ms: int = 0, is_attempt: bool = True) -> list[SharedRange]:
        request = SharedNackRequest(
            self.member_id, [SharedNack(*row, delay_ms) for row in ranges(messages)], is_attempt
        )
        reply = await self.client.call(RequestCode.SHARED_NACK, request)
        return rows(SharedRange, reply.header(SharedSettleResponse).refused)

    async def extend(self, *messages: Got, invisible_ms: int) -> list[SharedRange]:
        request = SharedExtendRequest(self.member_id, ranges(messages), invisible_ms)
        reply = await self.client.call(RequestCode.SHARED_EXTEND, request)
        return rows(SharedRange, reply.header(SharedSettleResponse).refused)

    async def leave(self) -> None:
        """End the member; the connection stays."""
        await self.client.call(RequestCode.SHARED_CLOSE, SharedCloseRequest(self.member_id))

    async def state(self, group: str) -> dict[tuple[str, int], SharedQueueRow]:
        reply = await self.client.call(RequestCode.SHARED_STATE, SharedStateRequest(group))
        found = rows(SharedQueueRow, reply.header(SharedStateResponse).queues)
        return {(row.topic, row.queue_id): row for row in found}

    async def ping(self) -> None:
        """Everything sent before was handled."""
        await self.client.call(RequestCode.HEARTBEAT, Empty())

    async def close(self) -> None:
        """Lose the connection."""
        await self.client.close()


def ranges(messages: tuple[Got, ...]) -> list[SharedRange]:
    return [SharedRange(message.receipt, message.offset, 1) for message in messages]


def taken(reply: Reply) -> list[Got]:
    """The messages of a SHARED_PULL's answer."""
    found: list[Got] = []
    at = 0
    for row in rows(SharedDelivery, reply.header(SharedPullResponse).deliveries):
        end = at + row.length_bytes
        for _ in range(row.records):
            record = decode_record(reply.body, at)
            found.append(
                Got(row.receipt, row.topic, row.queue_id, record.queue_offset, row.attempts, record.body)
            )
            at += record.total_size
        assert at == end
    assert at == len(reply.body)
    return found


Join = Callable[..., Awaitable[SharedPeer]]


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
    """Wait until pulls of so many members wait."""
    while sum(member.parked is not None for member in broker.server.shared.core.members.values()) < count:
        await asyncio.sleep(0.005)


def bodies(messages: list[Got]) -> list[bytes]:
    return [message.body for message in messages]
