"""PRODUCE: parse and check a batch as a whole, decide run by run, append, answer on confirmation."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from broker.kernel.request_family import RequestFamily
from broker.kernel.statistics import Statistics
from broker.produce.bounds import MessageBounds
from broker.produce.core.delays import waiting_records
from broker.produce.core.produced import (
    PRODUCED_QUEUE,
    ProducedRow,
    binding,
    crcs_of,
    delayed_run,
    mark_of,
    record_of,
)
from broker.produce.core.received import ReceivedIds
from broker.produce.core.sending import ProducingConnections
from broker.produce.core.sequences import Key, SequencedBatch, Sequences, Verdict
from broker.topics.core.table import Topic, TopicTable
from holdmq.credentials.access_keys import Grants
from holdmq.credentials.permissions import Action
from holdmq.errors import Code, HoldMQError, RemoteError, StorageError, WireError
from holdmq.names.topics import PRODUCED_TOPIC, is_system_topic
from holdmq.record.batch import body_sizes_of, check_entries, hashes_of, starts_of
from holdmq.record.check import check_properties
from holdmq.record.once import Once
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceRequest, ProduceResponse, ProduceRun, RunResult
from storage.api.batches import Batch, BatchRun
from storage.api.store import OrderedStore
from storage.api.timer import TIMER_QUEUE, TIMER_TOPIC

_COUNT: Final = struct.Struct(">I")
BACKLOG_AGE_MAX_MS: Final = 200
"""A writer this far behind answers BUSY: a device's PUBACK is late already, more would only queue."""
BACKLOG_MAX_BYTES: Final = 128 << 20
"""Bytes handed to the writer and not yet confirmed; past it BUSY. Two tail caches."""
RETRY_AFTER_MS: Final = 50
_NOWHERE: Final = frozenset((Code.TOPIC_UNKNOWN, Code.QUEUE_UNKNOWN, Code.NOT_PERMITTED))
"""Refusals for a queue that is not there: no sequence of it is consumed, it may come to be. Nor for one that
the producer may not use: his windows would push those of others out."""


class _Pending:
    """One PRODUCE in hand: a result per run, and how many runs still wait for the store."""

    __slots__ = ("began_at", "header", "positions", "request", "results", "retry_after_ms", "waiting")

    def __init__(self, request: Request, header: ProduceRequest, runs: int, began_at: float) -> None:
        self.began_at = began_at
        self.request = request
        self.header = header
        self.results: list[RunResult | None] = [None] * runs
        self.positions: dict[int, list[int]] = {}
        self.retry_after_ms = RETRY_AFTER_MS
        """What is said if anything of it is refused for the moment."""
        self.waiting = 0

    def settle(self, index: int, code: int, base_offset: int, remark: str = "") -> None:
        self.results[index] = RunResult(code, base_offset, remark)

    def answer_if_done(self) -> None:
        if self.waiting:
            return
        results = [r for r in self.results if r is not None]
        positions = None
        if self.header.want_positions:
            positions = [self.positions.get(i, []) for i in range(len(results))]
        busy = any(r.status == Code.BUSY for r in results)
        self.request.reply(ProduceResponse(results, positions, self.retry_after_ms if busy else 0))


class _Body:
    """What a PRODUCE carries: checked records, their sizes and encoded properties, one for each."""

    __slots__ = ("has_keys", "properties", "records", "sizes")

    def __init__(
        self, records: memoryview, sizes: npt.NDArray[np.int64], properties: list[bytes], has_keys: bool
    ) -> None:
        self.records = records
        self.sizes = sizes
        self.properties = properties
        self.has_keys = has_keys


_Waiting = list[bytes] | RemoteError


