"""A store on a simulated disk with tiny segments, without threads: nothing happens that is not asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sim_disk import SimDisk

from holdmq.config.model import StorageSection
from holdmq.record.batch import encode_batch
from storage.api.batches import Batch, BatchRun
from storage.log.store import LogStore, open_store


class Stepped:
    """A store on a simulated disk with tiny segments, without threads."""

    def __init__(self, disk: SimDisk, segment_bytes: int = 4096, keeps_hooks: bool = False) -> None:
        self.posted: deque[Callable[[], object]] = deque()
        self.now_s = 1000.0
        settings = StorageSection(data_dir="/store", retention_interval_ms=1).model_copy(
            update={
                "segment_size_bytes": segment_bytes,
                "consume_queue_file_bytes": 200,
                "tail_cache_bytes": 1,
            }
        )
        self.store: LogStore = open_store(
            settings, "b1", lambda _: 1, self.posted.append, disk=disk,
            clock_ms=lambda: int(self.now_s * 1e3), clock=lambda: self.now_s, has_threads=False,
        )  # fmt: skip
        self.store.open()
        if not keeps_hooks:
            # What holds a segment back has its own tests.
            self.store.retention.before_delete.clear()

    def append(self, queue_id: int, count: int, properties: bytes = b"", body: bytes = b"21") -> bytes:
        """Append to topic `devices`; the records, confirmed."""
        raw, sizes = encode_batch(b"devices", queue_id, [body] * count, properties, 5)
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun("devices", queue_id, count)])
        self.store.append(batch, lambda _batch, error: errors.append(error))
        errors: list[Any] = []
        while self.store.writer.step():
            pass
        self.deliver()
        assert errors == [None]
        return bytes(batch.records)

    def refused(self) -> Any:
        """Append a record that is refused; why."""
        raw, sizes = encode_batch(b"devices", 0, [b"21"], b"", 5)
        errors: list[Any] = []
        batch = Batch(memoryview(bytearray(raw)), sizes, [BatchRun("devices", 0, 1)])
        self.store.append(batch, lambda _batch, error: errors.append(error))
        while self.store.writer.step():
            pass
        self.deliver()
        (error,) = errors
        assert error is not None
        return error

    def deliver(self) -> None:
        """Let the event loop run what was posted."""
        while self.posted:
            self.posted.popleft()()

    def retain(self, age_s: int = 0) -> None:
        """Let the flushing thread's part happen, a few times, while so much time passes."""
        for _ in range(6):
            self.now_s += age_s / 6 + 1
            self.store.flusher.step()
        self.deliver()
