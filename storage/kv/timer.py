"""Delayed messages of a shard, and the thread that lets them go: `kv-timer`.

A message waits as a record of `%TIMER` in the log, and beside it (`t:t`, `t:w`) until its copy is appended:
both change in one step, so each is released once whatever happens, and however short the log is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from threading import Event, Thread
from typing import Any, Final

import structlog

from holdmq.errors import RecordError, StorageError
from holdmq.record.codec import decode_record
from storage.api.batches import Appended, Batch, BatchRun, sizes_of
from storage.api.timer import TIMER_QUEUE, TIMER_TOPIC, DelayedRecord, waiting_record
from storage.core.delayed import Entry, Released, entries_in, entry_of, has_waiting, released_copy
from storage.core.scan import KeyLevels
from storage.kv.core.layout import ShardKeys, waiting_name
from storage.kv.server import ShardServer

RELEASED_AT_ONCE: Final = 512
RELEASE_BYTES: Final = 2 << 20
"""One batch of copies."""
IDLE_S: Final = 1.0
"""How long nobody looks when nothing is known to be due: another clock may have put something in."""
RETRY_S: Final = 1.0

log = structlog.get_logger("holdmq.storage")

AppendWith = Callable[[Batch, Appended, list[Any], list[str]], None]


class KvTimer:
    """`storage.api.timer.MessageTimer` on a shard."""

    def __init__(
        self,
        server: ShardServer,
        keys: ShardKeys,
        key_levels: KeyLevels,
        append: AppendWith,
        post: Callable[[Callable[[], object]], object],
        clock_ms: Callable[[], int],
        term: Callable[[], bytes],
    ) -> None:
        self.released = self.damaged = self.scheduled = 0
        self._server = server
        self._keys = keys
        self._key_levels = key_levels
        self._append = append
        self._post = post
        self._clock_ms = clock_ms
        self._term = term
        self._next_due_ms = 0
        self._pending = 0
        self._wake = Event()
        self._answered = Event()
        self._refusal: StorageError | None = None
        self._stopping = False
        self._thread = Thread(target=self._run, name="kv-timer", daemon=True)

    def schedule(self, delayed: Sequence[DelayedRecord], done: Appended) -> None:
        """Store messages that appear in their queues when they are due; RecordError for one that cannot
        wait.
        """
        records = [waiting_record(record, due_ms) for record, due_ms in delayed]
        batch = Batch(
            memoryview(bytearray().join(records)),
            sizes_of(records),
            [BatchRun(TIMER_TOPIC, TIMER_QUEUE, len(records))],
        )
        self._append(batch, done, [], [])

    def commands_of(self, batch: Batch, commands: list[Any], keys: list[str]) -> int:
        """Add what notes the waiting records of a stamped batch; when the first is due, 0 = there is none."""
        if not has_waiting(batch):
            return 0
        first_due = 0
        for due_ms, first, position, size in entries_in(batch, False):
            begin = position - batch.position
            name = waiting_name(first)
            commands += (4, "ZADD", self._keys.due, due_ms, name)
            commands += (4, "HSET", self._keys.waiting, name, bytes(batch.records[begin : begin + size]))
            first_due = min(first_due or due_ms, due_ms)
            self.scheduled += 1
        keys += (self._keys.due, self._keys.waiting)
        return first_due

    def confirmed(self, due_ms: int) -> None:
        """Something waits until `due_ms` from now on."""
        if due_ms < self._next_due_ms or not self._next_due_ms:
            self.wake()

    @property
    def pending(self) -> int:
        """Messages that wait, as the server said when it was last looked at: once a second, or more often."""
        return self._pending

    def wake(self) -> None:
        """Look at the clock now: something is due earlier, or it was set."""
        self._wake.set()

    def start(self) -> None:
        """Begin to let messages go."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Blocking."""
        self._stopping = True
        self._wake.set()
        self._answered.set()
        if self._thread.ident is not None:
            self._thread.join()

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges."""
        return {
            "timer_pending": self._pending,
            "timer_scheduled_total": self.scheduled,
            "timer_released_total": self.released,
            "timer_damaged_total": self.damaged,
        }

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait_s = self._release_due()
            except StorageError as error:
                log.warning("delayed messages wait for the key-value server", reason=str(error))
                wait_s = RETRY_S
            if wait_s:
                self._wake.wait(wait_s)
                self._wake.clear()

    def _release_due(self) -> float:
        """Let go what is due; how many seconds nothing is."""
        now_ms = self._clock_ms()
        self._next_due_ms = 0
        self._pending = int(self._server.command("ZCARD", self._keys.due))
        due = self._server.command(
            "ZRANGEBYSCORE", self._keys.due, "-inf", now_ms, "LIMIT", 0, RELEASED_AT_ONCE
        )
        if not due:
            following = self._server.command("ZRANGE", self._keys.due, 0, 0, "WITHSCORES")
            if not following:
                return IDLE_S
            self._next_due_ms = int(float(_score(following)))
            return min(IDLE_S, max(0.001, (self._next_due_ms - now_ms) / 1e3))
        copies: list[Released] = []
        firsts: list[bytes] = []
        size = 0
        for first, raw in zip(due, self._server.command("HMGET", self._keys.waiting, *due), strict=True):
            copy = self._copy(raw, int(first))
            firsts.append(first)
            if copy is not None:
                copies.append(copy)
                size += len(copy.record)
                if size > RELEASE_BYTES:
                    break
        count = 2 + len(firsts)
        state = [count, "ZREM", self._keys.due, *firsts, count, "HDEL", self._keys.waiting, *firsts]
        keys = [self._keys.due, self._keys.waiting]
        if not copies:  # all of them were damaged
            self._server.run("free", [self._keys.state, *keys], self._term(), *state)
            return 0.0
        # By queue, each in the order of its due times.
        ordered = sorted(copies, key=lambda copy: (copy.topic, copy.queue_id))
        records = [copy.record for copy in ordered]
        runs = [
            BatchRun(topic, queue_id, len(list(same)), self._key_levels(topic))
            for (topic, queue_id), same in groupby(ordered, lambda copy: (copy.topic, copy.queue_id))
        ]
        batch = Batch(memoryview(bytearray().join(records)), sizes_of(records), runs)
        self._post(partial(self._append, batch, self._ended, state, keys))
        self._answered.wait()
        self._answered.clear()
        if self._stopping:
            return RETRY_S
        if self._refusal is not None:
            if not self._refusal.retriable:
                self._stopping = True
            return RETRY_S
        self.released += len(copies)
        return 0.0

    def _copy(self, raw: bytes | None, first: int) -> Released | None:
        try:
            if raw is None:
                raise RecordError(f"the record of {TIMER_TOPIC}/0/{first} is missing")
            record = decode_record(raw)
            entry: Entry | None = entry_of(
                record.properties, record.queue_offset, record.physical_offset, len(raw)
            )
            if entry is None:
                raise RecordError(f"{TIMER_TOPIC}/0/{first} does not say when it is due")
            return released_copy(raw, entry)
        except RecordError as error:
            log.error("a delayed message is damaged, and lost", reason=str(error))
            self.damaged += 1
            return None

    def _ended(self, _batch: Batch, error: StorageError | None) -> None:
        self._refusal = error
        self._answered.set()


def _score(following: list[Any]) -> Any:
    pair = following[0]
    return pair[1] if isinstance(pair, (list, tuple)) else following[1]
