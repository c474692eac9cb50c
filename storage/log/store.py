"""The log engine behind the store's Protocol: stamps on the loop, everything else on its threads.

Threads: the event loop (this module), `log-writer` (writer.py), `log-flusher` (flusher.py) and
the reader pool (reader.py). They meet in plain integers, one deque and callbacks through `post`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic, time_ns
from typing import Final

import structlog

from holdmq.config.model import StorageSection
from holdmq.errors import BehindError, StorageError, StoreFullError, UsageError
from holdmq.files.disk import Disk, RealDisk
from storage.api.batches import Appended, Batch, Confirmed
from storage.api.log_order import TAIL_READ_BYTES, LogOrder
from storage.api.queues import HashFilter, QueueRead, ReadStatus
from storage.api.store import Backlog, StoreState
from storage.core.epochs import Epochs
from storage.core.queues import Queue, first_at_or_behind, outside, read_memory
from storage.core.scan import KeyLevels
from storage.core.temporary import TemporaryTopicQueues
from storage.log.appends import LogAppends, OpenGate, Post
from storage.log.consume_queue import ConsumeQueues
from storage.log.derived import Derived
from storage.log.failures import guarded, write_failure
from storage.log.flusher import Checkpoint, Flusher
from storage.log.home import ENGINE, StoreDirectory
from storage.log.index.key_index import KeyIndex
from storage.log.index.query import Index
from storage.log.open_files import OpenFiles
from storage.log.reading.chunks import Chunks
from storage.log.reading.core.chunks import ChunkCache
from storage.log.reading.reader import ColdReader
from storage.log.reading.sidecars import Sidecars
from storage.log.recovery import Recovery, StateRecovery
from storage.log.replicated.closed import ClosedLogDirectory
from storage.log.replicated.copying import CopiedAppends
from storage.log.replicated.gate import ReplicaGate
from storage.log.replicated.identity import Machine, RealMachine, ReplicaNote
from storage.log.replicated.log import ReplicaLog
from storage.log.replicated.raw_reads import RawReader
from storage.log.replicated.replaying import Replaying
from storage.log.retention.core.deleted import DeletedQueue
from storage.log.retention.deletions import LoggedDeletions
from storage.log.retention.retention import Deletion, Retention, limits_of
from storage.log.segments import Segments
from storage.log.state.core.files import CONFIG_TOPIC
from storage.log.state.following import CONFIG_KEY, NO_STATE, LoggedState
from storage.log.writer import Pending, Writer

BEHIND_LOG_INTERVAL_S: Final = 1.0
"""Readers that retention passed are logged this often: a thousand at once are one event."""

log = structlog.get_logger("holdmq.storage")


def now_ms() -> int:
    """The wall clock, in ms since the epoch."""
    return time_ns() // 1_000_000


def open_store(
    settings: StorageSection,
    broker_name: str,
    key_levels: KeyLevels,
    post: Post,
    *,
    accept_backup: bool = False,
    disk: Disk | None = None,
    clock_ms: Callable[[], int] = now_ms,
    clock: Callable[[], float] = monotonic,
    has_threads: bool = True,
    is_table: Callable[[str], bool] | None = None,
    state: LoggedState | None = None,
    is_replicated: bool = False,
    machine: Machine | None = None,
    owned_for_s: Callable[[], float] | None = None,
) -> LogStore:
    """The store of a configuration; the caller calls `open` (blocking) before anything else.

    `key_levels` says a topic's; `post` runs a callable on the event loop and may be called from
    any thread (`loop.call_soon_threadsafe`). Without threads of its own nothing is written until
    the caller steps `writer` and `flusher`: each order of events is then reproducible. `is_table` says
    which topics are tables; None = this store keeps none (`tables` is None). `state`: the broker's state
    files are in this log, and these are kept as it says (needs tables). `is_replicated`: it is one copy
    of several, and `LogStore.replicated` says and does what replication wants; `machine` tells its starts
    and files from others (None = the real one). `owned_for_s` says for how long no other copy can lead
    (None = there is none that could).
    """
    return LogStore(
        settings,
        broker_name,
        key_levels,
        post,
        accept_backup,
        RealDisk() if disk is None else disk,
        clock_ms,
        clock,
        has_threads,
        is_table,
        state,
        is_replicated,
        RealMachine() if machine is None else machine,
        _for_ever if owned_for_s is None else owned_for_s,
    )


class LogStore:
    """`storage.api.store.MessageStore` on a local disk."""

    def __init__(
        self,
        settings: StorageSection,
        broker_name: str,
        key_levels: KeyLevels,
        post: Post,
        accept_backup: bool,
        disk: Disk,
        clock_ms: Callable[[], int],
        clock: Callable[[], float],
        has_threads: bool,
        is_table: Callable[[str], bool] | None,
        state: LoggedState | None,
        is_replicated: bool,
        machine: Machine,
        owned_for_s: Callable[[], float],
    ) -> None:
        self._owned_for_s = owned_for_s
        self._memory_reads = self._cold_reads = self._tail_reads = self._tail_misses = 0
        self._behind_reads = 0
        self._behind_logged_at = float("-inf")
        directory = Path(settings.data_dir)
        is_sync = settings.flush == "sync"
        self._settings = settings
        self._broker_name = broker_name
        self._key_levels = key_levels
        self._post = post
        self._accept_backup = accept_backup
        files = OpenFiles(disk)
        disk = files
        self._disk = disk
        self._read_files = files
        self._clock_ms = clock_ms
        self._has_threads = has_threads
        self._home = StoreDirectory(disk, directory)
        self._segments = Segments(disk, self._home.commitlog, settings.segment_size_bytes)
        self._files = ConsumeQueues(disk, self._home.consumequeue, settings.consume_queue_file_bytes)
        self._checkpoint = Checkpoint(self._home.checkpoint_file)
        self.writer = Writer(
            self._segments,
            is_sync,
            self._written,
            self._writing_failed,
            self._cached if is_replicated else None,
        )
        interval_s = settings.flush_interval_ms / 1e3
        self.retention = Retention(
            disk,
            self._segments,
            self._files,
            self._checkpoint,
            limits_of(settings),
            settings.retention_interval_ms / 1e3,
            clock_ms,
            self._queue_of,
            lambda error: self._post(partial(self._watermark_passed, error)),
            clock,
        )
        self.flusher = Flusher(
            self.writer,
            self._files,
            self._checkpoint,
            is_sync,
            interval_s,
            self._flushing_failed,
            clock,
            self.retention,
        )
        self.reader_pool = ThreadPoolExecutor(settings.read_threads, "log-reader")
        self.temporary = TemporaryTopicQueues(settings.temporary_bytes, clock_ms, post)
        self.chunks = Chunks(
            files,
            self._segments,
            ChunkCache(settings.chunk_cache_bytes),
            settings.memory_limit_bytes,
            clock,
        )
        self.flusher.upkeep = self._upkeep
        self.sidecars = Sidecars(files, self._files, self.reader_pool if has_threads else None)
        self._reader = ColdReader(disk, self._segments, self._files, key_levels, self.chunks, self.sidecars)
        self._keys = KeyIndex(disk, self._home.keyindex, self._read_for_index)
        self.flusher.keys = self._keys
        self.retention.indexes.append(self._keys.drop)
        self.index = Index(
            disk,
            self._segments,
            self._files,
            self._keys,
            self.read_log,
            self._queue_of,
            lambda: self.store_id,
            lambda: self.confirmed_position,
        )
        self._epochs = Epochs([])
        self.cut_bytes = 0
        self._subscribers: list[Confirmed] = []
        gate = ReplicaGate() if is_replicated else OpenGate()
        self._appends = LogAppends(
            settings, self.writer, self.flusher, gate, post, clock_ms, self._subscribers
        )
        self._queues = self._appends.queues
        self._note_pool = ThreadPoolExecutor(1, "log-notes") if has_threads and is_replicated else None
        took = _took_nothing if state is None else state.take
        self.replicated = self._replica_log(gate, machine, took) if isinstance(gate, ReplicaGate) else None
        self.derived = Derived(
            disk,
            self._home,
            self._segments,
            self._reader,
            key_levels,
            self.append,
            self.roll,
            post,
            lambda: self.writer.synced,
            clock_ms,
            clock,
            None if is_table is None else partial(_is_table, is_table),
            self._following_failed,
            (lambda: True) if self.replicated is None else self.replicated.may_release,
        )
        self.timer = self.derived.timer
        self.tables = self.derived.tables
        self.retention.before_delete.append(self.derived.before_delete)
        self._kept: StateRecovery | None = None
        self._deletions: LoggedDeletions | None = None
        self._subscribers.append(self.derived.offer)
        if state is not None:
            if self.tables is None:
                raise UsageError("a store that keeps state files in its log needs tables")
            self._kept = StateRecovery(state, self.tables.rows_of)
            self._deletions = LoggedDeletions(
                self.append_state, self._queue_of, self.retention, self.flusher.wake.set, post, clock_ms
            )
            self._subscribers[:0] = [state.offer, self._deletions.offer]
        self._above_watermark: StorageError | None = None
        self._is_open = False

    def _replica_log(self, gate: ReplicaGate, machine: Machine, took: Callable[[Batch], bool]) -> ReplicaLog:
        post, settings = self._post, self._settings
        directory, segment_size = settings.data_dir, settings.segment_size_bytes
        return ReplicaLog(
            self._home,
            self._segments,
            self._appends,
            gate,
            CopiedAppends(self._appends, directory, segment_size, self._key_levels, took),
            RawReader(self._read_files, self._segments, lambda: gate.written_position),
            Replaying(self._reader, self._appends, gate, self._note_down, post, self._following_failed),
            self.retention,
            ReplicaNote(self._disk, self._home.directory, machine, settings.flush == "sync"),
            lambda: self.tables,
            lambda: self.writer.synced,
            self._wake_timer,
            self._note_down,
            post,
        )

    def _note_down(self, work: Callable[[], object]) -> None:
        """Do what blocks off the loop, one piece after the other; without threads in a later turn of it."""
        path = str(self._home.directory)
        if self._note_pool is None:
            self._post(work)
        else:
            self._note_pool.submit(guarded, work, self._following_failed, path, "log-notes")

    def _wake_timer(self) -> None:
        self.timer.wake()

    # Opening and closing

    def open(self) -> None:
        """Lock, recover, start the threads. Blocking. Raises StorageError when it must not be opened."""
        try:
            self._open()
        except OSError as error:
            self.derived.stop()
            self._release()
            raise StorageError(
                error.strerror or str(error),
                operation="open",
                path=error.filename or str(self._home.directory),
            ) from error
        except StorageError:
            self.derived.stop()
            self._release()
            raise

    def _open(self) -> None:
        if self.replicated is not None:
            segment_size = self._settings.segment_size_bytes
            ClosedLogDirectory(self._disk, self._home.directory, self._broker_name, segment_size).finish()
        self._home.open(self._broker_name, self._accept_backup)
        self._epochs = self._home.load_epochs(self._accept_backup)
        self._segments.load()
        self.retention.find_room()
        known = self._checkpoint.load(self._accept_backup)
        if not known and self._segments.first_position + len(self._segments.table) > 1:
            raise StorageError(
                "checkpoint.json is missing, but there is a log",
                operation="open",
                path=str(self._home.directory),
                hint="restore it from a backup",
            )
        clean_end = 0 if self._home.is_new else self._home.clean_end()
        if self._kept is not None and self.tables is not None:
            self.tables.open()
        recovery = Recovery(
            self._disk,
            self._home,
            self._segments,
            self._files,
            self._checkpoint,
            self._key_levels,
            self._kept,
            self.replicated is not None,
        )
        recovered = recovery.run(clean_end)
        if self.replicated is not None:
            is_clean = not self._home.is_new and clean_end == recovered.end
            self.replicated.open(
                self._epochs,
                recovered.confirmed,
                recovered.end,
                self._checkpoint.floors,
                is_clean,
                recovered.is_damaged,
            )
        elif clean_end != recovered.end:
            # Also when nothing had to be cut: pages that power loss took leave only zeros behind.
            self._epochs.rise(recovered.end)
        self._home.save_epochs(self._epochs)
        self._home.mark_open()
        self.cut_bytes = recovered.cut_bytes
        last = self._segments.table[-1].end
        if last <= recovered.end:  # no room for the next one yet
            last = recovered.end + self._settings.segment_size_bytes
        confirmed, bounds = recovered.confirmed, recovered.confirmed_queues
        queues = [Queue(*key, *bounds.get(key, (ends[0], ends[0]))) for key, ends in recovered.queues.items()]
        for queue in queues:
            queue.stamped = recovered.queues[queue.topic, queue.queue_id][1]
        self._appends.open(self.store_id, queues, confirmed, recovered.end, last, recovered.store_ms)
        if self.replicated is None:
            for key, following in self._checkpoint.floors.items():
                self._appends.add_queue(key, following)
        self._keys.open(self.first_position, confirmed)
        self.derived.start(self.first_position, confirmed, recovered.end, self._epochs, self._has_threads)
        if self._kept is not None:
            # What the tables had before may have been of a log that was longer.
            config_bounds = bounds.get(CONFIG_KEY, (0, 0))
            self._kept.state.load(self._kept.rows_of, self._reader, self._files, config_bounds, confirmed)
        self.retention.measure()
        self.writer.start(recovered.end, self._has_threads, not recovered.is_cut)
        self.flusher.start(confirmed, recovered.confirmed_ms, bounds, self._has_threads)
        self._appends.refusal = None
        self._is_open = True

    def close(self) -> None:
        """Write and index what is queued, leave the clean mark, unlock. Blocking; not on the loop."""
        appends = self._appends
        appends.refusal = appends.refusal or StorageError("the store is closed", operation="append")
        self.reader_pool.shutdown(wait=True)
        if not self._is_open:
            return
        self._is_open = False
        if self._note_pool is not None:
            self._note_pool.shutdown(wait=True)
        self.writer.stop()
        self.flusher.stop()
        self.derived.stop()
        try:
            if self.writer.fatal is None and self.writer.synced == self.writer.written:
                self._home.mark_clean(self.writer.written)
        except OSError as error:
            log.error("the mark of a clean close could not be written", reason=str(error))
        finally:
            self._release()

    def _release(self) -> None:
        """Close every file and give the lock back."""
        self._segments.close()
        self._files.close()
        self._read_files.close()
        self._home.close()

    # Identity and state

    @property
    def store_id(self) -> bytes:
        return self._home.store_id

    @property
    def made_ms(self) -> int:
        """When this store was made, ms since the epoch; 0 = it does not know."""
        return self._home.made_ms

    @property
    def epoch(self) -> int:
        return self._epochs.current

    def epoch_limit(self, epoch: int) -> int | None:
        return self._epochs.limit_of(epoch) if 0 < epoch < self._epochs.current else None

    @property
    def first_position(self) -> int:
        return self._segments.first_position

    @property
    def engine(self) -> str:
        return ENGINE

    @property
    def log_order(self) -> LogOrder:
        return self

    @property
    def confirmed_position(self) -> int:
        return self._appends.confirmed_position

    @property
    def synced_position(self) -> int:
        return self.writer.synced

    def state(self) -> StoreState:
        appends = self._appends
        problem = (
            appends.refusal
            or appends.not_leading
            or appends.few_replicas
            or self._above_watermark
            or appends.full
        )
        return StoreState(problem is None, "" if problem is None else str(problem))

    def is_owned(self) -> bool:
        return self._owned_for_s() > 0

    def owned_for_s(self) -> float:
        return self._owned_for_s()

    def backlog(self) -> Backlog:
        if self._appends.few_replicas is not None:
            return Backlog(0, 0.0)  # who appends is refused by name, and waits for nothing
        return self._appends.backlog()

    def numbers(self) -> dict[str, float]:
        """Counters (names in _total) and gauges for metrics."""
        writer, flusher, appends = self.writer, self.flusher, self._appends
        return {
            "appends_total": appends.appends,
            "records_total": appends.records,
            "bytes_total": appends.bytes,
            "refused_batches_total": appends.refused,
            "rollbacks_total": appends.rollbacks,
            "write_groups_total": writer.groups,
            "fsyncs_total": writer.fsyncs + flusher.fsyncs,
            "blanks_total": writer.blanks,
            "index_writes_total": self._files.writes,
            "index_failures_total": flusher.index_failures,
            "checkpoints_total": flusher.checkpoints,
            "memory_reads_total": self._memory_reads,
            "tail_hits_total": self._tail_reads,
            "tail_misses_total": self._tail_misses,
            "cold_reads_total": self._cold_reads,
            **self.chunks.numbers(),
            **self.sidecars.numbers(),
            **self.temporary.numbers(),
            "corrupt_reads_total": self._reader.corrupt,
            "behind_reads_total": self._behind_reads,
            "recovery_cut_bytes": self.cut_bytes,
            "pending_batches": len(appends.pending),
            "pending_bytes": appends.backlog().size_bytes,
            "tail_bytes": appends.tail.size_bytes,
            "tail_batches": len(appends.tail),
            "queues": len(self._queues),
            "segments": len(self._segments.table),
            "confirmed_position": self.confirmed_position,
            "first_position": self.first_position,
            "synced_position": writer.synced,
            "indexed_position": flusher.indexed,
            "epoch": self.epoch,
            "writable": float(self.state().ok),
            **self.derived.numbers(),
            **(NO_STATE if self._kept is None else self._kept.state.numbers()),
            **self.retention.numbers(),
            **self._keys.numbers(),
            **({} if self.replicated is None else self.replicated.numbers()),
        }

    # Append

    def append(self, batch: Batch, done: Appended) -> None:
        for topic in batch.topics():
            if self.temporary.holds(topic):
                self.temporary.append(batch, self._home.store_id, done)
                return
        self._appends.append(batch, done, self._above_watermark, False)

    def roll(self, batch: Batch, done: Appended) -> None:
        """As `append`, also while the disk is too full for it, and then into the reserve segment.

        For copies without which an old segment cannot go, and for nothing else.
        """
        self._appends.append(batch, done, None, True)

    def append_state(self, batch: Batch, done: Appended) -> None:
        """As `append`, also past the watermark: what brokers know is small, and frees room, too."""
        self._appends.append(batch, done, None, False)

    def subscribe(self, confirmed: Confirmed) -> None:
        self.temporary.subscribers.append(confirmed)
        self._subscribers.append(confirmed)

    # Called on the writer's and the flusher's thread

    def _cached(self, group: list[Pending]) -> None:
        self._post(partial(self._appends.cached, group))

    def _written(self, group: list[Pending]) -> None:
        self._post(partial(self._appends.written, group))

    def _writing_failed(self, error: StorageError, generation: int) -> None:
        self._post(partial(self._appends.take_back, error, generation))

    def _upkeep(self) -> None:
        self.chunks.upkeep(self.writer.written, self._tail_reads + self._memory_reads)
        self.sidecars.upkeep(self._checkpoint.position)

    def _flushing_failed(self, error: StorageError) -> None:
        self._post(partial(self._appends.take_back, error))

    def _following_failed(self, error: StorageError) -> None:
        """What is derived from the log cannot be kept: called on the threads that keep it."""
        self.writer.fatal = self.writer.fatal or error
        self._flushing_failed(error)

    # Called on the loop

    def _read_for_index(self, position: int, max_bytes: int, end: int) -> list[Batch]:
        if position < self.first_position:
            raise BehindError(position, self.first_position)
        return self._reader.read_log(position, max_bytes, end, keep=False)

    def _queue_of(self, key: tuple[str, int]) -> Queue | None:
        return self._queues.get(key)

    def _watermark_passed(self, error: StoreFullError | None) -> None:
        """Refuse appends from now on, or take them again."""
        self._above_watermark = error
        if error is None:
            log.info("there is room on the disk again: records are taken")
        else:
            log.error("the store refuses records", reason=str(error))

    def delete_queue(self, topic: str, queue_id: int, done: Callable[[StorageError | None], None]) -> None:
        queue = self._queues.get((topic, queue_id))
        refusal = self._appends.refusal or self._appends.not_leading
        if refusal is None and queue is not None and queue.stamped != queue.confirmed:
            refusal = StorageError(f"{topic}/{queue_id} is being written", operation="delete queue")
        if refusal is not None or queue is None:
            self._post(partial(done, refusal))
            return
        if self._deletions is not None:
            self._deletions.delete(queue, done)
            return
        queue.first_offset = queue.confirmed
        self.retention.deletions.append(
            Deletion(
                queue,
                self.confirmed_position,
                queue.confirmed,
                lambda error: self._post(partial(done, error)),
            )
        )
        self.flusher.wake.set()

    def announce_deletions(self, done: Callable[[StorageError | None], None]) -> None:
        """Let the log, which has the broker's state from now on, say which queues were given up before."""
        assert self._deletions is not None, "the state is in the log"
        tombstones = dict(self._checkpoint.tombstones)
        first_position = self.first_position
        self._deletions.announce(
            [
                DeletedQueue(topic, queue_id, next_offset)
                for (topic, queue_id), (position, next_offset) in tombstones.items()
                if position > first_position
            ],
            done,
        )

    def keep_tables(self, done: Callable[[StorageError | None], None]) -> None:
        """Call `done` once a snapshot of the tables holds all that is confirmed now: copies begin with it."""
        assert self.tables is not None, "the state is in the log"
        self.tables.wait_snapshot(self.confirmed_position, done)

    # Reads: every one is decided by state that appends and retention change

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        if self.temporary.holds(topic):
            return self.temporary.bounds(topic, queue_id)
        queue = self._queues.get((topic, queue_id))
        return (0, 0) if queue is None else (queue.first_offset, queue.confirmed)

    def is_being_written(self, topic: str, queue_id: int) -> bool:
        queue = self._queues.get((topic, queue_id))
        return queue is not None and queue.stamped != queue.confirmed

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
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return outside(Queue(topic, queue_id), offset)
        if 0 < epoch < self._epochs.current and offset > queue.first_offset:
            # What a leader has just begun with is not in the consume queues yet.
            limit = self._epochs.limit_of(epoch)
            survived = None if limit is None else first_at_or_behind(queue, limit)
            if survived is None:
                return None
            if offset > survived:
                return QueueRead(ReadStatus.AHEAD, survived, queue.first_offset, queue.confirmed)
        self._memory_reads += 1
        read = read_memory(queue, offset, max_bytes, max_count, wanted)
        if read is not None and read.status is ReadStatus.BEHIND:
            self._behind(queue, offset)
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
        queue = self._queues.get((topic, queue_id)) or Queue(topic, queue_id)
        limit = self._epochs.limit_of(epoch) if epoch > 0 else None
        if limit is not None and offset > queue.first_offset:
            try:
                survived = self._files.first_at_or_after(
                    (topic, queue_id), queue.first_offset, queue.indexed, limit
                )
            except OSError as error:
                raise write_failure(error, "read", str(self._files.directory), None) from error
            if offset > survived:
                return QueueRead(ReadStatus.AHEAD, survived, queue.first_offset, queue.confirmed)
        try:
            read = self._reader.read_queue(
                queue, offset, max_bytes, max_count, wanted, self.confirmed_position
            )
        except StorageError:
            if offset >= queue.first_offset:
                raise
            read = None
        if offset < queue.first_offset:
            # Retention may have passed while the read was under way.
            self._behind(queue, offset)
            return outside(queue, offset) or QueueRead(
                ReadStatus.BEHIND, queue.first_offset, queue.first_offset, queue.confirmed
            )
        assert read is not None
        if read.status is ReadStatus.FOUND and read.next_offset == offset:
            # Confirmed, and not in the consume queue's file yet: until it is, memory keeps it.
            newest = read_memory(queue.copy(), offset, max_bytes, max_count, wanted)
            if newest is not None:
                return newest
            read = self._reader.read_queue(
                queue, offset, max_bytes, max_count, wanted, self.confirmed_position
            )
        return read

    def _behind(self, queue: Queue, offset: int) -> None:
        """Count a reader that retention passed, and say so: at most a line per second."""
        self._behind_reads += 1
        now = monotonic()
        if now - self._behind_logged_at >= BEHIND_LOG_INTERVAL_S:
            self._behind_logged_at = now
            log.warning(
                "a reader was behind retention; it goes on at the first offset",
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=offset,
                first_offset=queue.first_offset,
                behind_reads=self._behind_reads,
            )

    def tail(self, position: int, max_bytes: int = TAIL_READ_BYTES) -> Sequence[Batch] | None:
        found = self._appends.tail.since(position, max_bytes)
        if found is None:
            self._tail_misses += 1
        else:
            self._tail_reads += 1
        return found

    def read_log(self, position: int, max_bytes: int) -> list[Batch]:
        self._cold_reads += 1
        try:
            return self._reader.read_log(position, max_bytes, self.confirmed_position)
        except StorageError as error:
            first_position = self._segments.first_position
            if isinstance(error.__cause__, FileNotFoundError):
                # Retention gives a segment up, removes its file, and then forgets it.
                first_position = max(first_position, self._checkpoint.first_position)
            if position >= first_position:
                raise
            self._behind_reads += 1
            raise BehindError(position, first_position) from None


def _took_nothing(_batch: Batch) -> bool:
    """No batch says how others are indexed."""
    return False


def _is_table(is_table: Callable[[str], bool], topic: str) -> bool:
    """Whether a topic is a table: the broker's, or the one that has its state."""
    return topic == CONFIG_TOPIC or is_table(topic)


def _for_ever() -> float:
    """Nobody else can lead a log that has no copies."""
    return float("inf")