class _Accepted:
    """A run that goes to the store, and where its answer belongs.

    `count` records go; `stored` before them are in the log since before a crash, from `stored_at` on.
    `kept`: of those behind them only these go, the others are repeats; None = all. `notes` are what their
    broker keeps of those that go.
    """

    __slots__ = (
        "count",
        "index",
        "is_temporary",
        "kept",
        "key",
        "key_levels",
        "notes",
        "run",
        "sequenced",
        "stored",
        "stored_at",
    )

    def __init__(
        self,
        index: int,
        run: ProduceRun,
        topic: Topic,
        key: Key,
        sequenced: SequencedBatch,
        stored: int = 0,
        stored_at: int = -1,
    ) -> None:
        self.count = sequenced.records
        self.index = index
        self.run = run
        self.key_levels = topic.key_levels
        self.is_temporary = topic.is_temporary
        self.key = key
        self.sequenced = sequenced
        self.stored = stored
        self.stored_at = stored_at
        self.kept: list[int] | None = None
        self.notes: list[tuple[int, Once]] | None = None

    def base_offset(self, offset: int) -> int:
        """The whole run's, when what goes now begins at `offset`; -1 = it is not in one piece."""
        if self.kept is not None:
            return -1
        if not self.stored:
            return offset
        return self.stored_at if self.stored_at >= 0 and self.stored_at + self.stored == offset else -1


RoleOf = Callable[[Connection], str]
"""What a connection's HELLO said that it is; "" = nothing yet."""


class PublishQuotas(Protocol):
    """Knows who may publish how fast."""

    @property
    def has_rates(self) -> bool:
        """Whether anybody has a rate to keep; looked at by each PRODUCE."""

    def senders(self, grants: Grants | None, topics: Iterable[str]) -> tuple[str, ...]:
        """Whose quotas hold for what a connection publishes to these topics."""

    @property
    def has_kept(self) -> bool:
        """Whether what anybody keeps is limited; looked at by each PRODUCE."""

    def is_full(self, topic: str) -> RemoteError | None:
        """The refusal of more for a topic whose tenant keeps all that it may; None = there is room."""

    def wait_s(self, senders: tuple[str, ...], messages: int, size_bytes: int) -> float:
        """For how long somebody with so many messages has to wait, 0 = he may send now."""

    def sent(self, senders: tuple[str, ...], messages: int, size_bytes: int) -> None:
        """Count what is sent by somebody who needed not wait."""


