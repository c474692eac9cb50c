"""Producers' windows over restarts: a snapshot beside the log, and what the log says behind it.

The snapshot is captured on the loop in slices, each of one log position or later
(`broker.produce.core.produced` takes nothing twice), and written on a thread once the log is fsynced up to
what it knows: it never knows more than the log does after a crash. Retention does not wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import structlog

from broker.kernel.request_family import RequestFamily
from broker.kernel.snapshot_file import SnapshotFile
from broker.produce.core.produced import PRODUCED_QUEUE, Captured, ProducedReplay, capture, snapshot_of
from broker.produce.core.received import ReceivedIds
from broker.produce.core.sequences import Key, Sequences
from holdmq.errors import BehindError, CorruptRecordError, HoldMQError, RecordError
from holdmq.files.atomic_file import Loaded
from holdmq.names.topics import PRODUCED_TOPIC
from holdmq.record.codec import decode_record
from storage.api.store import OrderedStore

TICK_S: Final = 1.0
SNAPSHOT_INTERVAL_S: Final = 10.0
"""How old a snapshot gets while records come: as the log's checkpoint."""
SNAPSHOT_LOG_BYTES: Final = 32 << 20
"""How far the log may grow past it: what a start reads, as far as a checkpoint may lie back."""
SNAPSHOT_REST: Final = 50
"""So many times the time of a snapshot passes before the next: 2 % of a core, however many windows."""
SLICE_WINDOWS: Final = 256
"""Windows captured in one turn of the loop: well below 1 ms."""
READ_BYTES: Final = 4 << 20
REPLAY_MAX_BYTES: Final = 2 << 30
"""What a start reads at most: if snapshots failed for long, windows are rather forgotten than waited for."""

log = structlog.get_logger("holdmq.broker")


class _ProducersSnapshot(NamedTuple):
    position: int
    log_epoch: int
    windows: list[Captured]
    keys: list[Key]
    received: list[list[Any]]
    uids: list[int]


