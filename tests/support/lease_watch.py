"""Members of a group that ask every replica of a shard for the leases of its queues, whoever leads.

They believe a grant for as long as the SDK would (`holdmq.client.rebalance`): from its answer until
`lease_ms` after the request was sent, unless the connection is lost or a later answer takes the queue away.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from holdmq.errors import Code, HoldMQError, RemoteError, TransportError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import (
    CLUSTERING,
    GroupJoinRequest,
    GroupSubscription,
    LeasedQueue,
    QueueLeaseRequest,
    QueueLeaseResponse,
    WantedQueue,
)
from holdmq.wire.header import rows
from holdmq.wire.offset_headers import (
    OffsetGetRequest,
    OffsetGetResponse,
    OffsetReport,
    OffsetReportRequest,
    OffsetReportResponse,
    OffsetResult,
    OffsetRow,
)

ASK_S: Final = 0.2
CALL_S: Final = 3.0
GROUP: Final = "leases"


@dataclass
class Holding:
    """A queue in a member's hands, by that member's clock."""

    queue_id: int
    holder: str
    generation: int
    begin: float
    end: float


class LeaseWatch(threading.Thread):
    """Takes and renews leases until `stop`, and reports offsets of queues it holds.

    `addresses`: of each replica's clients. `placed`: the next offset of each queue, which may be reported.
    """

    def __init__(
        self, addresses: Mapping[str, str], topic: str, queues: int, placed: Callable[[int], int]
    ) -> None:
        super().__init__(name="lease watch", daemon=True)
        self.holdings: list[Holding] = []
        self.errors: list[str] = []
        self.reports = 0
        self._addresses = addresses
        self._topic = topic
        self._queues = queues
        self._placed = placed
        self._durable: dict[int, int] = defaultdict(int)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Ask until `stop`."""
        asyncio.run(self._watch())

    def stop(self) -> None:
        """End, with every connection."""
        self._stopping.set()
        self.join(30.0)

    async def _watch(self) -> None:
        tasks = [
            asyncio.create_task(self._member(f"member-{number}", replica, address))
            for number in range(2)
            for replica, address in self._addresses.items()
        ]
        await asyncio.gather(*tasks)

    async def _member(self, name: str, replica: str, address: str) -> None:
        """One member at one replica, whose leases end with its connection."""
        held: dict[int, Holding] = {}
        now = asyncio.get_running_loop().time

        def lost(_: HoldMQError) -> None:
            for holding in held.values():
                holding.end = min(holding.end, now())
            held.clear()

        client = Client(address, "client", name, on_down=lost, on_request=lambda _: None)
        joined = None
        try:
            while not self._stopping.is_set():
                try:
                    connection = await client.connected(CALL_S)
                    if joined is not connection:
                        wish = [GroupSubscription(self._topic, "*")]
                        await client.call(
                            RequestCode.GROUP_JOIN,
                            GroupJoinRequest(GROUP, CLUSTERING, wish, "average"),
                            CALL_S,
                        )
                        joined = connection
                    await self._ask(client, f"{name} at {replica}", held)
                    await self._report(client, held)
                    await self._look(client, replica)
                except TransportError:
                    joined = None
                except RemoteError as error:
                    # A member that is none any more joins again; all else passes.
                    if error.code in (Code.GROUP_UNKNOWN, Code.GROUP_FENCED):
                        joined = None
                except HoldMQError:
                    pass  # not answered in time: what is held runs out
                await asyncio.sleep(ASK_S)
        finally:
            await client.close()

    async def _ask(self, client: Client, holder: str, held: dict[int, Holding]) -> None:
        now = asyncio.get_running_loop().time
        generations = {
            queue: held[queue].generation if queue in held and held[queue].end > now() else 0
            for queue in range(self._queues)
        }
        wanted = [WantedQueue(self._topic, queue, generation) for queue, generation in generations.items()]
        asked_at = now()
        reply = await client.call(RequestCode.QUEUE_LEASE, QueueLeaseRequest(GROUP, wanted), CALL_S)
        answer = reply.header(QueueLeaseResponse)
        until = asked_at + answer.lease_ms / 1000
        for row in rows(LeasedQueue, answer.queues):
            known = held.get(row.queue_id)
            if known is not None and (row.generation != known.generation or row.status != Code.OK):
                known.end = min(known.end, now())
                del held[row.queue_id]
                known = None
            if row.status != Code.OK or not row.generation:
                continue
            if known is not None and known.end > now():
                known.end = max(known.end, until)
            elif until > now():
                held[row.queue_id] = Holding(row.queue_id, holder, row.generation, now(), until)
                self.holdings.append(held[row.queue_id])

    async def _report(self, client: Client, held: dict[int, Holding]) -> None:
        """Report, durably, how far each held queue is: from then on nobody may see less."""
        now = asyncio.get_running_loop().time
        for queue, holding in list(held.items()):
            offset = self._placed(queue)
            if holding.end <= now() or offset <= self._durable[queue]:
                continue
            header = OffsetReportRequest(
                GROUP, [OffsetReport(self._topic, queue, holding.generation, offset, 0)], True
            )
            reply = await client.call(RequestCode.OFFSET_REPORT, header, CALL_S)
            if not rows(OffsetResult, reply.header(OffsetReportResponse).refused):
                self.reports += 1
                self._durable[queue] = max(self._durable[queue], offset)

    async def _look(self, client: Client, replica: str) -> None:
        """Ask how far the group is."""
        least = dict(self._durable)
        reply = await client.call(RequestCode.OFFSET_GET, OffsetGetRequest(GROUP, [self._topic]), CALL_S)
        found = {row.queue_id: row.offset for row in rows(OffsetRow, reply.header(OffsetGetResponse).offsets)}
        for queue, offset in least.items():
            if offset and found.get(queue, -1) < offset:
                self.errors.append(
                    f"the offset of queue {queue} went back: {replica} says {found.get(queue, -1)}, and "
                    f"{offset} was reported and durable"
                )

    def check(self) -> None:
        """No two held one queue at once, and no offset went back."""
        assert not self.errors, self.errors[:3]
        by_queue: dict[int, list[Holding]] = defaultdict(list)
        for holding in self.holdings:
            by_queue[holding.queue_id].append(holding)
        problems = []
        for held in by_queue.values():
            held.sort(key=lambda holding: holding.begin)
            for before, after in pairwise(held):
                if before.end > after.begin:
                    problems.append(
                        f"queue {after.queue_id}: {after.holder} has it from {after.begin:.2f}, and "
                        f"{before.holder} until {before.end:.2f}"
                    )
        assert not problems, f"{len(problems)} times two members had a queue at once: {problems[:3]}"
