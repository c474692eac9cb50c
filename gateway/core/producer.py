"""The producer of one worker towards one broker: batches, sequences, resending. Sans-IO.

::

    add ──► open batch ──seal──► waiting ──send──► in flight ──► answered: receipts settled
              │ grows while       ▲                   │
              │ IN_FLIGHT_GROUP   │                   ├─ retriable refusal: back to waiting, in order,
              │ are in flight     └───────────────────┤   sent again when nothing is in flight and
              ▼                                       │   the pause is over
            BATCH_MAX_BYTES                           └─ connection lost: back to waiting as they are

Sequences count records per queue and are given when a batch is sealed; a batch is resent with the
runs that it had, so that the broker knows what it has already (wire.md, PRODUCE). What is given
up raises the epoch: the broker then stops waiting for the missing sequences.
"""

from __future__ import annotations

from collections import deque
from struct import pack
from typing import Any, Final
from zlib import crc32

from gateway.core.receipts import CLOSE, Receipt
from holdmq.errors import CODES, Code
from holdmq.mqtt.reasons import ReasonCode
from holdmq.wire.headers import ProduceRun, RunResult

BATCH_MAX_BYTES: Final = 1 << 20
"""A batch this large leaves at once: one write of the log, and far below the frame limit."""
IN_FLIGHT_GROUP: Final = 2
"""With this many on their way the open batch waits and grows: one is written while one travels."""
IN_FLIGHT_MAX: Final = 8
"""Full batches on their way: a broker's answer time at full speed is a few of them."""
PENDING_MAX_BYTES: Final = 16 << 20
"""Unconfirmed bytes per broker; past it sockets are not read. Twice what can be in flight."""
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
EPOCH_MAX: Final = (1 << 31) - 1

REFUSALS: Final[dict[Code, int]] = {
    Code.NOT_PERMITTED: ReasonCode.NOT_AUTHORIZED,
    Code.TOPIC_PERM: ReasonCode.NOT_AUTHORIZED,
    Code.TOPIC_INVALID: ReasonCode.TOPIC_NAME_INVALID,
    Code.TAG_INVALID: ReasonCode.TOPIC_NAME_INVALID,
    Code.TOPIC_LIMIT: ReasonCode.QUOTA_EXCEEDED,
    Code.LIMIT_EXCEEDED: ReasonCode.QUOTA_EXCEEDED,
    Code.RECORD_TOO_LARGE: ReasonCode.QUOTA_EXCEEDED,
}
"""Refusals that are the message's own: it is answered. All other final ones end the connection, as an
answer would tell an MQTT 3 client that the log has what it has not."""
_REROUTE: Final = frozenset((Code.QUEUE_UNKNOWN, Code.TOPIC_UNKNOWN))
"""The route is stale: trying the same queue again would not help."""


class Target:
    """One queue at one broker, as a place to send to; `run` is its part of the open batch."""

    __slots__ = ("next_sequence", "producer", "queue_id", "run", "topic")

    def __init__(self, producer: Producer, topic: str, queue_id: int) -> None:
        self.producer = producer
        self.topic = topic
        self.queue_id = queue_id
        self.next_sequence = 0
        self.run: Run | None = None


