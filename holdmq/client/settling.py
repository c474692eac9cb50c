"""What becomes of messages after their handler: finished, tried again here, sent back, or given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

import structlog

from holdmq.client.hand_out import HandedJob, HandOut
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.route import RouteTable
from holdmq.client.workers import Outcome
from holdmq.errors import Code, HoldMQError
from holdmq.message import TopicQueue
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.move_headers import SendBackRequest, SendBackResponse, SendBackResult, SentBack

SUSPEND_S: Final = 1.0
"""Pause of an ordered queue after its message failed (RocketMQ's suspendCurrentQueueTimeMillis)."""
SEND_BACK_TIMEOUT_S: Final = 5.0
SEND_BACK_AGAIN_S: Final = 5.0
"""When a message that failed cannot be sent back either, it is tried again here after this."""

log = structlog.get_logger("holdmq.client")


class Failure(Enum):
    """What to do with messages that failed."""

    RETRY_HERE = "ordered: its queue waits, then tries it again"
    SEND_BACK = "clustering: it comes again later, to any member"
    GIVE_UP = "broadcast: there are no retries"


class JobSettling:
    """Settles jobs of `hand_out`. `queues` is the caller's dict, which it changes.

    `on_settled(process)` is called after each job, `wake(jobs)` when failed ones are due again.
    """

    def __init__(
        self,
        routes: RouteTable,
        group: str,
        queues: Mapping[TopicQueue, ProcessQueue],
        hand_out: HandOut,
        *,
        failure: Failure,
        suspend_s: float,
        on_settled: Callable[[ProcessQueue], None],
        wake: Callable[[int], None],
    ) -> None:
        self.handled = self.failed = self.sent_back = self.given_up = 0
        self._routes = routes
        self._group = group
        self._queues = queues
        self._hand_out = hand_out
        self._failure = failure
        self._suspend_s = suspend_s
        self._on_settled = on_settled
        self._wake = wake
        self._is_closed = False
        self._retry_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Try nothing again any more."""
        self._is_closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    async def settle(self, job: HandedJob, outcome: Outcome) -> None:
        """A handler is through with a job: finish it, or do what the failure of some of it asks for."""
        failed = self._failed_of(job, outcome)
        self.handled += len(job.messages) - len(failed)
        self.failed += len(failed)
        if not failed:
            self._hand_out.finished(job)
        else:
            if len(failed) < len(job.messages):
                self._hand_out.keep(job, failed)
            await self._settle_failed(job)
        self._on_settled(job.process)

    def _failed_of(self, job: HandedJob, outcome: Outcome) -> Sequence[int]:
        """Which messages of a job are to be handled again; where order counts, all from the first one on."""
        every = range(len(job.messages))
        if isinstance(outcome, bool):
            return every[:0] if outcome else every
        if not outcome:
            return every[:0]
        named = set(map(id, outcome))
        failed = [index for index in every if id(job.messages[index]) in named]
        if len(failed) < len(named):
            log.error("a handler names messages as failed that it was not given; all of them come again",
                      group=self._group, queue=str(job.process.queue))  # fmt: skip
            return every
        return every[failed[0] :] if self._failure is Failure.RETRY_HERE else failed

    async def _settle_failed(self, job: HandedJob) -> None:
        process = job.process
        loop = asyncio.get_running_loop()
        if self._queues.get(process.queue) is not process:
            self._hand_out.let_go(job)  # somebody else consumes it now
        elif self._failure is Failure.RETRY_HERE:
            self._retry(job, loop.time() + self._suspend_s)
        elif self._failure is Failure.GIVE_UP:
            self.given_up += len(job.messages)
            log.error("messages are given up: broadcast has no retries", group=self._group,
                      queue=str(process.queue), offsets=[taken.offset for taken in job.taken])  # fmt: skip
            self._hand_out.finished(job)
        else:
            try:
                refused = await self._send_back(job)
                reason = refused[0][1] if refused else ""
            except HoldMQError as error:
                refused, reason = [(index, str(error)) for index in range(len(job.messages))], str(error)
            self.sent_back += len(job.messages) - len(refused)
            if not refused:
                self._hand_out.finished(job)
                return
            if len(refused) < len(job.messages):
                self._hand_out.keep(job, [index for index, _ in refused])
            offsets = [taken.offset for taken in job.taken]
            log.warning("failed messages cannot be sent back; they are tried again here", group=self._group,
                        queue=str(process.queue), offsets=offsets, reason=reason)  # fmt: skip
            self._retry(job, loop.time() + SEND_BACK_AGAIN_S)

    async def _send_back(self, job: HandedJob) -> list[tuple[int, str]]:
        """Let messages come again later, to any member; returns when that is in the log.

        Those that are refused, by their places in the job, and why.
        """
        queue = job.process.queue
        sent = [
            SentBack(queue.topic, queue.queue_id, taken.offset, message.reconsume_times - job.failures, 0)
            for taken, message in zip(job.taken, job.messages, strict=True)
        ]
        link = self._routes.link(queue.broker)
        reply = await link.client.call(
            RequestCode.SEND_BACK, SendBackRequest(self._group, sent), SEND_BACK_TIMEOUT_S
        )
        results = rows(SendBackResult, reply.header(SendBackResponse).results)
        return [
            (index, f"{Code(result.status).name} {result.remark}")
            for index, result in enumerate(results)
            if result.status not in (Code.OK, Code.MESSAGE_UNKNOWN)
        ]

    def _retry(self, job: HandedJob, at: float) -> None:
        if job.process.is_stopped:
            self._hand_out.let_go(job)  # the next member gets it: the floor stays below it
            return
        self._hand_out.retry(job, at)
        self._set_retry_timer()

    def _set_retry_timer(self, earliest: float = 0.0) -> None:
        at = self._hand_out.next_retry()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if at is not None and not self._is_closed:
            self._retry_timer = asyncio.get_running_loop().call_at(max(at, earliest), self._retries_due)

    def _retries_due(self) -> None:
        self._wake(self._hand_out.later)
        self._set_retry_timer(asyncio.get_running_loop().time() + 0.05)