class Produce(RequestFamily):
    """Handles PRODUCE for one broker. Counters are plain numbers for the metrics."""

    def __init__(
        self,
        store: OrderedStore,
        topics: TopicTable,
        statistics: Statistics,
        record_max_bytes: int,
        bounds: MessageBounds,
        role_of: RoleOf,
        quotas: PublishQuotas,
        clock_ms: Callable[[], int],
    ) -> None:
        self.sequences = Sequences()
        self.received = ReceivedIds()
        self.batches = 0
        self.refused_runs = 0
        self.delayed = 0
        self._quotas = quotas
        self._role_of = role_of
        self._clock_ms = clock_ms
        self._store = store
        self._topics = topics
        self._statistics = statistics
        self.producing: ProducingConnections[Connection] = ProducingConnections()
        self._record_max_bytes = record_max_bytes
        self._bounds = bounds
        self.refused_small = 0

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.PRODUCE: self.handle}

    def closed(self, connection: Connection) -> None:
        self.producing.close(connection)

    def numbers(self) -> Mapping[str, int]:
        return {
            "producing_connections": len(self.producing),
            "produce_batches_total": self.batches,
            "produce_runs_refused_total": self.refused_runs,
            "produce_delayed_total": self.delayed,
            "produce_runs_too_small_total": self.refused_small,
            "producer_windows": len(self.sequences),
            "producer_repeats_total": self.sequences.repeats,
            "producer_windows_evicted_total": self.sequences.evicted,
            "publishes_known": self.received.ids,
            "publishes_known_evicted_total": self.received.evicted,
            "publishes_repeated_total": self.received.repeats,
            "publishes_stale_total": self.received.stale,
        }

    def handle(self, request: Request) -> None:
        """Answer one PRODUCE, now or when the store has confirmed it."""
        header = request.header(ProduceRequest)
        runs = rows(ProduceRun, header.runs)
        quotas = self._quotas
        senders: tuple[str, ...] = ()
        if quotas.has_rates:
            senders = quotas.senders(request.connection.grants, [run.topic for run in runs])
            if senders and self._must_wait(request, header, runs, senders):
                return
        body = self._parse(request.body, header, runs)
        self.batches += 1
        if senders:
            quotas.sent(senders, len(body.sizes), len(body.records))
        now = time.monotonic()
        pending = _Pending(request, header, len(runs), now)
        busy = self._is_busy()
        if not self._store.is_owned():
            # Windows and topics may be older than what another broker has stored and answered since: an
            # OUT_OF_SEQUENCE of theirs would have that numbered anew, and stored twice.
            for index in range(len(runs)):
                self.refused_runs += 1
                pending.settle(index, Code.BUSY, -1, "another broker may have this one's shard")
            pending.answer_if_done()
            return
        later = self._wait_for(header, runs, body) if header.delayed else {}
        accepted: list[_Accepted] = []
        noted = frozenset(header.noted)
        first = 0
        for index, run in enumerate(runs):
            taken = self._offer(pending, index, run, now, busy, later.get(index), body)
            if taken is not None and index in noted:
                taken = self._sift(pending, taken, first, now, body)
            if taken is not None:
                accepted.append(taken)
            first += run.records
        if accepted:
            self._append_all(pending, accepted, runs, body, later)
        pending.answer_if_done()

    def _must_wait(
        self, request: Request, header: ProduceRequest, runs: list[ProduceRun], senders: tuple[str, ...]
    ) -> bool:
        """Answer BUSY unless its sender keeps its rate; the body of one that must wait is not looked at."""
        grants = request.connection.grants
        messages = sum([max(0, run.records) for run in runs])
        wait_s = self._quotas.wait_s(senders, messages, len(request.body))
        if wait_s <= 0:
            return False
        now = time.monotonic()
        pending = _Pending(request, header, len(runs), now)
        pending.retry_after_ms = int(wait_s * 1000) + 1
        for index, run in enumerate(runs):
            self.refused_runs += 1
            if self._topics.get(run.topic) is not None and _denied(grants, run) is None:
                key = (run.producer_id, run.topic, run.queue_id)
                self.sequences.postpone(key, run.producer_epoch, run.first_sequence, now)
            pending.settle(index, Code.BUSY, -1, "the quota of its sender is used up for now")
        pending.answer_if_done()
        return True

    def _parse(self, body: memoryview, header: ProduceRequest, runs: list[ProduceRun]) -> _Body:
        if crc32(body) != header.crc:
            raise RemoteError(Code.BODY_CRC, f"the body's CRC-32 is not {header.crc:#010x}")
        if len(body) < 4:
            raise WireError("a PRODUCE body without its count", Code.MALFORMED_BATCH)
        (count,) = _COUNT.unpack_from(body)
        if count == 0 or count != sum(r.records for r in runs) or any(r.records <= 0 for r in runs):
            raise RemoteError(Code.MALFORMED_BATCH, f"the runs do not add up to {count} records")
        begin = 4 + 4 * count
        if begin > len(body):
            raise RemoteError(Code.MALFORMED_BATCH, f"{count} sizes do not fit a body of {len(body)} bytes")
        sizes = np.frombuffer(body[4:begin], dtype=">u4").astype(np.int64)
        largest = int(sizes.max())
        if largest > self._record_max_bytes:
            raise RemoteError(
                Code.RECORD_TOO_LARGE,
                f"record {int(sizes.argmax())} has {largest} bytes, "
                f"record_max_bytes is {self._record_max_bytes}",
            )
        records = body[begin:]
        claimed = [(r.topic.encode(), r.queue_id, r.records) for r in runs]
        properties: list[bytes] = []
        bad = check_entries(records, sizes, claimed, self._record_max_bytes, properties)
        has_keys = False
        if bad is None:
            bad, has_keys = check_properties(properties)
        if bad is not None:
            raise RemoteError(Code.MALFORMED_BATCH, f"record {bad.entry}: {bad.reason}")
        return _Body(records, sizes, properties, has_keys)

    def _wait_for(self, header: ProduceRequest, runs: list[ProduceRun], body: _Body) -> dict[int, _Waiting]:
        """For each delayed run the records that wait in its place, or why there are none."""
        later: dict[int, _Waiting] = {}
        now_ms = self._clock_ms()
        firsts = np.cumsum([0, *(run.records for run in runs)]).tolist()
        starts = starts_of(body.sizes)
        ends = (starts + body.sizes).tolist()
        begins = starts.tolist()
        for index in header.delayed:
            topic = self._topics.get(runs[index].topic) if 0 <= index < len(runs) else None
            if topic is None:
                continue
            first, last = firsts[index], firsts[index + 1]
            records = [body.records[begins[i] : ends[i]] for i in range(first, last)]
            try:
                later[index] = waiting_records(topic, records, body.properties[first:last], now_ms)
            except RemoteError as error:
                later[index] = error
        return later

    def _is_busy(self) -> bool:
        size_bytes, age_ms = self._store.backlog()
        return age_ms > BACKLOG_AGE_MAX_MS or size_bytes > BACKLOG_MAX_BYTES

    def _offer(
        self,
        pending: _Pending,
        index: int,
        run: ProduceRun,
        now: float,
        busy: bool,
        waiting: _Waiting | None,
        body: _Body,
    ) -> _Accepted | None:
        key = (run.producer_id, run.topic, run.queue_id)
        connection = pending.request.connection
        topic = self._topics.get(run.topic)
        error = (
            _denied(connection.grants, run)
            or self._run_error(run, topic)
            or self._unseen(connection, run, topic)
            or (self._quotas.is_full(run.topic) if self._quotas.has_kept else None)
            or self._too_small(connection, pending, index, body)
        )
        if error is None and isinstance(waiting, RemoteError):
            error = waiting
        if error is not None:
            self.refused_runs += 1
            if error.code not in _NOWHERE and not self.sequences.consume(
                key, run.producer_epoch, run.first_sequence, run.records, now
            ):
                # Refused for good, its sequences would be a gap that nobody fills: in its turn, then.
                error = RemoteError(Code.OUT_OF_SEQUENCE, "an earlier batch of this producer is missing")
            pending.settle(index, error.code, -1, error.remark)
            return None
        if busy or self._topics.is_held(run.topic):
            self.refused_runs += 1
            self.sequences.postpone(key, run.producer_epoch, run.first_sequence, now)
            pending.settle(index, Code.BUSY, -1, "the writer is behind" if busy else "its keys are moving")
            return None
        verdict = self.sequences.offer(key, run.producer_epoch, run.first_sequence, run.records, now)
        if verdict.must_compare:
            verdict = self._compare(pending, index, key, body)
        if verdict.accepted is not None:
            assert topic is not None
            return _Accepted(index, run, topic, key, verdict.accepted, verdict.stored, verdict.base_offset)
        repeat = verdict.repeat
        if repeat is None:
            self.refused_runs += 1
            pending.settle(index, verdict.code, -1, verdict.remark)
        elif repeat.is_confirmed:
            pending.settle(index, Code.OK, repeat.base_offset)
        else:
            pending.waiting += 1
            repeat.wait((pending, index))
        return None

    def _sift(
        self, pending: _Pending, taken: _Accepted, first: int, now: float, body: _Body
    ) -> _Accepted | None:
        """Leave out of a run, whose records begin with the body's `first`, what was published before.

        None = nothing of it is to be stored now. It is a gateway that asks not to have them twice; of others
        the notes are but properties.
        """
        if self._role_of(pending.request.connection) != "gateway":
            return taken
        begin = first + taken.stored
        sifted = self.received.sift(body.properties[begin : begin + taken.count])
        if sifted is None:
            self.refused_runs += 1
            self.sequences.refuse(taken.key, taken.run.producer_epoch, taken.sequenced.first, now)
            pending.settle(taken.index, Code.BUSY, -1, "a publish of it is on its way already")
            return None
        taken.notes = sifted.notes
        if len(sifted.kept) == taken.count:
            return taken
        self.sequences.unbind(taken.key)
        if not sifted.kept:
            taken.sequenced.is_confirmed = True
            pending.settle(taken.index, Code.OK, sifted.offset)
            return None
        taken.kept = sifted.kept
        taken.count = len(sifted.kept)
        return taken

    def _compare(self, pending: _Pending, index: int, key: Key, body: _Body) -> Verdict:
        """Decide on a run that the log may have since before this broker was started."""
        runs = rows(ProduceRun, pending.header.runs)
        first = sum(run.records for run in runs[:index])
        run = runs[index]
        starts = starts_of(body.sizes)[first : first + run.records]
        return self.sequences.compare(key, run.first_sequence, run.records, crcs_of(body.records, starts))

    def _run_error(self, run: ProduceRun, topic: Topic | None) -> RemoteError | None:
        if topic is None:
            return RemoteError(Code.TOPIC_UNKNOWN, f"topic {run.topic!r} does not exist here")
        if is_system_topic(run.topic):
            return RemoteError(Code.TOPIC_INVALID, f"{run.topic!r} is a system topic")
        if topic.is_table:
            return RemoteError(Code.KIND_UNFIT, f"topic {run.topic!r} is a table: its rows are put, not sent")
        if not topic.is_writable:
            return RemoteError(Code.TOPIC_PERM, f"topic {run.topic!r} may not be written")
        if not (
            0 <= run.queue_id < topic.write_queues
            or self._topics.takes_records(topic, run.queue_id, time.monotonic())
        ):
            return RemoteError(Code.QUEUE_UNKNOWN, f"{run.topic!r} has {topic.write_queues} queues here")
        return None

    def _unseen(self, connection: Connection, run: ProduceRun, topic: Topic | None) -> RemoteError | None:
        """The refusal of a gateway's run for a topic that MQTT cannot see."""
        if topic is None or not topic.is_temporary or self._role_of(connection) != "gateway":
            return None
        return RemoteError(Code.KIND_UNFIT, f"topic {run.topic!r} is temporary: MQTT cannot see it")

    def _too_small(
        self, connection: Connection, pending: _Pending, index: int, body: _Body
    ) -> RemoteError | None:
        """The refusal of a run with a message below the least size; a gateway has refused its devices."""
        least = self._bounds.enforced()
        if not least or self._role_of(connection) == "gateway":
            return None
        runs = rows(ProduceRun, pending.header.runs)
        first = sum(run.records for run in runs[:index])
        starts = starts_of(body.sizes)[first : first + runs[index].records]
        smallest = int(body_sizes_of(body.records, starts).min())
        if smallest >= least:
            return None
        self.refused_small += 1
        return RemoteError(
            Code.MESSAGE_TOO_SMALL, f"a message of {smallest} bytes, message_bytes_min is {least}"
        )

    def _append_all(
        self,
        pending: _Pending,
        accepted: list[_Accepted],
        runs: list[ProduceRun],
        body: _Body,
        later: dict[int, _Waiting],
    ) -> None:
        """Append what was accepted; runs of temporary topics in a batch of their own, as no log has them."""
        memory = [a for a in accepted if a.is_temporary]
        if not memory or len(memory) == len(accepted):
            self._append(pending, accepted, runs, body, later)
            return
        kept = [a for a in accepted if not a.is_temporary]
        for part in (memory, kept):
            self._append(pending, part, runs, body, later)

    def _append(
        self,
        pending: _Pending,
        accepted: list[_Accepted],
        runs: list[ProduceRun],
        body: _Body,
        later: dict[int, _Waiting],
    ) -> None:
        if sum([a.count for a in accepted]) < len(body.sizes):
            body, later = _only(accepted, runs, body, later)
        if later:
            body = _with_waiting(accepted, body, later)
        properties = body.properties
        stored = []
        first = 0
        must_note = False
        for a in accepted:
            topic, queue_id, count = a.run.topic, a.run.queue_id, a.count
            must_note = must_note or a.sequenced.needs_binding or a.index in later
            if a.index in later:
                stored.append(BatchRun(TIMER_TOPIC, TIMER_QUEUE, count))
                first += count
                continue
            hashes = hashes_of(properties[first : first + count], a.key_levels, body.has_keys)
            stored.append(BatchRun(topic, queue_id, count, a.key_levels, hashes=hashes, is_hashed=True))
            first += count
        pending.waiting += len(accepted)
        noted: list[ProducedRow] = []
        if must_note and not accepted[0].is_temporary:
            noted = self._note(accepted, later, body)
            body = _behind(record_of(noted, self._store.epoch, len(body.records), self._clock_ms()), body)
            stored.insert(0, BatchRun(PRODUCED_TOPIC, PRODUCED_QUEUE, 1, is_hashed=True))

        def done(batch: Batch, error: StorageError | None) -> None:
            if error is None:
                for row in noted:
                    if row.is_binding:
                        self.sequences.bound(row.key, row.epoch, row.value, batch.position)
                self._confirmed(pending, accepted, batch, len(noted) > 0)
            else:
                if batch.position >= 0:
                    self._take_back(accepted)
                self._refused(pending, accepted, error)

        for a in accepted:
            if a.kept is not None:
                self.sequences.unbind(a.key)
        batch = Batch(body.records, body.sizes, stored, has_keys=body.has_keys)
        self._store.append(batch, done)
        if batch.position < 0 and not accepted[0].is_temporary:
            # Refused at once; `done` comes later, and what follows must not be accepted meanwhile.
            self._take_back(accepted)

    def _note(self, accepted: list[_Accepted], later: dict[int, _Waiting], body: _Body) -> list[ProducedRow]:
        """What the log must say of these runs, so that a start knows whose their records are."""
        noted: list[ProducedRow] = []
        begins = starts_of(body.sizes).tolist()
        first = 0
        for a in accepted:
            sequence = a.sequenced.first
            if a.index in later:
                noted.append(delayed_run(a.key, a.run.producer_epoch, sequence, a.count))
            elif a.sequenced.needs_binding:
                mark = mark_of(body.records[begins[first] :])
                noted.append(binding(a.key, self.sequences.bind(a.key, mark), sequence, mark))
            first += a.count
        return noted

    def _confirmed(self, pending: _Pending, accepted: list[_Accepted], batch: Batch, is_noted: bool) -> None:
        first = 1 if is_noted else 0
        took_us = int((time.monotonic() - pending.began_at) * 1e6)
        connection = pending.request.connection
        source = self._statistics.of_connection(connection)
        is_open = not connection.is_closed
        for a, run in zip(accepted, batch.runs[first:], strict=True):
            last = first + run.count
            # What waits has no place in its queue yet.
            is_delayed = run.topic == TIMER_TOPIC
            base_offset = -1 if is_delayed else run.base_offset
            a.sequenced.is_confirmed = True
            # Of a run that is not whole the sequences do not tell the offsets.
            a.sequenced.base_offset = base_offset if a.kept is None else -1
            if a.notes is not None:
                self.received.confirm(a.notes, base_offset)
            is_whole = not (is_delayed or a.stored) and a.kept is None
            if pending.header.want_positions and is_whole and batch.position >= 0:
                pending.positions[a.index] = (batch.position + batch.starts[first:last]).tolist()
            self.delayed += run.count if is_delayed else 0
            self._settle(pending, a, Code.OK, a.base_offset(base_offset))
            source.messages_in += run.count
            source.bytes_in += run.size_bytes
            if is_open:
                self.producing.sent(connection, a.run.topic, pending.began_at)
            counts = self._statistics.of(a.run.topic, a.run.queue_id)
            counts.messages_in += run.count
            counts.puts += 1
            counts.put_us += took_us
            counts.bytes_in += run.size_bytes
            first = last
        pending.answer_if_done()

    def _refused(self, pending: _Pending, accepted: list[_Accepted], error: HoldMQError) -> None:
        self.refused_runs += len(accepted)
        for a in accepted:
            if a.notes is not None:
                self.received.refuse(a.notes)
            self._settle(pending, a, error.code, -1, str(error))
        pending.answer_if_done()

    def _take_back(self, accepted: list[_Accepted]) -> None:
        now = time.monotonic()
        for a in accepted:
            self.sequences.refuse(a.key, a.run.producer_epoch, a.sequenced.first, now)

    def _settle(
        self, pending: _Pending, a: _Accepted, code: Code, base_offset: int, remark: str = ""
    ) -> None:
        pending.settle(a.index, code, base_offset, remark)
        pending.waiting -= 1
        for other, index in a.sequenced.take_waiting():
            other.settle(index, code, base_offset, remark)
            other.waiting -= 1
            other.answer_if_done()


