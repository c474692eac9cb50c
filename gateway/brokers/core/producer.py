"""The producer of one worker towards one broker: batches, sequences, resending. Sans-IO.

::

    add ──► open batch ──seal──► waiting ──send──► in flight ──► answered: receipts settled
              │ grows while       ▲                   │
              │ IN_FLIGHT_GROUP   │                   ├─ retriable refusal: back to waiting, in order,
              │ are in flight, or └───────────────────┤   sent again when nothing is in flight and
              ▼ a large one is                        │   the pause is over
            PRODUCE_MAX_BYTES                         └─ connection lost: back to waiting as they are

Sequences count records per queue and are given when a batch is sealed; a batch is resent with the
runs that it had, so that the broker knows what it has already (wire.md, PRODUCE). After a give-up
that the broker did not count it would wait for sequences that never come. Then a new epoch begins:
nothing new leaves until every answer is in and nothing is left of which it is unknown whether the
broker has it, and only then is everything that waits numbered anew. Numbering anew what may be
stored would store it twice, and new sequences beside old ones would be taken for repeats.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from struct import pack
from typing import Final

from gateway.ground.receipts import CLOSE
from gateway.ground.targets import ProducerLink, QueueRecords, RecordProducer, Target
from holdmq.errors import CODES, Code, WireError, code_of
from holdmq.mqtt.reasons import ReasonCode
from holdmq.produce import PRODUCE_MAX_BYTES, new_producer_id
from holdmq.produce.body import ProduceBody, produce_body
from holdmq.produce.pauses import pause_s
from holdmq.produce.refusals import (
    MAYBE_STORED,
    STALE_ROUTE,
    SURELY_NOT_STORED,
    is_sent_again,
    leaves_gap,
)
from holdmq.wire.headers import ProduceRun, RunResult

IN_FLIGHT_GROUP: Final = 2
"""With this many on their way the open batch waits and grows: one is written while one travels."""
LARGE_RECORDS: Final = 64
"""Behind a batch of so many records the open one waits for its answer: a worker is busy then, and fewer and
larger ones cost both ends less than what this one would gain by travelling earlier."""
IN_FLIGHT_MAX: Final = 8
"""Full batches on their way: a broker's answer time at full speed is a few of them."""
PENDING_MAX_BYTES: Final = 16 << 20
"""Unconfirmed bytes per broker; past it sockets are not read. Twice what can be in flight."""
EPOCH_MAX: Final = (1 << 31) - 1

REFUSALS: Final[dict[Code, int]] = {
    Code.NOT_PERMITTED: ReasonCode.NOT_AUTHORIZED,
    Code.TOPIC_PERM: ReasonCode.NOT_AUTHORIZED,
    Code.TOPIC_INVALID: ReasonCode.TOPIC_NAME_INVALID,
    Code.TAG_INVALID: ReasonCode.TOPIC_NAME_INVALID,
    Code.KIND_UNFIT: ReasonCode.TOPIC_NAME_INVALID,
    Code.TOPIC_LIMIT: ReasonCode.QUOTA_EXCEEDED,
    Code.LIMIT_EXCEEDED: ReasonCode.QUOTA_EXCEEDED,
    Code.RECORD_TOO_LARGE: ReasonCode.QUOTA_EXCEEDED,
    Code.QUOTA_EXCEEDED: ReasonCode.QUOTA_EXCEEDED,
}
"""Refusals that are the message's own: it is answered. All other final ones end the connection, as an
answer would tell an MQTT 3 client that the log has what it has not."""


