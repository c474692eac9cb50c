"""The log engine on a simulated disk, stepped by hand, beside a model of what it has promised.

The model knows every batch in the order of the log and what was said about it. `check` opens the
store that a crash left and compares: nothing promised is missing, nothing is there that was not
appended, every index equals one built anew, nothing stale lies behind the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from sim_disk import SimDisk
from sim_notes import Note, check_keys, check_timer, notes_of

from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.record.batch import encode_batch
from holdmq.record.codec import encode_record
from storage.api.batches import Batch, BatchRun
from storage.api.queues import ReadStatus
from storage.api.timer import DelayedRecord
from storage.log.consume_queue import ConsumeQueues
from storage.log.core.entries import ENTRY, ENTRY_SIZE, Entries, entries_of
from storage.log.core.names import offset_of
from storage.log.store import LogStore, open_store
from storage.log.writer import Pending

HOME: Final = Path("/store")
SEGMENT_BYTES: Final = 8192
QUEUE_FILE_BYTES: Final = 400
KEY_SLOTS: Final = 16
KEY_ENTRIES: Final = 100
RUN_OUT_PART: Final = 0.1
"""Crashes after which every timer is let run to its end."""
Key = tuple[str, int]


def new_store(
    disk: SimDisk,
    flush: str,
    post: Callable[[Callable[[], object]], object],
    clock: Clock,
    retention_segments: int = 0,
) -> LogStore:
    """A store with tiny segments, files and caches, so that little work meets every border."""
    settings = StorageSection.model_validate({"data_dir": str(HOME), "flush": flush}).model_copy(
        update={
            "segment_size_bytes": SEGMENT_BYTES,
            "consume_queue_file_bytes": QUEUE_FILE_BYTES,
            "tail_cache_bytes": 6000,
            "retention_segments": retention_segments,
            # A disk without a byte left is a case of its own; how full it is otherwise is not.
            "disk_early_percent": 1000.0,
            "disk_forced_percent": 1000.0,
            "disk_refuse_percent": 1000.0,
        }
    )
    store = open_store(
        settings, "b1", lambda _: 1, post, disk=disk, clock_ms=clock.ms, clock=clock.s, has_threads=False
    )  # fmt: skip
    store.index.keys.slots, store.index.keys.entries_max = KEY_SLOTS, KEY_ENTRIES
    return store


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def s(self) -> float:
        return self.now_s

    def ms(self) -> int:
        return 1_700_000_000_000 + int(self.now_s * 1e3)

    def copy(self) -> Clock:
        clock = Clock()
        clock.now_s = self.now_s
        return clock


class Sent:
    """A batch and what was said about it: `error` once refused, `is_done` once confirmed."""

    __slots__ = ("batch", "error", "is_done", "notes")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.notes: list[Note] = []
        self.error: StorageError | None = None
        self.is_done = False


class Model:
    """What the log must hold: `log` is byte for byte its confirmed part, blanks and what went as zeros.

    `places` has position, queue and offset of every record, `notes` what its indexes must say, and
    `released` the timers whose copies were confirmed, ever.
    """

    def __init__(self) -> None:
        self.log = bytearray()
        self.record_bytes = 0
        self.ends: dict[Key, int] = {}
        self.places: list[tuple[int, Key, int]] = []
        self.first_position = 0
        self.records: dict[Key, list[bytes]] = {}
        self.in_flight: deque[Sent] = deque()
        self.doubtful: list[Sent] = []
        self.notes: list[Note] = []
        self.released: set[int] = set()

    def confirm(self, batch: Batch, notes: list[Note]) -> None:
        assert batch.position >= len(self.log)
        place(self.log, batch)
        self.record_bytes += len(batch.records)
        self.notes += notes
        for note in notes:
            if note.leaves is not None:
                assert note.leaves not in self.released, "each message is released once"
                self.released.add(note.leaves)
        for run in batch.runs:
            assert run.base_offset == self.ends.get((run.topic, run.queue_id), 0), "offsets are dense"
            self.ends[run.topic, run.queue_id] = run.base_offset + run.count
        at = 0
        for run in batch.runs:
            key = (run.topic, run.queue_id)
            of_queue = self.records.setdefault(key, [])
            for index in range(at, at + run.count):
                begin = int(batch.starts[index])
                self.places.append((batch.position + begin, key, run.base_offset + index - at))
                of_queue.append(bytes(batch.records[begin : begin + int(batch.sizes[index])]))
            at += run.count

    def queue(self, key: Key) -> list[bytes]:
        """A queue's records, from offset 0 on."""
        return self.records.get(key, [])

    def possible(self) -> tuple[bytearray, list[Batch], list[Note]]:
        """The longest log that may be found: behind what is confirmed, what nobody was told about."""
        log, batches, notes = bytearray(self.log), [], list(self.notes)
        for sent in (*self.doubtful, *self.in_flight):
            if sent.batch.position >= len(log):
                place(log, sent.batch)
                batches.append(sent.batch)
                notes += sent.notes
        return log, batches, notes

    def found(self, store: LogStore) -> None:
        """Continue from what a store holds after a crash that was checked."""
        keys, released = list(self.ends), self.released
        self.__init__()  # type: ignore[misc]
        self.first_position = store.first_position
        for key in keys:
            first, following = store.bounds(*key)
            if following:
                self.ends[key] = first
                self.records[key] = [b""] * first
        for batch in read_all(store):
            self.confirm(batch, notes_of(batch))
        if store.first_position:
            # A copy may have gone with its segment; what async flush lost is released again.
            self.released |= released - {note.waits for note in self.notes}

    def bounds(self, first_position: int, end: int, in_flight: list[Batch]) -> dict[Key, tuple[int, int]]:
        """First and next offset of every queue in a log that begins and ends there."""
        places = list(self.places)
        for batch in in_flight:
            offsets = [
                ((run.topic, run.queue_id), run.base_offset + i)
                for run in batch.runs
                for i in range(run.count)
            ]
            starts = (batch.starts + batch.position).tolist()
            places += [(start, key, offset) for start, (key, offset) in zip(starts, offsets, strict=True)]
        firsts: dict[Key, int] = {}
        # A queue of which nothing is left goes on counting.
        following = {key: count for key, count in self.bases().items() if count}
        for position, key, offset in places:
            if position < end:
                following[key] = offset + 1
                if position >= first_position:
                    firsts.setdefault(key, offset)
        return {key: (firsts.get(key, count), count) for key, count in following.items()}

    def bases(self) -> dict[Key, int]:
        """The offset at which the model began to know each queue."""
        return {**self.ends, **{key: offset for _, key, offset in reversed(self.places)}}


