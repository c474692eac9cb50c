"""The push consumer: a member of a group that calls a handler for each message, or for lists of them.

At least once: a message is delivered again when its member ends before it was reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holdmq.client.allocation import Allocate, Strategy
from holdmq.client.group_pulls import BUFFER_MAX_BYTES, BUFFER_MAX_MESSAGES
from holdmq.client.hand_out import HandedJob
from holdmq.client.lifecycle import CONCURRENCY, StartAt
from holdmq.client.offset_store import DIRECTORY
from holdmq.client.queue_member import REPORT_S, Mode, QueueMember
from holdmq.client.rebalance import RELEASE_WAIT_S
from holdmq.client.route import RouteTable
from holdmq.client.settling import SUSPEND_S
from holdmq.client.workers import BatchHandler, Handler, Workers
from holdmq.rpc.security import Security


class Consumer(QueueMember):
    """Calls `handler` for messages: `async with Consumer(["host:9876"], "billing", handle, ["meters"]):`.

    `handler(message)`: a coroutine function, or a plain one, which runs on a thread. What it returns, or that
    it raises, is told by `holdmq.client.workers.Handler`. `topics`: names, or names with filters
    (`holdmq.client.subscriptions`); all members of a group must want the same. `start`: where the group's
    first start in a topic is: `latest`, `earliest`, or a datetime with its zone (what was stored from then
    on); None = `latest`, or `earliest` where the topic says so of its first group, and this is that. Later
    ones go on where it was.

    `batch_max` above 1 (to 1,000): the handler is given a list of messages of one queue, as many as are there
    and at most so many; it may return those that failed (`holdmq.client.workers.BatchHandler`).

    `ordered`: one message of a queue (or one list) at a time, and one that failed holds its queue until it
    succeeds; else up to `concurrency` at once, and one that failed comes again later (clustering: sent back;
    broadcast: logged and given up). `strategy`: `holdmq.client.allocation`, the same for all members;
    `room`: the machine room in which this member is, by which `machine_room` goes ("" = none).

    `client_id` names the member and must be its own; in broadcast its positions are under it, so it must
    stay the same (default: the host's name). `routes`: share this RouteTable in place of `registries`.
    `tenant`: topics and the group are named in its words, "" = in whole names.
    """

    def __init__(
        self,
        registries: Sequence[str],
        group: str,
        handler: Handler | BatchHandler,
        topics: Iterable[str] | Mapping[str, str] = (),
        *,
        mode: Mode = "clustering",
        batch_max: int = 1,
        start: StartAt | None = None,
        ordered: bool = False,
        concurrency: int = CONCURRENCY,
        strategy: str | Strategy | Allocate = "average",
        client_id: str = "",
        routes: RouteTable | None = None,
        security: Security | None = None,
        cluster: str = "",
        buffer_max_bytes: int = BUFFER_MAX_BYTES,
        buffer_max_messages: int = BUFFER_MAX_MESSAGES,
        offsets_directory: str | Path = DIRECTORY,
        report_s: float = REPORT_S,
        suspend_s: float = SUSPEND_S,
        release_wait_s: float = RELEASE_WAIT_S,
        room: str = "",
        tenant: str = "",
    ) -> None:
        super().__init__(
            registries,
            group,
            topics,
            mode=mode,
            batch_max=batch_max,
            start=start,
            ordered=ordered,
            concurrency=concurrency,
            strategy=strategy,
            client_id=client_id,
            routes=routes,
            security=security,
            cluster=cluster,
            buffer_max_bytes=buffer_max_bytes,
            buffer_max_messages=buffer_max_messages,
            offsets_directory=offsets_directory,
            report_s=report_s,
            suspend_s=suspend_s,
            release_wait_s=release_wait_s,
            room=room,
            tenant=tenant,
        )
        self._workers: Workers[HandedJob] = Workers(
            handler, concurrency, self._take, self._settling.settle, takes_many=batch_max > 1
        )

    def _offered(self, jobs: int) -> None:
        self._workers.wake(jobs)

    def _running(self) -> int:
        return self._workers.running

    async def _stop_work(self, timeout_s: float) -> int:
        # In clustering each queue is given back as soon as its own handlers are done.
        return 0 if self._is_clustering else await self._workers.close(timeout_s)

    async def _end_work(self, timeout_s: float) -> int:
        return await self._workers.close(timeout_s)