class ProduceBatch:
    """Runs that travel in one PRODUCE."""

    __slots__ = ("runs", "serial", "size_bytes")

    def __init__(self) -> None:
        self.runs: list[QueueRecords] = []
        self.size_bytes = 0
        self.serial = 0

    @property
    def records(self) -> int:
        """How many it has."""
        count = 0
        for run in self.runs:
            count += len(run.records)
        return count

    @property
    def may_be_stored(self) -> bool:
        """Whether the broker may have a part of it without our knowing."""
        return any(run.may_be_stored for run in self.runs)

    def encode(self) -> ProduceBody:
        """The body that has the records of all runs."""
        records: list[bytes] = []
        for run in self.runs:
            records += run.records
        count = len(records)
        return produce_body(count, [pack(f">{count}I", *map(len, records))], [b"".join(records)])

    def produce_runs(self, producer_id: int, epoch: int) -> list[ProduceRun]:
        """Make the rows of the header."""
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

    def delayed(self) -> list[int]:
        """The indices of the rows whose records wait until they are due."""
        return [index for index, run in enumerate(self.runs) if run.is_delayed]

    def noted(self) -> list[int]:
        """The indices of the rows of which the broker is to leave out what it has already."""
        return [index for index, run in enumerate(self.runs) if run.is_noted]


