"""A member of a consumer group over real RPC, that does only what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from broker_stack import Stack, bodies

from holdmq.rpc.client import Client
from holdmq.rpc.connection import Request
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    CLUSTERING,
    GroupJoinRequest,
    GroupListResponse,
    GroupRequest,
    GroupRow,
    GroupState,
    GroupSubscription,
    LeasedQueue,
    QueueLeaseRequest,
    QueueLeaseResponse,
    QueueReleaseRequest,
    ReleasedQueue,
    WantedQueue,
)
from holdmq.wire.header import rows
from holdmq.wire.headers import Empty, PulledQueue, PullQueue, PullRequest, PullResponse
from holdmq.wire.offset_headers import (
    OffsetGetRequest,
    OffsetGetResponse,
    OffsetReport,
    OffsetReportRequest,
    OffsetReportResponse,
    OffsetResult,
    OffsetRow,
)


class GroupPeer:
    """One connection to a broker (or its port); `pushed` are the GroupStates that came by themselves."""

    def __init__(self, broker: Stack | int, client_id: str, group: str = "g") -> None:
        port = broker if isinstance(broker, int) else broker.server.rpc.port
        self.client_id = client_id
        self.group = group
        self.pushed: list[GroupState] = []
        self.generations: dict[tuple[str, int], int] = {}
        self._came = asyncio.Event()
        self.client = Client(f"127.0.0.1:{port}", "client", client_id, on_request=self._received)

    def _received(self, request: Request) -> None:
        assert request.command.code == RequestCode.GROUP_CHANGED
        assert request.command.is_one_way
        self.pushed.append(request.header(GroupState))
        self._came.set()

    async def told(self) -> GroupState:
        """The next GroupState that comes, or came since the last call."""
        while not self.pushed:
            self._came.clear()
            async with asyncio.timeout(40):
                await self._came.wait()
        return self.pushed.pop(0)

    async def join(self, *topics: str, mode: str = CLUSTERING) -> GroupState:
        header = GroupJoinRequest(
            self.group, mode, [GroupSubscription(t, "*") for t in topics or ("t",)], "average"
        )
        return (await self.client.call(RequestCode.GROUP_JOIN, header)).header(GroupState)

    async def leave(self) -> None:
        await self.client.call(RequestCode.GROUP_LEAVE, GroupRequest(self.group))

    async def ask(self, *wanted: WantedQueue) -> list[LeasedQueue]:
        reply = await self.client.call(RequestCode.QUEUE_LEASE, QueueLeaseRequest(self.group, list(wanted)))
        return rows(LeasedQueue, reply.header(QueueLeaseResponse).queues)

    async def lease(self, *queue_ids: int, topic: str = "t") -> list[LeasedQueue]:
        """Ask for queues anew, and remember what was granted."""
        answered = await self.ask(*(WantedQueue(topic, q, 0) for q in queue_ids))
        for row in answered:
            if row.generation:
                self.generations[topic, row.queue_id] = row.generation
        return answered

    async def renew(self, *queue_ids: int, topic: str = "t") -> list[LeasedQueue]:
        return await self.ask(*(WantedQueue(topic, q, self.generations[topic, q]) for q in queue_ids))

    async def release(self, queue_id: int, offset: int = -1, topic: str = "t") -> None:
        row = ReleasedQueue(topic, queue_id, self.generations[topic, queue_id], offset, 0)
        await self.client.call(RequestCode.QUEUE_RELEASE, QueueReleaseRequest(self.group, [row]))

    async def report(
        self,
        queue_id: int,
        offset: int,
        topic: str = "t",
        generation: int | None = None,
        log_epoch: int = 0,
        wait_for_disk: bool = False,
        only_first: bool = False,
    ) -> list[OffsetResult]:
        """Report under the lease in hand (or `generation`); what was refused."""
        known = self.generations.get((topic, queue_id), 0) if generation is None else generation
        header = OffsetReportRequest(
            self.group, [OffsetReport(topic, queue_id, known, offset, log_epoch)], wait_for_disk, only_first
        )
        reply = await self.client.call(RequestCode.OFFSET_REPORT, header, 40.0)
        return rows(OffsetResult, reply.header(OffsetReportResponse).refused)

    async def offsets(self, *topics: str, **header: Any) -> list[OffsetRow]:
        request = OffsetGetRequest(self.group, list(topics) or None, **header)
        reply = await self.client.call(RequestCode.OFFSET_GET, request)
        return rows(OffsetRow, reply.header(OffsetGetResponse).offsets)

    async def pull(
        self,
        *queues: tuple[int, int],
        topic: str = "t",
        hold_ms: int = 0,
        generations: list[int] | None = None,
    ) -> tuple[list[PulledQueue], list[bytes]]:
        """Pull (queue id, offset)s for the group under the leases in hand."""
        held = [self.generations.get((topic, q), 0) for q, _ in queues]
        header = PullRequest(
            [PullQueue(topic, q, 0, offset) for q, offset in queues],
            1 << 20,
            hold_ms,
            None,
            self.group,
            held if generations is None else generations,
        )
        reply = await self.client.call(RequestCode.PULL, header, 40.0 + hold_ms / 1e3)
        return rows(PulledQueue, reply.header(PullResponse).queues), bodies(reply)


Join = Callable[..., GroupPeer]


@pytest.fixture
async def member() -> AsyncIterator[Join]:
    """Make members; their connections close with the test."""
    made: list[GroupPeer] = []

    def make(broker: Stack, client_id: str, group: str = "g") -> GroupPeer:
        made.append(GroupPeer(broker, client_id, group))
        return made[-1]

    yield make
    for one in made:
        await one.client.close()


async def groups(broker: Stack) -> dict[str, GroupRow]:
    """The groups of a broker, by name."""
    reply = await broker.client.call(RequestCode.GROUP_LIST, Empty())
    return {row.group: row for row in rows(GroupRow, reply.header(GroupListResponse).groups)}