def _with_waiting(accepted: list[_Accepted], body: _Body, later: dict[int, _Waiting]) -> _Body:
    """The body with waiting records in the place of delayed ones."""
    parts: list[memoryview | bytes] = []
    sizes: list[npt.NDArray[np.int64]] = []
    ends = np.cumsum(body.sizes)
    first = 0
    for a in accepted:
        last = first + a.count
        waiting = later.get(a.index)
        if isinstance(waiting, list):
            parts += waiting
            sizes.append(np.fromiter(map(len, waiting), np.int64, len(waiting)))
        else:
            begin = int(ends[first - 1]) if first else 0
            parts.append(body.records[begin : int(ends[last - 1])])
            sizes.append(body.sizes[first:last])
        first = last
    records = memoryview(bytearray().join(parts))
    return _Body(records, np.concatenate(sizes), body.properties, body.has_keys)


def _denied(grants: Grants | None, run: ProduceRun) -> RemoteError | None:
    if grants is None or grants.may_produce(run.topic):
        return None
    return grants.topic_denied(Action.PRODUCE, run.topic)


def _behind(record: bytes, body: _Body) -> _Body:
    """The body behind a record of our own."""
    sizes = np.concatenate([np.array([len(record)], np.int64), body.sizes])
    records = memoryview(bytearray().join((record, body.records)))
    return _Body(records, sizes, body.properties, body.has_keys)