class BrokerProducer(RecordProducer):
    """Batches towards one broker.

    The link calls `next_batch` until None at the end of a turn, sends each, and tells what became
    of it: `answered`, `refused` (whole), or `disconnected` for all in flight. What that settled is in
    `take_settled`, so that the broker's next work can leave before all these are answered. Counters are plain
    attributes: `batches`, `records`, `refused_records`, `resent_batches`, `abandoned_records`, `epochs`,
    `delayed_records`.
    The broker refuses a whole batch for one record that is larger than `record_max_bytes`. `new_id` gives the
    next producer id when this one is used up or fenced.
    """

    __slots__ = (
        "_attempts",
        "_is_epoch_due",
        "_is_fenced",
        "_is_large",
        "_new_id",
        "_open",
        "_open_bytes",
        "_refused",
        "_serial",
        "_settled",
        "_targets",
        "_waiting",
        "abandoned_records",
        "batches",
        "delayed_records",
        "epoch",
        "epochs",
        "in_flight",
        "is_connected",
        "lead_lost",
        "must_reroute",
        "pending_bytes",
        "producer_id",
        "records",
        "refused_records",
        "resent_batches",
        "retry_at",
    )

    def __init__(
        self, producer_id: int, link: ProducerLink, new_id: Callable[[], int] = new_producer_id
    ) -> None:
        super().__init__(link)
        self.producer_id = producer_id
        self.epoch = 1
        self.is_connected = False
        self.in_flight: dict[int, ProduceBatch] = {}
        self.pending_bytes = 0
        self.retry_at = 0.0
        self.must_reroute = False
        self.lead_lost = ""
        """What the broker said when it led its shard no more: the connection is to end."""
        self.batches = self.records = self.resent_batches = 0
        self.refused_records = self.abandoned_records = self.epochs = self.delayed_records = 0
        self._new_id = new_id
        self._open = ProduceBatch()
        self._open_bytes = 0
        self._waiting: deque[ProduceBatch] = deque()
        self._refused: list[ProduceBatch] = []
        self._settled: list[QueueRecords] = []
        self._targets: dict[tuple[str, int], Target] = {}
        self._serial = 0
        self._attempts = 0
        """Refusals since the broker took a batch."""
        self._is_epoch_due = False
        self._is_fenced = False
        self._is_large = False

    @property
    def is_full(self) -> bool:
        """Whether sockets that publish here must not be read."""
        return self.pending_bytes > PENDING_MAX_BYTES

    @property
    def must_hold(self) -> bool:
        """Whether sockets that publish here must not be read now."""
        return not self.is_connected or self.is_full

    @property
    def is_put_off(self) -> bool:
        """Whether the broker refused what it was sent last, and it is sent again later."""
        return self._attempts > 0

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

    def targets(self) -> list[Target]:
        """Every queue that was ever sent to."""
        return list(self._targets.values())

    def open_run(self, target: Target, now: float, is_delayed: bool = False) -> QueueRecords:
        """The target's run in the open batch, begun if there is none. The caller appends at least one record
        (and receipts), and then calls `added`."""
        run = target.delayed_run if is_delayed else target.run
        if run is None:
            if not target.runs:
                target.progress_at = now
            run = QueueRecords(target, is_delayed)
            if is_delayed:
                target.delayed_run = run
            else:
                target.run = run
            target.runs.append(run)
            self._open.runs.append(run)
        return run

    def added(self, size_bytes: int) -> None:
        """Records of this size were appended to runs of the open batch."""
        self._open_bytes += size_bytes
        self.pending_bytes += size_bytes
        if self._open_bytes >= PRODUCE_MAX_BYTES:
            self._waiting.append(self._seal())

    def next_batch(self, now: float) -> ProduceBatch | None:
        """The batch to send now, or None: nothing to send, or it should wait."""
        if not self.is_connected or now < self.retry_at or len(self.in_flight) >= IN_FLIGHT_MAX:
            return None
        if self._refused:
            if self.in_flight:
                return None
            self._take_back()
        if self._is_epoch_due and not any(batch.may_be_stored for batch in self._waiting):
            if self.in_flight:
                return None
            self._begin_epoch()
        if self._waiting:
            batch = self._waiting.popleft()
        elif self._open_bytes and len(self.in_flight) < (1 if self._is_large else IN_FLIGHT_GROUP):
            batch = self._seal()
        else:
            return None
        self.in_flight[batch.serial] = batch
        self._is_large = batch.records >= LARGE_RECORDS
        self.batches += 1
        return batch

    def answered(
        self, batch: ProduceBatch, results: list[RunResult], retry_after_ms: int, now: float
    ) -> None:
        """The broker answered each run: settle it, or keep it to be sent again.

        Raises WireError, and has changed nothing, when there is not one result per run: the peer is broken,
        and whether it has the batch is found out by sending it again over another connection.
        """
        if batch.serial not in self.in_flight:
            return
        if len(results) != len(batch.runs):
            raise WireError(f"{len(results)} results for the {len(batch.runs)} runs of a PRODUCE")
        del self.in_flight[batch.serial]
        decided = zip(batch.runs, results, strict=True)
        again = [run for run, result in decided if self._decide(run, result, now)]
        if again:
            batch.runs = again
            self._keep(batch, retry_after_ms, now)
        else:
            self.pending_bytes -= batch.size_bytes
            self._attempts = 0

    def _decide(self, run: QueueRecords, result: RunResult, now: float) -> bool:
        """Settle one run by its result; True = it must be sent again."""
        if run.is_settled:
            return False  # given up while it was on its way
        target = run.target
        if result.status == 0:
            self.records += len(run.records)
            if run.is_delayed:
                self.delayed_records += len(run.records)
            self._settle(run, 0, now)
            return False
        code = code_of(result.status)
        # Whatever is refused behind a run that is still owed was not counted by the broker.
        is_oldest = target.runs[0] is run
        if is_sent_again(code):
            if code in SURELY_NOT_STORED:
                run.may_be_stored = False
            elif code in MAYBE_STORED:
                run.may_be_stored = True
            if code == Code.NOT_LEADER:
                self.lead_lost = result.remark or code.name
            if code == Code.OUT_OF_SEQUENCE and is_oldest:
                self._is_epoch_due = True  # what the broker waits for is not ours to send any more
            return True
        if code in STALE_ROUTE:
            self.must_reroute = True
        if code == Code.PRODUCER_FENCED:
            self._is_fenced = True
        if leaves_gap(code) or not is_oldest:
            self._is_epoch_due = True
        self._give_up(run, REFUSALS.get(code, CLOSE | ReasonCode.SERVER_BUSY), now)
        return False

    def refused(self, batch: ProduceBatch, code: Code, retry_after_ms: int, now: float) -> None:
        """The broker refused the whole batch."""
        if self.in_flight.pop(batch.serial, None) is None:
            return
        if CODES[code].retriable:
            if code in MAYBE_STORED:
                for run in batch.runs:
                    run.may_be_stored = True
            self._keep(batch, retry_after_ms, now)
            return
        for run in batch.runs:
            self._give_up(run, CLOSE | ReasonCode.SERVER_BUSY, now)
        self.pending_bytes -= batch.size_bytes
        self._is_epoch_due = True

    def take_settled(self) -> list[QueueRecords]:
        """The runs that were settled since the last call, in that order: their receipts are to be told."""
        settled, self._settled = self._settled, []
        return settled

    def connected(self) -> None:
        """A connection is there: what was unanswered goes first, in its order."""
        self.is_connected = True
        self.retry_at = 0.0

    def disconnected(self) -> None:
        """The connection is gone; whether the broker has what was in flight is unknown."""
        self.is_connected = False
        for batch in self.in_flight.values():
            for run in batch.runs:
                run.may_be_stored = True
        self._refused += self.in_flight.values()
        self.in_flight.clear()

    def stuck(self, since: float) -> list[Target]:
        """The targets of which nothing has been settled since then although something waits."""
        return [t for t in self._targets.values() if t.runs and t.progress_at < since]

    def abandon(self, targets: Iterable[Target], now: float) -> None:
        """Give up all that waits for these targets: its sessions end unanswered and send it again."""
        if self._open_bytes:
            self._waiting.append(self._seal())
        for target in targets:
            for run in list(target.runs):
                self.abandoned_records += len(run.records)
                self._give_up(run, CLOSE | ReasonCode.SERVER_BUSY, now)
                self._is_epoch_due = True
        # On its way or not: of a batch in which nobody is interested nothing is sent again.
        for serial, batch in list(self.in_flight.items()):
            if self._is_given_up(batch):
                del self.in_flight[serial]
        self._waiting = deque(batch for batch in self._waiting if not self._is_given_up(batch))
        self._refused = [batch for batch in self._refused if not self._is_given_up(batch)]
        for batch in (*self._waiting, *self._refused):
            batch.runs = [run for run in batch.runs if not run.is_settled]

    def _is_given_up(self, batch: ProduceBatch) -> bool:
        """Whether nothing of a batch is owed; its bytes are then pending no more."""
        if not all(run.is_settled for run in batch.runs):
            return False
        self.pending_bytes -= batch.size_bytes
        return True

    def _seal(self) -> ProduceBatch:
        batch = self._open
        batch.size_bytes = self._open_bytes
        for run in batch.runs:
            run.target.run = run.target.delayed_run = None
            _number(run)
        self._serial += 1
        batch.serial = self._serial
        self._open = ProduceBatch()
        self._open_bytes = 0
        return batch

    def _keep(self, batch: ProduceBatch, retry_after_ms: int, now: float) -> None:
        self._refused.append(batch)
        # The producer's own phase keeps workers that were refused together from coming again together.
        pause = pause_s(self._attempts, retry_after_ms, (self.producer_id & 0xFF) / 512)
        self.retry_at = max(self.retry_at, now + pause)
        self._attempts += 1

    def _take_back(self) -> None:
        self._refused.sort(key=lambda batch: batch.serial)
        self.resent_batches += len(self._refused)
        for batch in self._refused:
            batch.runs = [run for run in batch.runs if not run.is_settled]
        self._waiting.extendleft(reversed(self._refused))
        self._refused.clear()

    def _begin_epoch(self) -> None:
        """Number everything that waits anew. Nothing is in flight, and nothing that waits may be stored."""
        self._is_epoch_due = False
        self.epochs += 1
        if self._is_fenced or self.epoch >= EPOCH_MAX:
            self._is_fenced = False
            self.producer_id = self._new_id()
            self.epoch = 1
        else:
            self.epoch += 1
        for target in self._targets.values():
            target.next_sequence = 0
        for batch in self._waiting:
            for run in batch.runs:
                _number(run)

    def _settle(self, run: QueueRecords, outcome: int, now: float) -> None:
        run.outcome = outcome
        self._settled.append(run)
        target = run.target
        target.progress_at = now
        if target.runs[0] is run:
            target.runs.popleft()
        else:
            target.runs.remove(run)
        if target.on_idle is not None and not target.runs:
            on_idle, target.on_idle = target.on_idle, None
            on_idle()

    def _give_up(self, run: QueueRecords, outcome: int, now: float) -> None:
        if not run.is_settled:
            self.refused_records += len(run.records)
            self._settle(run, outcome, now)


def _number(run: QueueRecords) -> None:
    """Give a run the next sequences of its target."""
    target = run.target
    run.first_sequence = target.next_sequence
    target.next_sequence += len(run.records)
