"""A log and its copies in one process, without threads: nothing happens that is not asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim_disk import Directory, Inode, SimDisk

from holdmq.config.model import StorageSection
from holdmq.errors import HoldMQError, StorageError
from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.api.replication import ClosedLog, Epoch, LogBytes, LogStart, ReplicatedLog
from storage.log.replicated.closed import ClosedLogDirectory
from storage.log.store import LogStore, open_store

HOME = Path("/store")
SEGMENT_BYTES = 4096


class SimMachine:
    """A machine whose files are on a simulated disk."""

    def __init__(self, disk: SimDisk, boot: str = "boot 1") -> None:
        self.disk = disk
        self.boot = boot
        self.inodes: dict[str, int] = {}

    def boot_id(self) -> str:
        return self.boot

    def inode_of(self, path: Path) -> int:
        node = self.disk._node(path)
        assert isinstance(node, Inode | Directory)
        return self.inodes.setdefault(str(path), len(self.inodes) + 1)


class CopyOfLog:
    """One replica's store; `disk` outlives it."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        flush: str = "async",
        segment_bytes: int = SEGMENT_BYTES,
        machine: SimMachine | None = None,
        is_table: Callable[[str], bool] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.disk = SimDisk() if disk is None else disk
        self.machine = SimMachine(self.disk) if machine is None else machine
        self.machine.disk = self.disk
        self.flush = flush
        self.segment_bytes = segment_bytes
        self.is_table = is_table
        self.settings = dict(settings or {})
        self.posted: deque[Callable[[], object]] = deque()
        self.errors: list[StorageError | None] = []
        self.copied: list[StorageError | None] = []
        self.now_s = 1000.0
        self.store: LogStore = self._open()

    def _open(self) -> LogStore:
        settings = StorageSection(data_dir=str(HOME), retention_interval_ms=1, flush=self.flush).model_copy(
            update={
                "segment_size_bytes": self.segment_bytes,
                "consume_queue_file_bytes": 200,
                "tail_cache_bytes": 1,
                **self.settings,
            }
        )
        store = open_store(
            settings, "b1", lambda _: 1, self.posted.append, disk=self.disk,
            clock_ms=lambda: int(self.now_s * 1e3), clock=lambda: self.now_s, has_threads=False,
            is_table=self.is_table, is_replicated=True, machine=self.machine,
        )  # fmt: skip
        store.open()
        return store

    @property
    def log(self) -> ReplicatedLog:
        assert self.store.replicated is not None
        return self.store.replicated

    # What may happen to it

    def kill(self) -> None:
        """The process dies, the machine does not."""
        self.disk = self.disk.after_kill()
        self._again()

    def lose_power(self, seed: int) -> None:
        self.disk = self.disk.after_power_loss(seed)
        self.machine.boot += "+"
        self._again()

    def restart(self) -> None:
        self.settle()
        self.store.close()
        self._again()

    def _again(self) -> None:
        self.machine.disk = self.disk
        self.posted.clear()
        self.store = self._open()

    def closed(self) -> ClosedLog:
        return ClosedLogDirectory(self.disk, HOME, "b1", self.segment_bytes)

    def cut(self, position: int, epochs_kept: int) -> None:
        self.settle()
        self.store.close()
        self.closed().cut(position, epochs_kept)
        self._again()

    def start_over(self, leader: CopyOfLog) -> None:
        self.settle()
        self.store.close()
        log = leader.log
        epochs = [epoch for epoch in log.epochs if epoch.start <= log.first_position]
        self.closed().start_over(LogStart(log.store_id, log.first_position, epochs, log.queue_ends()))
        self._again()

    # What it does

    def deliver(self) -> None:
        """Let the event loop run what was posted."""
        while self.posted:
            self.posted.popleft()()

    def settle(self) -> None:
        """Write all that is queued, and tell."""
        while self.store.writer.step() or self.posted:
            self.deliver()

    def flush_step(self) -> None:
        self.settle()
        self.now_s += 11
        self.store.flusher.step()
        self.deliver()

    def begin_epoch(self, epoch: int) -> None:
        done: list[Any] = []
        self.log.begin_epoch(epoch, done.append)
        self.deliver()
        assert done == [None]

    def lead(self, epoch: int) -> None:
        self.settle()
        self.begin_epoch(epoch)
        self.log.begin_leading()

    def trust(self, is_whole: bool = True) -> None:
        done: list[Any] = []
        self.log.trust(is_whole, done.append)
        self.deliver()
        assert done == [None]

    def append(self, queue_id: int, count: int, body: bytes = b"21", topic: bytes = b"devices") -> Batch:
        raw, sizes = encode_batch(topic, queue_id, [body] * count, b"", 5)
        name = topic.decode()
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun(name, queue_id, count)])
        self.store.append(batch, lambda _batch, error: self.errors.append(error))
        return batch

    # Between two of them

    def read(self, position: int, max_bytes: int = 1 << 20) -> LogBytes:
        """What a copy is given at a position."""
        found = self.log.read_bytes(position, max_bytes)
        return self.log.read_bytes_cold(position, max_bytes) if found is None else found

    def fetch(self, leader: CopyOfLog, max_bytes: int = 1 << 20) -> int:
        """Take the next bytes of a leader, as one fetch; how many log bytes that was."""
        position = self.log.appended_position
        given = leader.read(position, max_bytes)
        if given.end > position:
            data = memoryview(b"".join(given.parts))
            assert self.log.append_copied(data, position, self.copied.append) == given.end
        return given.end - position

    def follow(self, leader: CopyOfLog, max_bytes: int = 1 << 20) -> None:
        """Fetch all that the leader has written, epochs too."""
        while True:
            self.settle()
            following = [e for e in leader.log.epochs if e.epoch > self.log.epochs[-1].epoch]
            if following and following[0].start <= self.log.appended_position:
                self.begin_epoch(following[0].epoch)
                continue
            if not self.fetch(leader, max_bytes):
                return

    def confirm(self, limit: int | None = None) -> None:
        self.log.confirm_to(self.log.durable_position if limit is None else limit)
        self.deliver()

    # What it has

    def segments(self) -> dict[str, bytes]:
        """Every segment's bytes up to the log's end."""
        end = self.log.written_position
        found: dict[str, bytes] = {}
        for segment in self.store._segments.table:
            if segment.start < end:
                raw = bytes(self.disk.content(segment.path))[: segment.end - segment.start]
                found[segment.path.name] = raw[: end - segment.start]
        return found

    def queue_bytes(self, queue_id: int = 0, topic: str = "devices") -> bytes:
        """All visible records of a queue."""
        store = self.store
        offset, end = store.bounds(topic, queue_id)
        parts: list[bytes] = []
        while offset < end:
            read = store.read_queue(topic, queue_id, 0, offset, 1 << 20, 1000)
            if read is None:
                read = store.read_queue_cold(topic, queue_id, 0, offset, 1 << 20, 1000)
            assert read.next_offset > offset, read
            parts.extend(bytes(part) for part in read.parts)
            offset = read.next_offset
        return b"".join(parts)


def founded(**options: Any) -> CopyOfLog:
    """A leader with an empty log, in epoch 2."""
    leader = CopyOfLog(**options)
    leader.trust()
    leader.lead(2)
    return leader


def joined(leader: CopyOfLog, **options: Any) -> CopyOfLog:
    """A copy of a leader that has begun where the leader's log does."""
    copy = CopyOfLog(**options)
    copy.start_over(leader)
    return copy


def refusal(call: Callable[[], object]) -> HoldMQError:
    try:
        call()
    except HoldMQError as error:
        return error
    raise AssertionError("it was not refused")


__all__ = ["SEGMENT_BYTES", "CopyOfLog", "Epoch", "SimMachine", "founded", "joined", "refusal"]
