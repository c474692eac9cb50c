"""What becomes of a message after its handler: finished, tried again here, sent back, or given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import structlog

from holdmq.client.hand_out import HandedMessage, HandOut
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.route import RouteTable
from holdmq.errors import Code, HoldMQError, RemoteError
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
    """What to do with a message that failed."""

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

    async def settle(self, job: HandedMessage, is_done: bool) -> None:
        """A handler is through with a job: finish it, or do what its failure asks for."""
        if is_done:
            self.handled += 1
            self._hand_out.finished(job)
        else:
            self.failed += 1
            await self._settle_failed(job)
        self._on_settled(job.process)

    async def _settle_failed(self, job: HandedMessage) -> None:
        process = job.process
        loop = asyncio.get_running_loop()
        if self._queues.get(process.queue) is not process:
            self._hand_out.let_go(job)  # somebody else consumes it now
        elif self._failure is Failure.RETRY_HERE:
            self._retry(job, loop.time() + self._suspend_s)
        elif self._failure is Failure.GIVE_UP:
            self.given_up += 1
            log.error("a message is given up: broadcast has no retries", group=self._group,
                      queue=str(process.queue), offset=job.taken.offset)  # fmt: skip
            self._hand_out.finished(job)
        else:
            try:
                await self._send_back(job)
            except HoldMQError as error:
                log.warning("a failed message cannot be sent back; it is tried again here", group=self._group,
                            queue=str(process.queue), offset=job.taken.offset, reason=str(error))  # fmt: skip
                self._retry(job, loop.time() + SEND_BACK_AGAIN_S)
            else:
                self.sent_back += 1
                self._hand_out.finished(job)

    async def _send_back(self, job: HandedMessage) -> None:
        """Let a message come again later, to any member; returns when that is in the log."""
        queue, offset = job.process.queue, job.taken.offset
        sent = SentBack(queue.topic, queue.queue_id, offset, job.message.reconsume_times - job.failures, 0)
        link = self._routes.link(queue.broker)
        reply = await link.client.call(
            RequestCode.SEND_BACK, SendBackRequest(self._group, [sent]), SEND_BACK_TIMEOUT_S
        )
        (result,) = rows(SendBackResult, reply.header(SendBackResponse).results)
        if result.status not in (Code.OK, Code.MESSAGE_UNKNOWN):
            raise RemoteError(Code(result.status), result.remark)

    def _retry(self, job: HandedMessage, at: float) -> None:
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