class Run:
    """Consecutive records of one queue, and who is owed for them."""

    __slots__ = ("first_sequence", "receipts", "records", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.records: list[bytes] = []
        self.receipts: list[Receipt] = []
        self.first_sequence = 0


class Batch:
    """Runs that travel in one PRODUCE."""

    __slots__ = ("runs", "serial", "size_bytes")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.size_bytes = 0
        self.serial = 0

    def encode(self) -> tuple[bytes, bytes, int]:
        """Sizes, records, and the CRC-32 of both as one body."""
        records: list[bytes] = []
        for run in self.runs:
            records += run.records
        sizes = pack(f">I{len(records)}I", len(records), *map(len, records))
        joined = b"".join(records)
        return sizes, joined, crc32(joined, crc32(sizes))

    def produce_runs(self, producer_id: int, epoch: int) -> list[ProduceRun]:
        """The header's rows."""
        return [
            ProduceRun(
                run.target.topic,
                run.target.queue_id,
                len(run.records),
                producer_id,
                epoch,
                run.first_sequence,
            )
            for run in self.runs
        ]


class Producer:
    """Batches towards one broker.

    The shell calls `next_batch` until None at the end of a turn, sends each, and tells what became
    of it: `answered`, `refused` (whole), or `disconnected` for all in flight. Counters are plain
    attributes: `batches`, `records`, `refused_records`, `resent_batches`, `abandoned_records`. `shell` is
    the owner's own; `record_max_bytes` is what the broker accepts (it refuses a whole batch for one record
    that is larger), 0 = not known yet.
    """

    __slots__ = (
        "_backoff_s",
        "_open",
        "_open_bytes",
        "_refused",
        "_serial",
        "_targets",
        "_waiting",
        "abandoned_records",
        "batches",
        "epoch",
        "in_flight",
        "is_connected",
        "must_reroute",
        "pending_bytes",
        "producer_id",
        "progress_at",
        "record_max_bytes",
        "records",
        "refused_records",
        "resent_batches",
        "retry_at",
        "shell",
    )

    def __init__(self, producer_id: int, now: float, shell: Any = None) -> None:
        self.producer_id = producer_id
        self.shell = shell
        self.record_max_bytes = 0
        self.epoch = 1
        self.is_connected = False
        self.in_flight: dict[int, Batch] = {}
        self.pending_bytes = 0
        self.retry_at = 0.0
        self.progress_at = now
        self.must_reroute = False
        self.batches = self.records = self.resent_batches = 0
        self.refused_records = self.abandoned_records = 0
        self._open = Batch()
        self._open_bytes = 0
        self._waiting: deque[Batch] = deque()
        self._refused: list[Batch] = []
        self._targets: dict[tuple[str, int], Target] = {}
        self._serial = 0
        self._backoff_s = BACKOFF_MIN_S

    @property
    def is_full(self) -> bool:
        """Whether sockets that publish here must not be read."""
        return self.pending_bytes > PENDING_MAX_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is settled."""
        return not (self._open_bytes or self._waiting or self.in_flight or self._refused)

    def target(self, topic: str, queue_id: int) -> Target:
        """The one Target of this queue."""
        key = (topic, queue_id)
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = Target(self, topic, queue_id)
        return target

    def open_run(self, target: Target, now: float) -> Run:
        """The target's run in the open batch, begun if there is none. The caller appends to its records
        and receipts, and then calls `added`."""
        run = target.run
        if run is None:
            if self.is_idle:
                self.progress_at = now
            run = target.run = Run(target)
            self._open.runs.append(run)
        return run

    def added(self, size_bytes: int) -> None:
        """Records of this size were appended to runs of the open batch."""
        self._open_bytes += size_bytes
        self.pending_bytes += size_bytes
        if self._open_bytes >= BATCH_MAX_BYTES:
            self._waiting.append(self._seal())

    def next_batch(self, now: float) -> Batch | None:
        """The batch to send now, or None: nothing to send, or it should wait."""
        if not self.is_connected or now < self.retry_at or len(self.in_flight) >= IN_FLIGHT_MAX:
            return None
        if self._refused:
            if self.in_flight:
                return None
            self._take_back()
        if self._waiting:
            batch = self._waiting.popleft()
        elif self._open_bytes and len(self.in_flight) < IN_FLIGHT_GROUP:
            batch = self._seal()
        else:
            return None
        self.in_flight[batch.serial] = batch
        self.batches += 1
        return batch

    def answered(self, batch: Batch, results: list[RunResult], retry_after_ms: int, now: float) -> None:
        """The broker answered each run: settle receipts, keep what is to be sent again."""
        if self.in_flight.pop(batch.serial, None) is None:
            return
        again: list[Run] = []
        for run, result in zip(batch.runs, results, strict=True):
            if result.status == 0:
                self.records += len(run.records)
                for receipt in run.receipts:
                    receipt.settle(0)
                continue
            code = _code(result.status)
            if code in _REROUTE:
                self.must_reroute = True
                self._give_up(run, CLOSE | ReasonCode.SERVER_BUSY)
            elif CODES[code].retriable:
                again.append(run)
            else:
                self._give_up(run, REFUSALS.get(code, CLOSE | ReasonCode.SERVER_BUSY))
        if again:
            batch.runs = again
            self._keep(batch, retry_after_ms, now)
        else:
            self.pending_bytes -= batch.size_bytes
            self._backoff_s = BACKOFF_MIN_S
            self.progress_at = now

    def refused(self, batch: Batch, code: Code, retry_after_ms: int, now: float) -> None:
        """The broker refused the whole batch."""
        if self.in_flight.pop(batch.serial, None) is None:
            return
        if CODES[code].retriable:
            self._keep(batch, retry_after_ms, now)
            return
        for run in batch.runs:
            self._give_up(run, CLOSE | ReasonCode.SERVER_BUSY)
        self.pending_bytes -= batch.size_bytes
        self.epoch = min(self.epoch + 1, EPOCH_MAX)

    def connected(self) -> None:
        """A connection is there: what was unanswered goes first, in its order."""
        self.is_connected = True
        self.retry_at = 0.0

    def disconnected(self) -> None:
        """The connection is gone; whether the broker has what was in flight is unknown."""
        self.is_connected = False
        self._refused += self.in_flight.values()
        self.in_flight.clear()

    def stuck_s(self, now: float) -> float:
        """For how long nothing has been confirmed although something waits."""
        return 0.0 if self.is_idle else now - self.progress_at

    def abandon(self) -> None:
        """Drop everything: its sessions end unanswered and send again to another queue."""
        if self._open_bytes:
            self._waiting.append(self._seal())
        for batch in (*self.in_flight.values(), *self._refused, *self._waiting):
            for run in batch.runs:
                self._give_up(run, CLOSE | ReasonCode.SERVER_BUSY)
                self.abandoned_records += len(run.records)
        self.in_flight.clear()
        self._refused.clear()
        self._waiting.clear()
        self.pending_bytes = 0
        self.epoch = min(self.epoch + 1, EPOCH_MAX)

    def _seal(self) -> Batch:
        batch = self._open
        batch.size_bytes = self._open_bytes
        for run in batch.runs:
            target = run.target
            if not run.records:  # its only record was refused after the run was opened
                target.run = None
                for receipt in run.receipts:
                    receipt.settle(0)
                continue
            run.first_sequence = target.next_sequence
            target.next_sequence += len(run.records)
            target.run = None
        batch.runs = [run for run in batch.runs if run.records]
        self._serial += 1
        batch.serial = self._serial
        self._open = Batch()
        self._open_bytes = 0
        return batch

    def _keep(self, batch: Batch, retry_after_ms: int, now: float) -> None:
        self._refused.append(batch)
        # Doubling keeps a broker that stays under pressure from being asked again and again.
        self.retry_at = max(self.retry_at, now + max(self._backoff_s, retry_after_ms / 1000))
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)

    def _take_back(self) -> None:
        self._refused.sort(key=lambda batch: batch.serial)
        self.resent_batches += len(self._refused)
        self._waiting.extendleft(reversed(self._refused))
        self._refused.clear()

    def _give_up(self, run: Run, outcome: int) -> None:
        self.refused_records += len(run.records)
        for receipt in run.receipts:
            receipt.settle(outcome)


def _code(status: int) -> Code:
    try:
        return Code(status)
    except ValueError:
        return Code.SYSTEM_ERROR
