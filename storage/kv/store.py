"""The key-value engine behind the store's Protocols: stamps on the loop, the shard's server behind threads.

A shard is a broker's name; it belongs to one process at a time. Who owns it has a *term*, which every
function that writes compares, and a lease by the server's clock, past which another process may take the
shard. What was paused may wake late: nothing is read or appended past the lease that it last knew it had.

Threads: the event loop (this module), `kv-writer` (writer.py), `kv-timer` (timer.py), `kv-keeper` (lease and
retention) and the reader pool.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import CLOCK_BOOTTIME, clock_gettime, monotonic, sleep, time_ns
from typing import Any, Final

import structlog

from holdmq.config.model import StorageSection
from holdmq.errors import BehindError, ShardLostError, StorageError, StoreFormatError
from storage.api.batches import Appended, Batch, Confirmed
from storage.api.log_order import TAIL_READ_BYTES, LogOrder
from storage.api.queues import HashFilter, QueueRead, ReadStatus
from storage.api.store import NO_LOSS, Backlog, RecordLoss, StoreState
from storage.api.tables import RowChanged
from storage.core.epochs import Epochs
from storage.core.queues import Queue, confirm_runs, outside, read_memory
from storage.core.scan import KeyLevels
from storage.core.stamper import Stamper
from storage.core.tail import Tail
from storage.core.temporary import TemporaryTopicQueues
from storage.kv.core.layout import FORMAT, IMPORTING, ShardKeys, queue_field, queue_of
from storage.kv.files import ShardDisk
from storage.kv.index import KvIndex, ShardEnds
from storage.kv.owners import is_dead_here, this_process
from storage.kv.reading import ServerReader
from storage.kv.retention import KvRetention
from storage.kv.server import FunctionCall, ShardServer
from storage.kv.tables import KvTables
from storage.kv.timer import KvTimer
from storage.kv.writer import PendingBatch, ShardWriter

ENGINE: Final = "kv"
BATCH_BYTES_MAX: Final = 16 << 20
"""The largest batch: a server's largest value is 512 MiB, and it serves nobody else while it takes one."""
MARGIN_PART: Final = 4
"""A quarter of the lease is left for clocks that run apart and for what is under way."""
RENEWALS: Final = 3
"""A lease is renewed so often before it ends."""
KEEPER_S: Final = 0.25
TAKEOVER_POLL_S: Final = 0.1
DRAIN_S: Final = 20.0
"""How long a broker that has taken a shard over may take to give it back, beside a lease."""
LATELY_S: Final = 3600.0
"""How long a loss is told as a late one."""
CLOSE_S: Final = 5.0
"""How long a close waits for a server that does not answer."""

Post = Callable[[Callable[[], object]], object]

log = structlog.get_logger("holdmq.storage")


def now_ms() -> int:
    """The wall clock, in ms since the epoch."""
    return time_ns() // 1_000_000


def boot_s() -> float:
    """A clock that goes on while the machine sleeps: a lease does."""
    return clock_gettime(CLOCK_BOOTTIME)


