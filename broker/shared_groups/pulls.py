"""SHARED_PULL: claim messages, read them, hand them out; park the pull when there are none.

Claims are read from memory at once, or on the reader pool; what was claimed and not handed out, as bytes ran
out or the member is gone, waits again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from broker.kernel.statistics import Statistics
from broker.shared_groups.core.members import SharedGroup, SharedGroupMember
from broker.shared_groups.core.queue import Claim
from broker.shared_groups.core.shared import Shared
from broker.shared_groups.reads import Chosen, choose
from broker.shared_groups.starts import SharedStarts
from broker.topics.core.table import TopicTable
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.record.origin import retry_topic
from holdmq.rpc.connection import Request
from holdmq.wire.shared_headers import SharedDelivery, SharedPullRequest, SharedPullResponse
from storage.api.queues import HashFilter, MessageQueues, QueueRead, ReadStatus

PULL_MAX_BYTES: Final = 8 << 20
"""Largest answer (but always one record), as for PULL."""
HOLD_MAX_MS: Final = 120_000
SCANS_MAX: Final = 16
"""Reads without a result in one turn of the loop: what a filter rejects must not hold it up."""
SCAN_MIN_S: Final = 0.1
"""How long a pull that is not held may look for what its filter wants, turn by turn of the loop."""

log = structlog.get_logger("holdmq.broker")


class HeldPull(NamedTuple):
    """A pull in hand; `until` is the loop's time at which it is answered whatever was found."""

    request: Request
    header: SharedPullRequest
    member: SharedGroupMember
    until: float