def _only(
    accepted: list[_Accepted], runs: list[ProduceRun], body: _Body, later: dict[int, _Waiting]
) -> tuple[_Body, dict[int, _Waiting]]:
    """What goes of the accepted runs, copied together: refusals, repeats and runs stored in part are rare."""
    ends = np.cumsum(body.sizes)
    wanted = {a.index: a for a in accepted}
    parts: list[memoryview] = []
    sizes: list[npt.NDArray[np.int64]] = []
    properties: list[bytes] = []
    first = 0
    for index, run in enumerate(runs):
        last = first + run.records
        taken = wanted.get(index)
        if taken is not None:
            first += taken.stored
            kept = range(last - first) if taken.kept is None else taken.kept
            waiting = later.get(index)
            if len(kept) < run.records and isinstance(waiting, list):
                later = {**later, index: [waiting[taken.stored + at] for at in kept]}
            if taken.kept is None:
                begin = int(ends[first - 1]) if first else 0
                parts.append(body.records[begin : int(ends[last - 1])])
                sizes.append(body.sizes[first:last])
                properties += body.properties[first:last]
            else:
                for at in [first + at for at in taken.kept]:
                    parts.append(body.records[int(ends[at - 1]) if at else 0 : int(ends[at])])
                    properties.append(body.properties[at])
                sizes.append(body.sizes[first + np.array(taken.kept, np.int64)])
        first = last
    records = memoryview(bytearray(b"").join(parts))
    return _Body(records, np.concatenate(sizes), properties, body.has_keys), later
