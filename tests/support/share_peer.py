"""A gateway as brokers see it for shared subscriptions: its members, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import pytest
from broker_stack import Stack, produce_body

from holdmq.record.codec import SYS_QOS_SHIFT, decode_record, encode_record
from holdmq.record.properties import encode_properties
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty, ProduceRun
from holdmq.wire.share_headers import (
    AT_END,
    ShareCredit,
    ShareGiven,
    ShareGroupRow,
    ShareJoin,
    ShareJoined,
    ShareJoinRequest,
    ShareJoinResponse,
    ShareLeave,
    ShareLeaveRequest,
    ShareListRequest,
    ShareListResponse,
    ShareOffline,
    SharePositions,
    ShareReadRequest,
    ShareReadResponse,
    ShareSettleRequest,
)

GROUP = "$share/g/t/#"


class Given(NamedTuple):
    """A message that a member got."""

    member_id: int
    position: int
    body: bytes


async def publish(broker: Stack, *bodies: bytes, tag: str = "1", qos: int = 1, topic: str = "t") -> None:
    """Publish as a gateway does."""
    properties = encode_properties([("TAGS", tag)])
    records = [
        encode_record(topic.encode(), 0, body, properties, 1_700_000_000_000, bytes(8), qos << SYS_QOS_SHIFT)
        for body in bodies
    ]
    first = broker.next_sequence(topic, 0, len(records))
    before = broker.store.confirmed_position
    await broker.produce_raw(produce_body(records), [ProduceRun(topic, 0, len(records), 1, 1, first)])
    assert broker.store.confirmed_position > before


class SharePeer:
    """A gateway worker's connection. Everything that it is given is in `got`, in order."""

    def __init__(self, port: int, name: str) -> None:
        self.client = Client(f"127.0.0.1:{port}", "gateway", name)
        self.got: list[Given] = []
        self._reading: asyncio.Task[None] | None = None

    async def join(
        self,
        member_id: int,
        client_id: str,
        *,
        uid: int = 1,
        group: str = GROUP,
        expiry_s: int = 3600,
        qos: int = 1,
        credit: int = 10,
        position: int = AT_END,
        planned: Sequence[int] = (),
        held: Sequence[int] = (),
    ) -> ShareJoined:
        row = ShareJoin(
            member_id, group, client_id, uid, expiry_s, qos, 0, position, list(planned), list(held)
        )
        reply = await self.client.call(RequestCode.SHARE_JOIN, ShareJoinRequest([row]))
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        if credit:
            await self.settle(credits=[ShareCredit(member_id, credit)])
        return rows(ShareJoined, reply.header(ShareJoinResponse).joined)[0]

    async def settle(self, **fields: list[Any]) -> None:
        """SHARE_SETTLE, and come back when it was handled."""
        await self.client.call(RequestCode.SHARE_SETTLE, ShareSettleRequest(**fields))

    async def done(self, *messages: Given) -> None:
        await self.settle(done=[SharePositions(m.member_id, [m.position]) for m in messages])

    async def back(self, *messages: Given) -> None:
        await self.settle(back=[SharePositions(m.member_id, [m.position]) for m in messages])

    async def credit(self, member_id: int, messages: int) -> None:
        await self.settle(credits=[ShareCredit(member_id, messages)])

    async def offline(self, member_id: int, expiry_s: int = 3600, begun: Sequence[int] = ()) -> None:
        await self.settle(offline=[ShareOffline(member_id, expiry_s, list(begun))])

    async def leave(self, client_id: str, group: str = GROUP, keep_uid: int = 0) -> None:
        await self.client.call(
            RequestCode.SHARE_LEAVE, ShareLeaveRequest([ShareLeave(group, client_id, keep_uid)])
        )

    async def groups(self) -> dict[str, ShareGroupRow]:
        reply = await self.client.call(RequestCode.SHARE_LIST, ShareListRequest())
        return {row.name: row for row in rows(ShareGroupRow, reply.header(ShareListResponse).groups)}

    async def take(self, count: int) -> list[Given]:
        """The next messages, so many."""
        async with asyncio.timeout(40):
            while len(self.got) < count:
                await asyncio.sleep(0.005)
        taken, self.got = self.got[:count], self.got[count:]
        return taken

    async def is_silent(self) -> bool:
        """Whether there is nothing for it: what was on its way has come."""
        await self.client.call(RequestCode.HEARTBEAT, Empty())
        await asyncio.sleep(0.05)
        return not self.got

    async def _read(self) -> None:
        while True:
            reply = await self.client.call(RequestCode.SHARE_READ, ShareReadRequest(64 << 10, 20_000), 30.0)
            self.got += given_in(reply)

    async def close(self) -> None:
        """Lose the connection."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self.client.close()


def given_in(reply: Reply) -> list[Given]:
    """The messages of a SHARE_READ's answer."""
    found: list[Given] = []
    at = 0
    for row in rows(ShareGiven, reply.header(ShareReadResponse).given):
        end = at + row.length_bytes
        for _ in range(row.records):
            record = decode_record(reply.body, at)
            found.append(Given(row.member_id, record.physical_offset, bytes(record.body)))
            at += record.total_size
        assert at == end
    assert at == len(reply.body)
    return found


Gateway = Callable[[Stack], SharePeer]


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    """Open a gateway's connection; all are closed with the test."""
    peers: list[SharePeer] = []

    def run(broker: Stack) -> SharePeer:
        peers.append(SharePeer(broker.server.rpc.port, f"gateway-{len(peers)}"))
        return peers[-1]

    yield run
    for peer in peers:
        await peer.close()