class SharedPulls:
    """Serves pulls. `is_paused` says whether a group is to get nothing.

    `settle` does what a step led to (broker.shared_groups.requests).
    """

    def __init__(
        self,
        core: Shared,
        store: MessageQueues,
        topics: TopicTable,
        starts: SharedStarts,
        statistics: Statistics,
        is_paused: Callable[[str], bool],
        may_hand_out: Callable[[], bool],
        settle: Callable[[], None],
    ) -> None:
        self.is_draining = False
        self.cold_reads = self.damaged = self.parked = 0
        self._core = core
        self._store = store
        self._topics = topics
        self._starts = starts
        self._statistics = statistics
        self._is_paused = is_paused
        self._may_hand_out = may_hand_out
        self._settle = settle
        self._loop = asyncio.get_running_loop()

    def pump(self, group: SharedGroup) -> None:
        """Serve parked pulls, the longest parked first, while there is something for them."""
        for parked in list(group.waiting.values()):
            if parked.is_over:
                continue
            if parked.member.room <= 0:
                self._core.rest(parked)
                continue
            pull = parked.owner
            assert isinstance(pull, HeldPull)
            claims = self._claim(parked.member, pull.header.messages_max)
            if claims:
                self._core.unpark(parked.member)
                self.serve(pull, claims)
            elif len(parked.member.topics) >= len(group.filters):
                return  # there is nothing for anybody

    def begin(self, request: Request, header: SharedPullRequest, member: SharedGroupMember) -> None:
        """Serve a new pull."""
        hold_s = min(max(header.hold_ms / 1e3, SCAN_MIN_S), HOLD_MAX_MS / 1e3)
        self.serve(HeldPull(request, header, member, self._loop.time() + hold_s))

    def serve(self, pull: HeldPull, claims: list[Claim] | None = None) -> None:
        for _ in range(SCANS_MAX):
            claims = claims or self._claim(pull.member, pull.header.messages_max)
            if not claims:
                self._park(pull)
                return
            reads = self._read(pull, claims)
            if reads is None:
                self._read_cold(pull, claims)
                return
            if self._hand_out(pull, claims, reads):
                return
            claims = None
        self._loop.call_soon(self._serve_on, pull)

    def _serve_on(self, pull: HeldPull) -> None:
        if pull.member.is_gone or self._loop.time() >= pull.until:
            self.reply(pull, [])  # how far it looked is kept
        else:
            self.serve(pull)
        self._settle()

    def _claim(self, member: SharedGroupMember, count: int) -> list[Claim]:
        if self.is_draining or member.is_gone or self._is_paused(member.group.name):
            return []
        if not self._may_hand_out():
            return []  # another broker may have the shard: who pulls again asks it
        self._starts.refresh(member.group)
        return self._core.claim(member, count, self._is_readable)

    def _is_readable(self, topic: str) -> bool:
        known = self._topics.get(topic)
        return known is not None and known.is_readable and not known.is_paused

    def _read(self, pull: HeldPull, claims: list[Claim]) -> list[QueueRead] | None:
        """One read per claim until the bytes are enough; None when one of them needs the disk."""
        reads: list[QueueRead] = []
        left = _credit(pull.header)
        for claim in claims:
            read = self._store.read_queue(*self._place(claim), left, claim.count, self._hashes(claim))
            if read is None:
                return None
            reads.append(read)
            left -= read.size_bytes
            if left <= 0:
                break
        return reads

    def _read_cold(self, pull: HeldPull, claims: list[Claim]) -> None:
        self.cold_reads += 1
        plans = [(claim, self._hashes(claim)) for claim in claims]
        store = self._store

        def read_all() -> list[QueueRead]:
            reads: list[QueueRead] = []
            left = _credit(pull.header)
            for claim, hashes in plans:
                reads.append(store.read_queue_cold(*self._place(claim), left, claim.count, hashes))
                left -= reads[-1].size_bytes
                if left <= 0:
                    break
            return reads

        future = self._loop.run_in_executor(store.reader_pool, read_all)

        def done(finished: asyncio.Future[list[QueueRead]]) -> None:
            error = None if finished.cancelled() else finished.exception()
            if finished.cancelled() or error is not None:
                self._hand_out(pull, claims, [])
                pull.member.is_pulling = False
                refusal = error if isinstance(error, HoldMQError) else None
                pull.request.refuse(refusal or RemoteError(Code.SYSTEM_ERROR, f"the read failed: {error}"))
            elif not self._hand_out(pull, claims, finished.result()):
                self._serve_on(pull)
            self._settle()

        future.add_done_callback(done)

    def _place(self, claim: Claim) -> tuple[str, int, int, int]:
        return claim.queue.key.topic, claim.queue.key.queue_id, 0, claim.first

    def _hashes(self, claim: Claim) -> HashFilter | None:
        key = claim.queue.key
        wanted = self._core.groups[key.group].filters.get(key.topic)
        if wanted is None or not claim.is_fresh:
            return None
        hashes = wanted.hashes(key.topic, self._topics.key_levels(key.topic))
        return None if hashes is None else HashFilter(*hashes)

    def _hand_out(self, pull: HeldPull, claims: list[Claim], reads: list[QueueRead]) -> bool:
        """End the claims; True if there were messages, and the pull is answered."""
        member = pull.member
        invisible_ms = pull.header.invisible_ms or member.invisible_ms
        deadline = self._loop.time() + invisible_ms / 1e3
        found: list[tuple[SharedDelivery, Chosen]] = []
        for index, claim in enumerate(claims):
            if index >= len(reads):
                self._core.hand_out(member, claim, claim.first, [], deadline)
                continue
            key = claim.queue.key
            if reads[index].status is ReadStatus.CORRUPT:
                self._note_damage(claim, reads[index])
            wanted = member.group.filters[key.topic]
            looked = choose(claim, reads[index], wanted, key.topic == retry_topic(key.group))
            groups = [(chosen.mask, chosen.attempts) for chosen in looked.chosen]
            deliveries = self._core.hand_out(member, claim, looked.upto, groups, deadline)
            for delivery, chosen in zip(deliveries, looked.chosen, strict=False):
                row = SharedDelivery(
                    delivery.receipt, key.topic, key.queue_id, chosen.attempts, chosen.records,
                    chosen.size_bytes,
                )  # fmt: skip
                found.append((row, chosen))
        if not found:
            return False
        self.reply(pull, found)
        return True

    def _note_damage(self, claim: Claim, read: QueueRead) -> None:
        self.damaged += read.next_offset - claim.first
        log.error(
            "a message of a shared group is damaged, and passed by",
            group=claim.queue.key.group,
            topic=claim.queue.key.topic,
            queue_id=claim.queue.key.queue_id,
            offset=claim.first,
            reason=read.reason,
        )

    def reply(self, pull: HeldPull, found: list[tuple[SharedDelivery, Chosen]]) -> None:
        pull.member.is_pulling = False
        parts: list[memoryview] = []
        size = 0
        for row, chosen in found:
            parts += chosen.parts
            size += chosen.size_bytes
            of_group = self._statistics.of_group(pull.member.group.name, row.topic)
            for counts in (self._statistics.of(row.topic, row.queue_id), of_group):
                counts.taken(chosen.records, chosen.size_bytes)
        if found:
            source = self._statistics.of_connection(pull.request.connection)
            source.taken(sum(chosen.records for _, chosen in found), size)
        invisible_ms = pull.header.invisible_ms or pull.member.invisible_ms
        pull.request.reply(SharedPullResponse([row for row, _ in found], invisible_ms), parts, size)

    def _park(self, pull: HeldPull) -> None:
        now = self._loop.time()
        if pull.header.hold_ms <= 0 or now >= pull.until or pull.member.is_gone or self.is_draining:
            self.reply(pull, [])
            return
        self.parked += 1
        self._core.park(pull.member, pull, pull.until)


def _credit(header: SharedPullRequest) -> int:
    return max(1, min(header.max_bytes, PULL_MAX_BYTES))
