"""The pull consumer of a group: it is polled, and says itself how far the group is.

For what a handler does not fit: a transaction over many messages, a loop of one's own, a file that is written
every minute. At least once: what was not committed comes again, to whoever has the queue then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from holdmq.client.allocation import Allocate, Strategy
from holdmq.client.group_progress import BrokerProgress
from holdmq.client.group_pulls import BUFFER_MAX_BYTES, BUFFER_MAX_MESSAGES
from holdmq.client.hand_out import HandedJob
from holdmq.client.lifecycle import StartAt
from holdmq.client.offset_store import DIRECTORY
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.queue_member import REPORT_S, QueueMember
from holdmq.client.rebalance import RELEASE_WAIT_S
from holdmq.client.route import RouteTable
from holdmq.client.settling import SUSPEND_S
from holdmq.errors import UsageError
from holdmq.message import Message, TopicQueue
from holdmq.rpc.security import Security

COMMIT_TIMEOUT_S: Final = 10.0

log = structlog.get_logger("holdmq.client")


class GroupPullConsumer(QueueMember):
    """A member that is polled: `async with GroupPullConsumer(["host:9876"], "billing", ["meters"]) as one`.

    `poll` gives messages, `commit` says that they are done with: only then the group goes on behind them. A
    queue has at most `holdmq.client.process_queue.SPAN_MAX` (2,000) messages that are not committed; `poll`
    then gives those of other queues. The group is of mode clustering, and may have members of both kinds.

    When members come or go, a queue is given to another one once all that was polled of it is committed, or
    after `release_wait_s`. Then `commit` names the queue: what was not committed comes again over there.
    The other settings are those of `Consumer`.
    """

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        topics: Iterable[str] | Mapping[str, str],
        *,
        start: StartAt | None = None,
        strategy: str | Strategy | Allocate = "average",
        client_id: str = "",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        buffer_max_bytes: int = BUFFER_MAX_BYTES,
        buffer_max_messages: int = BUFFER_MAX_MESSAGES,
        release_wait_s: float = RELEASE_WAIT_S,
        room: str = "",
        tenant: str = "",
    ) -> None:
        super().__init__(
            registries,
            group,
            topics,
            mode="clustering",
            batch_max=1,
            start=start,
            ordered=False,
            concurrency=1,
            strategy=strategy,
            client_id=client_id,
            routes=routes,
            security=security,
            cluster=cluster,
            buffer_max_bytes=buffer_max_bytes,
            buffer_max_messages=buffer_max_messages,
            offsets_directory=DIRECTORY,
            report_s=REPORT_S,
            suspend_s=SUSPEND_S,
            release_wait_s=release_wait_s,
            room=room,
            tenant=tenant,
        )
        self._polled: dict[int, HandedJob] = {}
        """What is in the caller's hands, by the identity of its message."""
        self._came = asyncio.Event()

    async def poll(self, messages_max: int = 500, hold_ms: int = 1_000) -> list[Message]:
        """The next messages, up to `messages_max`; [] if none came within `hold_ms`.

        Those of one queue come in their order, but for those that were sent back (`retry_later`). Raises
        UsageError when the consumer is not started, or closed.
        """
        self._check_started()
        if self._is_closed:
            raise UsageError("the consumer is closed")
        deadline = time.monotonic() + hold_ms / 1000
        while True:
            self._came.clear()
            found: list[Message] = []
            while len(found) < messages_max and (job := self._take()) is not None:
                self._polled[id(job.first)] = job
                found.append(job.first)
            left_s = deadline - time.monotonic()
            if found or left_s <= 0 or self._is_closed:
                return found
            if self._hand_out.has_more:
                await asyncio.sleep(0)
                continue
            try:
                async with asyncio.timeout(left_s):
                    await self._came.wait()
            except TimeoutError:
                return []

    async def commit(
        self,
        messages: Iterable[Message] | None = None,
        *,
        wait_for_disk: bool = False,
        timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> frozenset[TopicQueue]:
        """Be done with these messages (None = all that was polled); back when the brokers have it.

        The queues that are another member's now: what was polled of them comes again there. The group goes on
        no further than to the first message of a queue that is not committed. `wait_for_disk`: the broker's
        disk has it. Raises UsageError for messages that are not in hand, and TransportError or RemoteError of
        a broker that does not answer: commit again, an empty list will do.
        """
        jobs = self._in_hand(messages)
        lost: set[TopicQueue] = set()
        touched: set[ProcessQueue] = set()
        for job in jobs:
            del self._polled[id(job.first)]
            queue = job.process.queue
            if self._queues.get(queue) is job.process:
                self._hand_out.finished(job)
                self._settling.handled += 1
            else:
                self._hand_out.let_go(job)
                lost.add(queue)
            touched.add(job.process)
        assert isinstance(self._progress, BrokerProgress)
        try:
            lost |= await self._progress.commit(self._queues, wait_for_disk, timeout_s)
        finally:
            for process in touched:
                self._settled(process)
        if lost:
            log.warning("queues are another member's now; what was polled of them comes again there",
                        group=self.group, queues=sorted(map(str, lost)))  # fmt: skip
        return frozenset(lost)

    async def retry_later(self, messages: Iterable[Message]) -> None:
        """Let messages come again later, to any member, as after a handler that failed; the rest goes on.

        Raises UsageError for messages that are not in hand.
        """
        for job in self._in_hand(messages):
            del self._polled[id(job.first)]
            await self._settling.settle(job, False)

    def _in_hand(self, messages: Iterable[Message] | None) -> list[HandedJob]:
        if messages is None:
            return list(self._polled.values())
        jobs: list[HandedJob] = []
        for message in messages:
            job = self._polled.get(id(message))
            if job is None or job.first is not message:
                raise UsageError(
                    f"message {message.queue_offset} of {message.topic} is not in hand: it was committed "
                    "before, or no poll of this consumer gave it"
                )
            jobs.append(job)
        return jobs

    # holdmq.client.queue_member.QueueMember

    def _offered(self, jobs: int) -> None:
        if jobs:
            self._came.set()

    def _running(self) -> int:
        return len(self._polled)

    async def _stop_work(self, timeout_s: float) -> int:
        self._came.set()
        for job in self._polled.values():
            self._hand_out.let_go(job)  # never committed: the next member gets it
        self._polled.clear()
        return 0

    async def _end_work(self, timeout_s: float) -> int:
        return 0