def place(log: bytearray, batch: Batch) -> None:
    log.extend(bytes(batch.position - len(log)))
    log.extend(batch.records)


class SimStore:
    """A store, its disk, its "event loop" and the model; nothing happens that is not asked for."""

    def __init__(
        self, disk: SimDisk, flush: str, clock: Clock | None = None, retention_segments: int = 0
    ) -> None:
        self.disk = disk
        self.flush = flush
        self.retention_segments = retention_segments
        self.clock = clock or Clock()
        self.posted: deque[Callable[[], object]] = deque()
        self.model = Model()
        self.appending: Sent | None = None
        self.store = new_store(disk, flush, self.posted.append, self.clock, retention_segments)
        self.epoch = 0
        self.serial = 0

    def open(self) -> None:
        self.posted.clear()
        self.store = new_store(self.disk, self.flush, self.posted.append, self.clock, self.retention_segments)
        self._watch_appends()
        self.store.open()
        self.epoch = self.store.epoch

    def kill(self) -> None:
        """End the process, not the machine."""
        self.disk = self.disk.after_kill()

    def _watch_appends(self) -> None:
        """Let the model know of every batch that is stamped: the timer appends some of its own."""
        put = self.store.writer.put

        def watched(pending: Pending) -> None:
            sent, done = self.appending or Sent(pending.batch), pending.done
            assert sent.batch is pending.batch
            sent.notes = notes_of(pending.batch)

            def answered(batch: Batch, error: StorageError | None) -> None:
                self._answered(sent, error)
                done(batch, error)

            pending.done = answered
            self.model.in_flight.append(sent)
            put(pending)

        self.store.writer.put = watched

    def append(self, runs: list[tuple[str, int, int, int]]) -> Sent:
        """Append a batch of (topic, queue, records, body bytes) runs; some records have keys and ids."""
        raw, sizes, made = b"", [], []
        for topic, queue_id, count, body_bytes in runs:
            serials = range(self.serial, self.serial + count)
            bodies = [b"%d." % serial * (1 + body_bytes // 8) for serial in serials]
            properties = [_properties(serial) for serial in serials]
            part, part_sizes = encode_batch(topic.encode(), queue_id, bodies, properties, 5)
            raw += part
            sizes.append(part_sizes)
            made.append(BatchRun(topic, queue_id, count))
            self.serial += count
        sent = Sent(Batch(memoryview(bytearray(raw)), np.concatenate(sizes), made))
        self.appending = sent
        self.store.append(sent.batch, lambda _, error: self._refused(sent, error))
        self.appending = None
        return sent

    def schedule(self, messages: list[tuple[str, int, int]]) -> None:
        """Delay messages: (topic, queue, ms from now)."""
        delayed = []
        for topic, queue_id, delay_ms in messages:
            record = encode_record(
                topic.encode(), queue_id, b"late %d" % self.serial, _properties(self.serial), 5
            )
            delayed.append(DelayedRecord(record, self.clock.ms() + delay_ms))
            self.serial += 1
        self.store.timer.schedule(delayed, lambda _batch, _error: None)

    def _refused(self, sent: Sent, error: StorageError | None) -> None:
        """What was refused before it was stamped comes by no other way."""
        if sent.batch.position < 0:
            assert error is not None
            sent.error = error

    def _answered(self, sent: Sent, error: StorageError | None) -> None:
        assert not sent.is_done
        assert sent.error is None
        assert self.model.in_flight.popleft() is sent, "answered in order"
        if error is None:
            sent.is_done = True
            self.model.confirm(sent.batch, sent.notes)
        else:
            sent.error = error
            # A disk that failed may have it nevertheless; a full one must not.
            if not error.retriable:
                self.model.doubtful.append(sent)

    def write(self) -> bool:
        """One group of the writer."""
        return self.store.writer.step()

    def tick(self) -> None:
        """One round of the timer, a little later."""
        self.clock.now_s += 0.5
        self.store.timer.step()

    def index(self) -> None:
        """One interval of the flusher, long enough for retention to look again."""
        self.clock.now_s += 1.1
        self.store.timer.step()
        self.store.flusher.step()

    def checkpoint(self) -> None:
        """One interval of the flusher, with a checkpoint."""
        self.clock.now_s += 11
        self.store.timer.step()
        self.store.flusher.step()

    def deliver(self) -> None:
        """Let the event loop run what was posted."""
        while self.posted:
            self.posted.popleft()()

    def settle(self) -> None:
        """Write and answer everything."""
        while self.write() or self.posted:
            self.deliver()

    def check_reads(self) -> None:
        """What is visible is exactly what was confirmed, wherever it is read from."""
        store, model = self.store, self.model
        assert store.confirmed_position == len(model.log)
        model.first_position = store.first_position
        bounds = model.bounds(store.first_position, len(model.log), [])
        assert {key: store.bounds(*key) for key in model.ends} == bounds
        for batch in read_all(store):
            assert batch.records == model.log[batch.position : batch.end]
        for batch in store.tail(store.confirmed_position - 1) or []:
            assert batch.records == model.log[batch.position : batch.end]
        for (topic, queue_id), end in model.ends.items():
            offset = max(store.bounds(topic, queue_id)[0], end - 12)
            while offset < end:
                read = store.read_queue(topic, queue_id, store.epoch, offset, 500, 5)
                if read is None:
                    read = store.read_queue_cold(topic, queue_id, store.epoch, offset, 500, 5)
                assert read.status == ReadStatus.FOUND
                assert read.next_offset > offset
                for part in read.parts:
                    assert bytes(part) in model.log
                offset = read.next_offset
            read = store.read_queue(topic, queue_id, store.epoch, end, 500, 5)
            assert read is not None
            assert read.status == ReadStatus.AT_END


def read_all(store: LogStore) -> list[Batch]:
    """The whole log, from disk."""
    batches: list[Batch] = []
    position = store.first_position
    while position < store.confirmed_position:
        read = store.read_log(position, 1 << 20)
        if not read:
            break
        batches += read
        position = read[-1].end
    return batches


def check(
    disk: SimDisk,
    flush: str,
    model: Model,
    promised_end: int,
    clock: Clock,
    epoch: int,
    is_old: bool = False,
    chance: Random | None = None,
) -> LogStore:
    """Open what a crash left, and compare; the open store, on which nothing was appended.

    The log must reach `promised_end`. `epoch` is the one in which everything of the model was
    seen; unless the crash came between sessions (`is_old`) a later one must have begun. With `chance`
    some keys are looked up, and now and then every timer runs to its end: then something was appended.
    """
    clock = clock.copy()
    store = new_store(disk, flush, lambda callback: callback(), clock)
    store.open()
    batches = read_all(store)
    end = store.confirmed_position
    assert end >= promised_end, f"the log ends at {end}, {promised_end} was promised"
    log, in_flight, notes = model.possible()
    first = store.first_position
    assert first <= model.first_position + SEGMENT_BYTES, "one segment goes at a time"
    _check_log(batches, log, first, end)
    if len(model.log) > end:
        assert store.epoch > epoch, "who saw more must be told"
    if not is_old:
        assert store.epoch > epoch
    expected = model.bounds(first, end, in_flight)
    assert {key: store.bounds(*key) for key in expected} == expected
    _check_queues(store, disk, batches, expected)
    _check_nothing_behind(disk, end)
    if store.epoch > epoch > 0:
        _check_ahead(store, model, epoch)
    notes = [note for note in notes if note.position < end]
    check_keys(store, disk, HOME / "keyindex", notes, chance)

    def run_out() -> bool:
        if chance is None or chance.random() >= RUN_OUT_PART:
            return False
        clock.now_s += 20_000
        return True

    check_timer(store, notes, run_out)
    return store


def _check_log(batches: list[Batch], log: bytearray, first: int, end: int) -> None:
    for batch in batches:
        assert batch.end <= len(log), "nothing is invented"
        assert batch.records == log[batch.position : batch.end], f"at {batch.position}"
    # Whatever is not a record below the end is a blank, and the model has zeros there.
    between = bytearray(log[:end])
    for batch in batches:
        between[batch.position : batch.end] = bytes(len(batch.records))
    assert not between[first:].strip(b"\0"), "nothing is left out"
    if batches:
        assert end == batches[-1].end or end % SEGMENT_BYTES == 0


def _check_queues(
    store: LogStore, disk: SimDisk, batches: list[Batch], bounds: dict[Key, tuple[int, int]]
) -> None:
    """The entries on disk are those that the log gives."""
    files = ConsumeQueues(disk, HOME / "consumequeue", QUEUE_FILE_BYTES)
    rebuilt: dict[Key, list[Entries]] = {}
    for batch in batches:
        entries, at = entries_of([batch]), 0
        for run in batch.runs:
            rebuilt.setdefault((run.topic, run.queue_id), []).append(entries[at : at + run.count])
            at += run.count
    for key in files.on_disk():
        behind = files.read(key, bounds.get(key, (0, 0))[1], 100)
        assert not behind["size"].any(), f"{key} has entries behind its end"
    for key, parts in rebuilt.items():
        expected = b"".join(part.tobytes() for part in parts)
        first, following = bounds[key]
        assert len(expected) == (following - first) * ENTRY_SIZE
        raw = b""
        while len(raw) < len(expected):
            offset = first + len(raw) // ENTRY_SIZE
            part = files.read(key, offset, following - offset)
            assert len(part), f"{key} has no entry {offset}"
            raw += part.tobytes()
        assert raw == expected, f"the consume queue of {key}"
        last = np.frombuffer(raw, ENTRY)[-1]
        read = store.read_queue_cold(*key, 0, following - 1, 1, 1)
        assert read.status == ReadStatus.FOUND
        assert read.size_bytes == last["size"]


def _check_nothing_behind(disk: SimDisk, end: int) -> None:
    for name in disk.list(HOME / "commitlog"):
        start = offset_of(name)
        if start is None:
            continue  # the reserve, which holds no records yet
        content = disk.content(HOME / "commitlog" / name)
        assert not content[max(0, end - start) :].strip(b"\0"), f"stale bytes behind {end}"


def _check_ahead(store: LogStore, model: Model, epoch: int) -> None:
    """Positions of the older epoch that are gone are answered with where to go on."""
    for key, seen in model.ends.items():
        end = store.bounds(*key)[1]
        if end >= seen:
            continue
        read = store.read_queue(*key, epoch, seen, 1000, 10)
        if read is None:
            read = store.read_queue_cold(*key, epoch, seen, 1000, 10)
        assert (read.status, read.next_offset) == (ReadStatus.AHEAD, end)


def random_runs(chance: Random) -> list[tuple[str, int, int, int]]:
    """A batch over one or several queues, now and then large."""
    count = chance.choice((1, 1, 1, 2, 3))
    keys = chance.sample([("a", 0), ("a", 1), ("b", 0), ("b", 7), ("%RETRY%c", 0)], count)
    body = chance.choice((0, 10, 100, 900))
    return [(topic, queue_id, chance.choice((1, 1, 2, 5)), body) for topic, queue_id in keys]


def _properties(serial: int) -> bytes:
    """A tag for all, one of a few keys for some, an id of its own for others, or both."""
    keys = b"KEYS\x01k%d\x02" % (serial % 5) if serial % 4 == 0 else b""
    unique = b"UNIQ_KEY\x01u%d\x02" % serial if serial % 6 == 0 else b""
    return b"TAGS\x01%d/t\x02" % (serial % 7) + keys + unique