class KvStore:
    """`storage.api.store.MessageStore` with log order, in a Valkey or Redis.

    `is_home`: the shard has this broker's name; else `wanted_back` is called on the loop, once or more,
    when the broker that has it wants the shard. `lost` is called on the loop, once, when the shard has
    another owner or the servers lost writes: the store refuses everything then, and its owner opens a new
    one.
    """

    def __init__(
        self,
        settings: StorageSection,
        broker_name: str,
        key_levels: KeyLevels,
        post: Post,
        *,
        clock_ms: Callable[[], int] = now_ms,
        is_table: Callable[[str], bool] = lambda _topic: False,
        lost: Callable[[ShardLostError], None] | None = None,
        owner: str | None = None,
        is_home: bool = True,
        wanted_back: Callable[[], None] | None = None,
    ) -> None:
        kv = settings.kv
        keys = ShardKeys(kv.prefix, broker_name)
        self._settings = settings
        self._keys = keys
        self._key_levels = key_levels
        self._post = post
        self._clock_ms = clock_ms
        self._tell_lost = lost
        self._owner = owner or this_process()
        self._is_home = is_home
        self._tell_wanted = wanted_back
        self._lease_ms = kv.lease_ms
        # An answer that waits for replicas comes before the connection is given up.
        self._replica_timeout_ms = min(kv.replica_timeout_ms, kv.timeout_ms // 2)
        self.server = ShardServer(kv, keys)
        self.writer = ShardWriter(
            self.server,
            keys,
            kv.min_replicas,
            self._replica_timeout_ms,
            self._written,
            self._writing_failed,
            self._shard_lost,
        )
        self._reader = ServerReader(self.server, keys, key_levels)
        self.reader_pool = ThreadPoolExecutor(settings.read_threads, "kv-reader")
        self.temporary = TemporaryTopicQueues(settings.temporary_bytes, clock_ms, post)
        self.disk = ShardDisk(self.server, keys, Path(settings.data_dir), self._term)
        self.retention = KvRetention(settings, self.server, keys, self._reader, self._term, clock_ms)
        self.tables = KvTables(
            self.server, keys, is_table, self.append, post, lambda: self.confirmed_position
        )
        self.timer = KvTimer(self.server, keys, key_levels, self._append_with, post, clock_ms, self._term)
        self.index = KvIndex(
            self.server,
            keys,
            self._reader,
            self._queue_of,
            lambda: self.store_id,
            lambda: ShardEnds(self.retention.first_position, self.confirmed_position),
            lambda: self.retention.age_ms,
            clock_ms,
        )
        self.store_id = b""
        self.confirmed_position = 0
        self.lost_records = 0
        self._lost_lately = 0
        self._lost_at = float("-inf")
        self._epochs = Epochs([])
        self._tail = Tail(0, settings.tail_cache_bytes)
        self._queues: dict[tuple[str, int], Queue] = {}
        self._changes: dict[int, list[RowChanged]] = {}
        self._stamper = Stamper()
        self._pending: deque[PendingBatch] = deque()
        self._pending_bytes = self._generation = self._end = self._store_ms = 0
        self._subscribers: list[Confirmed] = []
        self._refusal: StorageError | None = StorageError("the store is not open", operation="append")
        self._full: StorageError | None = None
        self._lease_until = 0.0
        self._heartbeat = 0.0
        self._is_heartbeat_asked = False
        self._stopping = Event()
        self._keeper = Thread(target=self._keep, name="kv-keeper", daemon=True)
        self._is_open = False
        self._appends = self._records = self._bytes = self._refused = self._rollbacks = 0
        self._memory_reads = self._cold_reads = self._tail_reads = self._tail_misses = self._behind_reads = 0
        self._late_refusals = 0

    def _term(self) -> bytes:
        return self.writer.term

    # Opening and closing

    def open(self, wait_s: float | None = None) -> None:
        """Take the shard, read where it stands, start the threads. Blocking.

        Waits for a lease that another process has, for `wait_s` (None: at home as long as a lease can last
        and a drain takes, else not at all). Raises StorageError when the shard is not to be had.
        """
        self.server.open()
        state = self._own(wait_s if wait_s is not None else self._patience_s(), secrets.token_hex(8))
        self.store_id = bytes.fromhex(state[b"store_id"].decode())
        end = int(state[b"end"])
        self.retention.first_position = int(state[b"first"])
        self._store_ms = int(state[b"store_ms"])
        self._load_epochs(end, state)
        self._load_queues()
        self.tables.learn_sizes()
        self.confirmed_position = self._end = end
        self._tail = Tail(end, self._settings.tail_cache_bytes)
        self._name_shard()
        self._await_replicas(state[b"term"])
        self._refusal = None
        self._is_open = True
        self._heartbeat = monotonic()
        self.writer.start(int(state[b"term"]), end)
        self._keeper.start()
        self.timer.start()

    def _name_shard(self) -> None:
        """Let those who look for shards find this one: a full server has it from before."""
        if not self.server.keyed("SISMEMBER", self._keys.shards, self._keys.shard):
            self.server.keyed("SADD", self._keys.shards, self._keys.shard)

    def _await_replicas(self, term: bytes) -> None:
        """Let replicas know who owns the shard, in which epoch: a failover would take that back."""
        touch = FunctionCall("touch", [self._keys.state], [term])
        self.server.await_replicas(touch, self._replica_timeout_ms)

    def _patience_s(self) -> float:
        return self._lease_ms / 1e3 + DRAIN_S if self._is_home else 0.0

    def _own(self, wait_s: float, store_id: str) -> dict[bytes, bytes]:
        """Take the shard; the state that it is in. It gets `store_id` if it has none."""
        until = monotonic() + wait_s
        is_forced = "0"
        while True:
            sent = boot_s()
            run_id = self.server.run_id()
            answer = self.server.run(
                "own",
                [self._keys.state],
                self._owner,
                self._lease_ms,
                run_id,
                is_forced,
                store_id,
                FORMAT,
                int(self._is_home),
            )
            if answer[0] < 0 and int(answer[1]) == IMPORTING:
                raise StoreFormatError(
                    "an import into it has not come to its end",
                    operation="open",
                    path=self._keys.tag,
                    hint="run holdmq kv import again: it goes on where it stopped",
                )
            if answer[0] < 0:
                raise StoreFormatError(
                    f"the shard has format {int(answer[1])}, this release knows {FORMAT}",
                    operation="open",
                    path=self._keys.tag,
                    hint="upgrade this broker",
                )
            if answer[0]:
                if self.server.run_id() != run_id:
                    continue  # another server, which need not know that
                self._lease_until = sent + self._lease_ms * (1 - 1 / MARGIN_PART) / 1e3
                state = dict(zip(answer[1::2], answer[2::2], strict=True))
                state[b"run_now"] = run_id.encode()
                return state
            other = answer[1].decode()
            if is_dead_here(other):
                is_forced = "1"
                continue
            if monotonic() > until:
                raise StorageError(
                    f"broker {self._keys.shard} runs elsewhere ({other}), its lease has {answer[2]} ms left",
                    operation="open",
                    path=self._keys.tag,
                    hint="stop it, or give this broker another broker.name",
                )
            sleep(TAKEOVER_POLL_S)

    def _load_epochs(self, end: int, state: dict[bytes, bytes]) -> None:
        raw = self.server.command("GET", self._keys.epochs)
        self._epochs = self._epochs_in(raw)
        self.lost_records = int(state[b"lost"])
        if not raw or state[b"run_id"] != state[b"run_now"]:
            # Another server, or this one started anew: it may have less than readers saw.
            if raw:
                self._epochs.rise(end)
            self._save_epochs(state[b"term"], 0, state[b"run_now"])

    def _save_epochs(self, term: bytes, lost: int, run_id: bytes | str) -> None:
        content = json.dumps(self._epochs.content())
        self.server.run("rise", [self._keys.state, self._keys.epochs], term, content, lost, run_id)

    def _load_queues(self) -> None:
        firsts = {
            field: int(first) for field, first in self.server.command("HGETALL", self._keys.firsts).items()
        }
        for field, following in self.server.command("HGETALL", self._keys.ends).items():
            topic, queue_id = queue_of(field.decode())
            self._queues[topic, queue_id] = Queue(topic, queue_id, firsts.get(field, 0), int(following))

    def close(self) -> None:
        """Bring what is queued to the server, give the shard up. Blocking; not on the loop."""
        was_lost = isinstance(self._refusal, ShardLostError)
        self._refusal = self._refusal or StorageError("the store is closed", operation="append")
        self.timer.stop()
        self.reader_pool.shutdown(wait=True)
        if self._is_open:
            self._is_open = False
            self.writer.stop(CLOSE_S)
            self._stopping.set()
            self._keeper.join()
            if not was_lost:
                try:
                    self.server.run("release", [self._keys.state], self._term())
                except StorageError as error:
                    log.warning(
                        "the shard could not be given up: it is free when its lease ends", reason=str(error)
                    )
        self.server.close()

    # Condition

    @property
    def engine(self) -> str:
        return ENGINE

    @property
    def log_order(self) -> LogOrder | None:
        return self

    @property
    def epoch(self) -> int:
        return self._epochs.current

    @property
    def first_position(self) -> int:
        return self.retention.first_position

    @property
    def synced_position(self) -> int:
        return self.confirmed_position

    def epoch_limit(self, epoch: int) -> int | None:
        return self._epochs.limit_of(epoch) if epoch > 0 else None

    def is_owned(self) -> bool:
        return not isinstance(self._refusal, ShardLostError) and self._late() is None

    def owned_for_s(self) -> float:
        return max(0.0, self._lease_until - boot_s()) if self.is_owned() else 0.0

    def backlog(self) -> Backlog:
        if not self._pending:
            return Backlog(0, 0)
        return Backlog(self._pending_bytes, (monotonic() - self._pending[0].since) * 1e3)

    def state(self) -> StoreState:
        problem = self._refusal or self.writer.trouble or self._full
        return StoreState(problem is None, "" if problem is None else str(problem))

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges; called on any thread."""
        writer, loss = self.writer, self.loss()
        return {
            "appends_total": self._appends,
            "records_total": self._records,
            "bytes_total": self._bytes,
            "refused_total": self._refused,
            "rollbacks_total": self._rollbacks,
            "memory_reads_total": self._memory_reads,
            "cold_reads_total": self._cold_reads,
            "tail_reads_total": self._tail_reads,
            "tail_misses_total": self._tail_misses,
            "behind_reads_total": self._behind_reads,
            "corrupt_reads_total": self._reader.corrupt,
            "pending_batches": len(self._pending),
            "pending_bytes": self._pending_bytes,
            "tail_bytes": self._tail.size_bytes,
            "tail_batches": len(self._tail),
            "queues": len(self._queues),
            "confirmed_position": self.confirmed_position,
            "first_position": self.first_position,
            "epoch": self.epoch,
            "writable": float(self.state().ok),
            "kv_pipelines_total": writer.pipelines,
            "kv_reconciled_total": writer.reconciled,
            "kv_short_waits_total": writer.short_waits,
            "kv_redirects_total": self.server.redirects,
            "kv_lost_records_total": self.lost_records,
            "kv_lost_records_lately": loss.records if loss.age_s < LATELY_S else 0,
            "kv_late_refusals_total": self._late_refusals,
            "kv_term": int(writer.term),
            "retention_bytes_total": self.retention.trimmed_total,
            **self.temporary.numbers(),
            **self.tables.numbers(),
            **self.timer.numbers(),
        }

    # Append

    def append(self, batch: Batch, done: Appended) -> None:
        for topic in batch.topics():
            if self.temporary.holds(topic):
                self.temporary.append(batch, self.store_id, done)
                return
        self._append_with(batch, done, [], [])

    def _append_with(self, batch: Batch, done: Appended, commands: list[Any], keys: list[str]) -> None:
        """Append a batch, and run commands in the same step."""
        refusal = self._refusal or self._late() or self._troubled()
        size = len(batch.records)
        if refusal is None and size > BATCH_BYTES_MAX:
            refusal = StorageError(
                f"a batch of {size} bytes: {BATCH_BYTES_MAX} are allowed", operation="append"
            )
        if refusal is not None:
            self._refused += 1
            self._post(partial(done, batch, refusal))
            return
        self._store_ms = max(self._store_ms, self._clock_ms())
        batch.position, batch.store_ms = self._end, self._store_ms
        queues: list[Queue] = []
        for run in batch.runs:
            key = (run.topic, run.queue_id)
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = Queue(run.topic, run.queue_id)
            queues.append(queue)
            run.base_offset = queue.stamped
            queue.stamped += run.count
        self._stamper.stamp(batch, self.store_id)
        self._end += size
        changes = self.tables.commands_of(batch, commands, keys)
        due_ms = self.timer.commands_of(batch, commands, keys)
        self.index.commands_of(batch, commands, keys)
        pending = PendingBatch(
            batch, done, queues, self._generation, monotonic(), commands, keys, changes, due_ms
        )
        self._pending.append(pending)
        self._pending_bytes += size
        self.writer.put(pending)

    def _late(self) -> StorageError | None:
        """The refusal past the lease: another process may have the shard."""
        if boot_s() <= self._lease_until:
            return None
        self._late_refusals += 1
        return ShardLostError(
            "the lease of the shard has run out and is not renewed yet",
            operation="use",
            path=self._keys.tag,
            hint="the key-value server did not answer in time, or this process did not run",
        )

    def _troubled(self) -> StorageError | None:
        """The refusal while the server has not stored anything for longer than a short while."""
        trouble = self.writer.trouble
        if trouble is None or monotonic() - self.writer.trouble_since < self._settings.kv.timeout_ms / 1e3:
            return None
        return trouble

    def subscribe(self, confirmed: Confirmed) -> None:
        self.temporary.subscribers.append(confirmed)
        self._subscribers.append(confirmed)

    # Called on the writer's thread

    def _written(self, group: list[PendingBatch]) -> None:
        if any(item.changes for item in group):
            self.tables.learn_sizes()
        self._post(partial(self._make_visible, group))

    def _writing_failed(self, error: StorageError, generation: int) -> None:
        self._post(partial(self._take_back, error, generation))

    def _shard_lost(self, error: ShardLostError) -> None:
        self._post(partial(self._lose, error))

    # Called on the loop

    def _make_visible(self, group: list[PendingBatch]) -> None:
        """Let readers see stored batches, then tell their appenders."""
        if group[0].generation != self._generation:
            return  # refused meanwhile: the shard is lost
        self._full = None
        batches: list[Batch] = []
        changes: list[RowChanged] = []
        for item in group:
            self._pending.popleft()
            batch = item.batch
            confirm_runs(batch, item.queues)
            self._pending_bytes -= len(batch.records)
            self._records += len(batch.sizes)
            self._bytes += len(batch.records)
            self._tail.add(batch)
            batches.append(batch)
            changes += item.changes
            if item.due_ms:
                self.timer.confirmed(item.due_ms)
        self._appends += len(group)
        self.confirmed_position = batches[-1].end
        for batch in self._tail.evict(self.confirmed_position):
            for run in batch.runs:
                self._queues[run.topic, run.queue_id].drop_oldest()
        for confirmed in self._subscribers:
            confirmed(batches)
        for item in group:
            item.done(item.batch, None)
        self.tables.confirmed(changes)

    def _take_back(self, error: StorageError, generation: int) -> None:
        """Refuse everything pending; offsets go back to what is confirmed."""
        if generation != self._generation:
            return
        self._generation += 1
        self._rollbacks += 1
        refused = list(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        for item in refused:
            for queue in item.queues:
                queue.stamped = queue.confirmed
        self._end = self.confirmed_position
        self._refused += len(refused)
        if self._full is None:
            log.warning(
                "the key-value server refuses records", reason=str(error), refused_batches=len(refused)
            )
        self._full = error
        for item in refused:
            item.done(item.batch, error)

    def _lose(self, error: ShardLostError) -> None:
        """Serve nothing any more: another process has the shard, or the servers lost writes."""
        if isinstance(self._refusal, ShardLostError):
            return
        self._refusal = error
        self._lease_until = 0.0
        log.error("the shard is lost to this process", reason=str(error))
        self._take_back(error, self._generation)
        self.tables.fail(error)
        if self._tell_lost is not None:
            self._tell_lost(error)

    def _beat(self) -> None:
        self._heartbeat = monotonic()
        self._is_heartbeat_asked = False

    def _retained(self, changed: list[tuple[Queue, int]]) -> None:
        for queue, first in changed:
            queue.first_offset = max(queue.first_offset, first)

    # The keeper's thread

    def _keep(self) -> None:
        interval_s = self._lease_ms / 1e3 / RENEWALS
        renewed = trimmed = monotonic()
        while not self._stopping.wait(min(KEEPER_S, interval_s / 2)):
            now = monotonic()
            if not self._is_heartbeat_asked:
                self._is_heartbeat_asked = True
                self._post(self._beat)
            try:
                # A loop that does not run cannot say that it lost the shard: it is let go.
                if now - renewed >= interval_s and now - self._heartbeat < self._lease_ms / 1e3:
                    sent = boot_s()
                    # Before the question: appends go on while it is answered.
                    confirmed = self.confirmed_position
                    renewal = self.server.run("renew", [self._keys.state], self._term(), self._lease_ms)
                    end, wanted = renewal[:2]
                    self._learn_loss(*map(int, renewal[2:]))
                    self._lease_until = sent + self._lease_ms * (1 - 1 / MARGIN_PART) / 1e3
                    renewed = now
                    if int(end) < confirmed:
                        self._report_loss(int(end), confirmed)
                    if wanted and self._tell_wanted is not None and not self._is_home:
                        self._post(self._tell_wanted)
                if now - trimmed >= self.retention.interval_s:
                    trimmed = now
                    changed = self.retention.round(list(self._queues.values()), self.confirmed_position)
                    if changed:
                        self._post(partial(self._retained, changed))
            except ShardLostError as error:
                self._shard_lost(error)
                return
            except StorageError as error:
                log.warning("the key-value server does not answer the keeper", reason=str(error))

    def _learn_loss(self, lost: int, lately: int, age_ms: int) -> None:
        """Whoever counts losses may do so when the shard is another's already."""
        self.lost_records, self._lost_lately = lost, lately
        self._lost_at = monotonic() - age_ms / 1e3

    def loss(self) -> RecordLoss:
        """The records that the servers lost last, as of the lease's last renewal; called on any thread."""
        if not self._lost_lately:
            return NO_LOSS
        return RecordLoss(self._lost_lately, max(0.0, monotonic() - self._lost_at))

    def _report_loss(self, end: int, confirmed: int) -> None:
        raise ShardLostError(
            f"the servers lost writes: the log ended at {confirmed} and ends at {end}",
            operation="renew",
            path=self._keys.tag,
            hint="a master failed over before its replica had all",
        )

    def count_loss(self) -> int:
        """How many confirmed records the server has no more; a new log epoch says where they were. Blocking.

        To be called once, after `lost` told of it and before the shard is opened anew. Raises StorageError,
        ShardLostError when another process has the shard and nothing is known to be lost.
        """
        term = self.server.command("HGET", self._keys.state, "term")
        if term is not None and int(term) > int(self._term()):
            return self._count_taken()
        if term != self._term():
            # The servers forgot that this process owns it, and maybe all else: it stays the same store.
            self.writer.term = self._own(0, self.store_id.hex())[b"term"]
        known = {
            field.decode(): int(end) for field, end in self.server.command("HGETALL", self._keys.ends).items()
        }
        missing = sum(
            max(0, queue.confirmed - max(queue.first_offset, known.get(name, 0)))
            for name, queue in self._named_queues()
        )
        end = int(self.server.command("HGET", self._keys.state, "end"))
        if missing or end < self.confirmed_position:
            self._epochs.rise(end)
            self._save_epochs(self._term(), missing, self.server.run_id())
            self._await_replicas(self._term())
            log.error("the servers lost confirmed records", records=missing, log_end=end, epoch=self.epoch)
        return missing

    def _count_taken(self) -> int:
        """What was confirmed here and lies behind the start of the epoch in which another process took over.

        That process cannot know of it: a failover lost it before it came. The number is added to the shard's.
        """
        epoch = self.epoch
        self._epochs = self._epochs_in(self.server.command("GET", self._keys.epochs))
        start = self._epochs.limit_of(epoch)
        lost = [] if start is None else self._tail.since(start, self._tail.size_bytes)
        if not lost:
            raise ShardLostError(
                "another process owns it",
                operation="count losses",
                path=self._keys.tag,
                hint="what it found is what there is",
            )
        missing = sum(len(batch.sizes) for batch in lost)
        self.server.run("report", [self._keys.state], missing)
        log.error("the servers lost confirmed records", records=missing, log_end=start, epoch=self.epoch)
        return missing

    def _epochs_in(self, raw: bytes | None) -> Epochs:
        return Epochs.of_content(json.loads(raw), self._keys.epochs) if raw else Epochs([])

    def _named_queues(self) -> Iterator[tuple[str, Queue]]:
        return ((queue_field(queue.topic, queue.queue_id), queue) for queue in self._queues.values())

    # Queues

    def delete_queue(self, topic: str, queue_id: int, done: Callable[[StorageError | None], None]) -> None:
        queue = self._queues.get((topic, queue_id))
        refusal = self._refusal
        if refusal is None and queue is not None and queue.stamped != queue.confirmed:
            refusal = StorageError(f"{topic}/{queue_id} is being written", operation="delete queue")
        if refusal is not None or queue is None:
            self._post(partial(done, refusal))
            return
        queue.first_offset = queue.confirmed
        self.reader_pool.submit(self._delete_queue, queue, queue.confirmed, done)

    def _delete_queue(self, queue: Queue, end: int, done: Callable[[StorageError | None], None]) -> None:
        name, field = self._keys.queue(queue.topic, queue.queue_id), queue_field(queue.topic, queue.queue_id)
        keys = [self._keys.state, self._keys.firsts, name]
        words = [4, "HSET", self._keys.firsts, field, end, 4, "XTRIM", name, "MINID", f"0-{end + 1}"]
        failure: StorageError | None = None
        try:
            self.server.run("free", keys, self._term(), *words)
        except StorageError as error:
            failure = error
        self._post(partial(done, failure))

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        if self.temporary.holds(topic):
            return self.temporary.bounds(topic, queue_id)
        queue = self._queues.get((topic, queue_id))
        return (0, 0) if queue is None else (queue.first_offset, queue.confirmed)

    def is_being_written(self, topic: str, queue_id: int) -> bool:
        queue = self._queues.get((topic, queue_id))
        return queue is not None and queue.stamped != queue.confirmed

    def _queue_of(self, key: tuple[str, int]) -> Queue | None:
        return self._queues.get(key)

    def read_queue(
        self,
        topic: str,
        queue_id: int,
        epoch: int,
        offset: int,
        max_bytes: int,
        max_count: int,
        wanted: HashFilter | None = None,
    ) -> QueueRead | None:
        if self.temporary.holds(topic):
            return self.temporary.read(topic, queue_id, offset, max_bytes, max_count, wanted)
        self._check_lease()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return outside(Queue(topic, queue_id), offset)
        if 0 < epoch < self._epochs.current and offset > queue.first_offset:
            return None
        self._memory_reads += 1
        read = read_memory(queue, offset, max_bytes, max_count, wanted)
        if read is not None and read.status is ReadStatus.BEHIND:
            self._behind_reads += 1
        return read

    def read_queue_cold(
        self,
        topic: str,
        queue_id: int,
        epoch: int,
        offset: int,
        max_bytes: int,
        max_count: int,
        wanted: HashFilter | None = None,
    ) -> QueueRead:
        self._cold_reads += 1
        self._check_lease()
        queue = self._queues.get((topic, queue_id)) or Queue(topic, queue_id)
        limit = self._epochs.limit_of(epoch) if epoch > 0 else None
        if limit is not None and offset > queue.first_offset:
            run = self._reader.run_from(queue, limit)
            survived = queue.confirmed if run is None else run.base_offset
            if offset > survived:
                return QueueRead(ReadStatus.AHEAD, survived, queue.first_offset, queue.confirmed)
        read = self._reader.read_queue(queue, offset, max_bytes, max_count, wanted)
        if read.status is ReadStatus.BEHIND:
            self._behind_reads += 1
        return read

    def _check_lease(self) -> None:
        refusal = self._refusal if isinstance(self._refusal, ShardLostError) else self._late()
        if refusal is not None:
            raise refusal

    # Log order

    def tail(self, position: int, max_bytes: int = TAIL_READ_BYTES) -> Sequence[Batch] | None:
        self._check_lease()
        found = self._tail.since(position, max_bytes)
        if found is None:
            self._tail_misses += 1
        else:
            self._tail_reads += 1
        return found

    def read_log(self, position: int, max_bytes: int) -> list[Batch]:
        self._cold_reads += 1
        self._check_lease()
        try:
            return self._reader.read_log(position, max_bytes, self.first_position, self.confirmed_position)
        except BehindError:
            self._behind_reads += 1
            raise
