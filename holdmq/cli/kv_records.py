"""Every record of a shard's log, read: whole, in its place, and found by its queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import redis

from holdmq.cli.kv_shard import KvFinding, ShardFacts, answers_of, number_in, run_in
from holdmq.names.topics import PRODUCED_TOPIC
from storage.api.batches import Batch
from storage.core.scan import NextOffsets, batch_of, in_sequence, whole_records
from storage.kv.core.layout import offset_in, queue_field

STEP_BATCHES: Final = 16
"""Batches that are asked for at once: at most some MiB each."""


class RecordReading:
    """Reads a shard's log, from its first position to the end that `facts` has; `records` were whole."""

    def __init__(self, client: redis.Redis, facts: ShardFacts, report: Callable[[int, int], None]) -> None:
        self.records = 0
        self._client = client
        self._facts = facts
        self._keys = facts.keys
        self._report = report
        self._offsets: NextOffsets = {}
        self._store_ms = 0

    def run(self) -> Iterator[KvFinding]:
        """All that is wrong with records, in the log's order."""
        log, end = self._keys.log, self._facts.number("end")
        first = at = self._facts.number("first")
        while at < end:
            entries: Any = self._client.xrange(log, f"(0-{at}", f"0-{end}", count=STEP_BATCHES)
            if not entries:
                yield self._found(log, f"ends at {at}, and the log at {end}")
                return
            batches = []
            for entry_id, fields in entries:
                begin, data = offset_in(entry_id) - len(fields.get(b"r", b"")), fields.get(b"r", b"")
                # What retention took meanwhile is no gap, nor what was blank in a log that was imported.
                if begin != at and (
                    begin < at or (self._first_now() < begin and not self._is_hole(at, begin))
                ):
                    yield self._found(log, f"has a batch from {begin} on, and the one before ends at {at}")
                at = begin + len(data)
                whole = whole_records(memoryview(data), begin)
                good = int(whole.sizes.sum())
                if whole.reason or good < len(data):
                    reason = whole.reason or "the batch ends in it"
                    yield self._found(log, f"has a record at {begin + good} that is not whole: {reason}")
                if good:
                    batches.append(batch_of(memoryview(data), whole.sizes, begin, lambda _: 1))
            for batch in batches:
                self.records += sum(run.count for run in batch.runs if run.topic != PRODUCED_TOPIC)
                yield from self._in_sequence(batch)
            yield from self._in_queues(batches)
            self._report(at - first, end - first)

    def _in_sequence(self, batch: Batch) -> Iterator[KvFinding]:
        sequence = in_sequence(batch, self._offsets, self._store_ms)
        if sequence.reason:
            position = batch.position + int(batch.starts[sequence.records])
            what = f"has a record at {position} that is out of sequence: {sequence.reason}"
            yield self._found(self._keys.log, what)
            # From here on what follows is compared with what there is.
            self._offsets.update(
                {(run.topic, run.queue_id): run.base_offset + run.count for run in batch.runs}
            )
        self._store_ms = max(self._store_ms, batch.store_ms)

    def _in_queues(self, batches: list[Batch]) -> Iterator[KvFinding]:
        """Look each run up in its queue, by the offset behind it."""
        asked = self._client.pipeline(transaction=False)
        runs = []
        for batch in batches:
            at, first = batch.position, 0
            for run in batch.runs:
                size = int(batch.sizes[first : first + run.count].sum())
                first, at = first + run.count, at + size
                behind = run.base_offset + run.count
                stream = self._keys.queue(run.topic, run.queue_id)
                runs.append((stream, behind, at))
                asked.xrange(stream, f"0-{behind}", f"0-{behind}")
                asked.hget(self._keys.firsts, queue_field(run.topic, run.queue_id))
        answers = answers_of(asked)
        for (stream, behind, end), entries, kept in zip(runs, answers[::2], answers[1::2], strict=True):
            if (number_in(kept) or 0) >= behind:
                continue  # a queue may give up what the log still has
            if not entries:
                yield self._found(stream, f"lacks what the log has up to offset {behind}")
                continue
            position, _, size, _ = run_in(entries[0][1])
            if position + size != end:
                what = f"says that offset {behind - 1} ends at {position + size}; in the log it ends at {end}"
                yield self._found(stream, what)

    def _first_now(self) -> int:
        return number_in(self._client.hget(self._keys.state, "first")) or 0

    def _is_hole(self, position: int, begin: int) -> bool:
        return number_in(self._client.hget(self._keys.holes, str(position))) == begin

    def _found(self, key: str, what: str) -> KvFinding:
        return KvFinding(self._facts.name, key, what)