class Producers(RequestFamily):
    """Loads the windows of `sequences` at a start, and takes snapshots of them while it runs.

    `received`, what is known of QoS 2 publishes, goes with them.
    """

    def __init__(
        self, store: OrderedStore, sequences: Sequences, received: ReceivedIds, file: SnapshotFile
    ) -> None:
        self.snapshots = self.snapshot_failures = self.recovered = 0
        self._store = store
        self._sequences = sequences
        self._received = received
        self._file = file
        self._version = 0
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "producers")
        self._timer: asyncio.TimerHandle | None = None
        self._taken: _ProducersSnapshot | None = None
        self._saved_position = 0
        self._known_position = 0
        self._is_capturing = False
        self._saving: asyncio.Future[float] | None = None
        self._earliest_at = self._next_at = 0.0

    def numbers(self) -> Mapping[str, int]:
        return {
            "producer_windows_recovered": self.recovered,
            "producer_snapshots_total": self.snapshots,
            "producer_snapshot_failures_total": self.snapshot_failures,
        }

    # Start

    def load(self) -> None:
        """Put the windows together from snapshot and log. Blocking; before the first PRODUCE.

        What cannot be read is said and done without: its producers begin new epochs, and what they send
        again may be stored twice. Raises StorageError when the disk fails, or no snapshot is whole.
        """
        replay = ProducedReplay(self._store.epoch_limit)
        position = self._load_snapshot(replay, self._file.load(accept_backup=True))
        end = self._store.confirmed_position
        if end - position > REPLAY_MAX_BYTES:
            log.error(
                "the snapshot of producers' windows is too old; what is sent again may be stored twice",
                path=str(self._file.path),
                bytes_behind=end - position,
            )
            replay, position = ProducedReplay(self._store.epoch_limit), end
        self._replay(replay, position, end)
        replay.restore(self._sequences, self._loop.time())
        self.recovered = len(self._sequences)
        self._saved_position = position
        if self.recovered:
            log.info("producers' windows are known", windows=self.recovered, log_bytes_read=end - position)

    def _load_snapshot(self, replay: ProducedReplay, loaded: Loaded | None) -> int:
        """Where the log is to be read from."""
        if loaded is None:
            return self._first_position()
        self._version = loaded.data_version
        content: dict[str, Any] = loaded.content
        position = int(content.get("position", 0))
        limit = self._store.epoch_limit(int(content.get("epoch", 0)))
        if position > (self._store.confirmed_position if limit is None else limit):
            log.error(
                "the snapshot of producers' windows is of another log; it is not used", position=position
            )
            return self._first_position()
        replay.load(content.get("windows", {}), position)
        self._received.load(content.get("received", {}))
        if position < self._store.first_position:
            log.warning(
                "the log behind producers' windows is gone; what is sent again may be stored twice",
                position=position,
                first_position=self._store.first_position,
            )
            replay.forget_bindings()
            return self._store.first_position
        return position

    def _first_position(self) -> int:
        """Where the first record of `%PRODUCED%` that is kept lies; the log's end if there is none."""
        first, end = self._store.bounds(PRODUCED_TOPIC, PRODUCED_QUEUE)
        if first < end:
            read = self._store.read_queue_cold(PRODUCED_TOPIC, PRODUCED_QUEUE, 0, first, 1, 1)
            if read.parts:
                return decode_record(read.parts[0]).physical_offset
        return self._store.confirmed_position

    def _replay(self, replay: ProducedReplay, position: int, end: int) -> None:
        while position < end:
            try:
                batches = self._store.read_log(position, READ_BYTES)
                for batch in batches:
                    replay.apply(batch)
                    self._received.apply(batch)
                position = batches[-1].end if batches else end
            except (CorruptRecordError, BehindError, RecordError) as error:
                log.error("what is sent again may be stored twice: the log is damaged", reason=str(error))
                replay.forget_bindings()
                if isinstance(error, RecordError):
                    return
                position = error.resume_at

    def start(self) -> None:
        """Begin to take snapshots."""
        self._timer = self._loop.call_later(TICK_S, self._tick)

    # Snapshots

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        if self._taken is not None:
            self._save()
            return
        grown = self._store.confirmed_position - self._saved_position
        now = self._loop.time()
        is_idle = self._saving is None and not self._is_capturing
        if (
            is_idle
            and grown
            and self._file.is_worth(grown)
            and (now >= self._next_at or (grown >= SNAPSHOT_LOG_BYTES and now >= self._earliest_at))
        ):
            self.take_snapshot()

    def take_snapshot(self) -> None:
        """Capture the windows, then save them once the log is fsynced that far."""
        store = self._store
        keys, uids = self._sequences.keys(), self._received.uids()
        keys.reverse()
        uids.reverse()
        self._is_capturing = True
        self._capture(_ProducersSnapshot(store.confirmed_position, store.epoch, [], keys, [], uids))

    def _capture(self, snapshot: _ProducersSnapshot) -> None:
        keys, uids = snapshot.keys, snapshot.uids
        some = [keys.pop() for _ in range(min(SLICE_WINDOWS, len(keys)))]
        snapshot.windows.extend(capture(self._sequences, some))
        for _ in range(min(SLICE_WINDOWS - len(some), len(uids))):
            captured = self._received.capture(uids.pop())
            if captured is not None:
                snapshot.received.append(captured)
        if keys or uids:
            self._loop.call_soon(self._capture, snapshot)
            return
        # Later slices know of what was confirmed after the first one's position.
        self._known_position = self._store.confirmed_position
        self._taken, self._is_capturing = snapshot, False
        self._save()

    def _save(self) -> None:
        snapshot = self._taken
        if snapshot is None or self._saving is not None or self._store.synced_position < self._known_position:
            return
        self._taken = None
        future = self._loop.run_in_executor(self._thread, self._write, snapshot)
        self._saving = future

        def done(finished: asyncio.Future[float]) -> None:
            self._saving = None
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                self._saved_position = snapshot.position
                self.snapshots += 1
                now = self._loop.time()
                self._earliest_at = now + SNAPSHOT_REST * finished.result()
                self._next_at = max(self._earliest_at, now + SNAPSHOT_INTERVAL_S)
                return
            self.snapshot_failures += 1
            if not isinstance(error, HoldMQError):
                raise error
            log.error(
                "the snapshot of producers' windows is not written; the log has them", reason=str(error)
            )

        future.add_done_callback(done)

    def _write(self, snapshot: _ProducersSnapshot) -> float:
        """On the thread: save; the CPU time that it took."""
        began = time.thread_time()
        self._version += 1
        content = {
            "position": snapshot.position,
            "epoch": snapshot.log_epoch,
            "windows": snapshot_of(snapshot.windows),
            "received": {f"{number:08}": row for number, row in enumerate(snapshot.received)},
        }
        self._file.save(content, self._version)
        return time.thread_time() - began

    def close(self) -> None:
        """Stop; a snapshot under way is finished (blocking)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._thread.shutdown(wait=True)
