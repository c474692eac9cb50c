"""Any sequence of appends, reads, failures, restarts and crashes, against a simple model."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sim_disk import SimDisk
from sim_store import HOME, SEGMENT_BYTES, SimStore, check, random_runs

from storage.api.queues import HashFilter, ReadStatus

# Each is seconds of computing: minutes on a machine that has others to serve.
pytestmark = pytest.mark.timeout(900)

KEYS = [("a", 0), ("a", 1), ("b", 0), ("b", 7), ("%RETRY%c", 0)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


class StoreMachine(RuleBasedStateMachine):
    """Rules are what a broker, a disk and fate do; the model inside `SimStore` knows what must be read."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = SimStore(SimDisk(), "sync")
        self.durable = 0
        self.is_mended = True

    @initialize(flush=st.sampled_from(["sync", "async"]), retention_segments=st.sampled_from([0, 0, 2]))
    def begin(self, flush: str, retention_segments: int) -> None:
        self.sim = SimStore(SimDisk(), flush, None, retention_segments)
        self.sim.open()

    # What a broker does

    @rule(seed=st.integers(0, 1 << 16), batches=st.integers(1, 4))
    def append(self, seed: int, batches: int) -> None:
        chance = Random(seed)
        for _ in range(batches):
            self.sim.append(random_runs(chance))

    @rule(count=st.integers(1, 40))
    def append_much(self, count: int) -> None:
        for i in range(count):
            self.sim.append([(*KEYS[i % 5], 1 + i % 3, 200)])
        self.sim.settle()

    @rule(delays_ms=st.lists(st.sampled_from([0, 700, 5_000, 90_000, 10_000_000]), min_size=1, max_size=4))
    def schedule(self, delays_ms: list[int]) -> None:
        self.sim.schedule([(*KEYS[delay_ms % 3], delay_ms) for delay_ms in delays_ms])

    @rule()
    def tick(self) -> None:
        self.sim.tick()

    @precondition(lambda self: self.sim.retention_segments)
    @rule()
    def retain(self) -> None:
        """Time enough for retention: timers are appended again before their segment goes."""
        for _ in range(12):
            self.sim.settle()
            self.sim.index()
        self.sim.settle()

    @precondition(lambda self: self.sim.retention_segments and self.is_mended)
    @rule()
    def retain_all(self) -> None:
        """On a disk that works the log is not longer than it may be, once all had its time."""
        self.append_much(40)
        for _ in range(8):
            self.retain()
        store = self.sim.store
        assert store.confirmed_position - store.first_position <= 3 * SEGMENT_BYTES

    @rule()
    def write(self) -> None:
        self.sim.write()

    @rule()
    def deliver(self) -> None:
        self.sim.deliver()

    @rule()
    def settle(self) -> None:
        self.sim.settle()

    @rule()
    def index(self) -> None:
        self.sim.index()

    @rule()
    def checkpoint(self) -> None:
        self.sim.checkpoint()

    @rule(
        key=st.sampled_from(KEYS),
        part=st.floats(0, 1),
        max_bytes=st.sampled_from([1, 300, 5000]),
        max_count=st.sampled_from([1, 3, 1000]),
        is_cold=st.booleans(),
        wanted=st.sampled_from([None, HashFilter([0]), HashFilter([1], [2])]),
    )
    def read_queue(
        self,
        key: tuple[str, int],
        part: float,
        max_bytes: int,
        max_count: int,
        is_cold: bool,
        wanted: HashFilter | None,
    ) -> None:
        store = self.sim.store
        end = self.sim.model.ends.get(key, 0)
        first = store.bounds(*key)[0]
        offset = int(part * (end + 1))
        read = None
        if not is_cold:
            read = store.read_queue(*key, store.epoch, offset, max_bytes, max_count, wanted)
        if read is None:
            read = store.read_queue_cold(*key, store.epoch, offset, max_bytes, max_count, wanted)
        assert read.end_offset == end
        if offset < first:
            assert (read.status, read.next_offset) == (ReadStatus.BEHIND, first)
            return
        if offset >= end:
            assert read.status == (ReadStatus.AT_END if offset == end else ReadStatus.AHEAD)
            return
        assert read.status == ReadStatus.FOUND
        assert read.next_offset <= end
        assert read.count <= max_count
        assert read.count <= 1 or read.size_bytes <= max_bytes
        if wanted is None:
            records = self.sim.model.queue(key)[offset : offset + read.count]
            assert b"".join(map(bytes, read.parts)) == b"".join(records)
            assert read.next_offset == offset + read.count
        else:
            assert read.count == 0, "no record is untagged, and no tag has these hashes"

    @rule(part=st.floats(0, 1), max_bytes=st.sampled_from([1, 3000, 1 << 20]))
    def read_log(self, part: float, max_bytes: int) -> None:
        """From a record's start on, from disk and from memory."""
        first = self.sim.store.first_position
        starts = [place[0] for place in self.sim.model.places if place[0] >= first]
        starts.append(self.sim.store.confirmed_position)
        position = starts[int(part * (len(starts) - 1))]
        batches = self.sim.store.read_log(position, max_bytes)
        assert bool(batches) == (position < self.sim.store.confirmed_position)
        for batch in batches:
            assert batch.records == self.sim.model.log[batch.position : batch.end]
        if batches:
            assert batches[0].position in (position, (position // 8192 + 1) * 8192)
        for batch in self.sim.store.tail(position) or []:
            assert batch.records == self.sim.model.log[batch.position : batch.end]

    # What disks and fate do

    @rule(code=st.sampled_from([errno.ENOSPC, errno.EDQUOT]), where=st.sampled_from(["commitlog", "0", "7"]))
    def fill_up(self, code: int, where: str) -> None:
        self.sim.disk.failing = lambda asked, path: (
            code if asked in {"write", "preallocate"} and path.parent.name == where else None
        )
        self.is_mended = False

    @rule(room=st.integers(0, 20_000))
    def run_short(self, room: int) -> None:
        self.sim.disk.capacity_bytes = self.sim.disk.used_bytes + room
        self.is_mended = False

    @precondition(lambda self: not self.is_mended)
    @rule()
    def mend(self) -> None:
        self.mend_disk()
        self.sim.settle()
        sent = self.sim.append([("a", 0, 1, 0)])
        self.sim.settle()
        if not sent.is_done:
            # The files of queues had no room either; once they have, all goes on.
            self.sim.index()
            sent = self.sim.append([("a", 0, 1, 0)])
            self.sim.settle()
        assert sent.is_done, sent.error
        assert self.sim.store.state().ok

    def mend_disk(self) -> None:
        self.sim.disk.failing = lambda _operation, _path: None
        self.sim.disk.capacity_bytes = None
        self.is_mended = True

    @rule(
        operation=st.sampled_from(["write", "sync"]),
        where=st.sampled_from(["commitlog", "0"]),
        seed=st.integers(0, 1 << 16),
        is_power=st.booleans(),
    )
    def fail_for_good(self, operation: str, where: str, seed: int, is_power: bool) -> None:
        """EIO: whatever happens next, it is not acknowledged; then the machine is started again."""
        self.mend_disk()
        self.sim.settle()
        self.sim.disk.failing = lambda asked, path: (
            errno.EIO if asked == operation and path.parent.name == where else None
        )
        for _ in range(2):
            self.append(seed, 2)
            self.sim.settle()
            self.sim.checkpoint()
        self.sim.deliver()
        if not self.sim.store.state().ok:
            late = self.sim.append([("a", 0, 1, 0)])
            self.sim.settle()
            assert late.error is not None
            assert not late.error.retriable
        self.crash(seed, is_power=True)

    @rule(seed=st.integers(0, 1 << 20), is_power=st.booleans())
    def crash(self, seed: int, is_power: bool) -> None:
        sim = self.sim
        self.mend_disk()
        synced, model, epoch = sim.store.synced_position, sim.model, sim.epoch
        promised = len(model.log) if sim.flush == "sync" or not is_power else synced
        if is_power:
            sim.disk = sim.disk.after_power_loss(seed)
        else:
            sim.kill()
        model.first_position = sim.store.first_position
        found = check(sim.disk.copy(), sim.flush, model, promised, sim.clock, epoch, False, Random(seed))
        found.close()
        self.reopen()
        assert sim.store.epoch == epoch + 1

    @rule()
    def close(self) -> None:
        self.mend_disk()
        self.sim.settle()
        epoch, ends = self.sim.epoch, dict(self.sim.model.ends)
        self.sim.store.close()
        before = self.kept()
        self.reopen()
        assert self.kept() == before
        assert self.sim.model.ends == ends
        assert self.sim.epoch == epoch, "a clean close takes nothing back"

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1), is_clean=st.booleans())
    def lose_consume_queues(self, keys: set[tuple[str, int]], is_clean: bool) -> None:
        self.mend_disk()
        self.sim.settle()
        if is_clean:
            self.sim.store.close()
        else:
            self.sim.kill()
        for topic, queue_id in keys:
            directory = HOME / "consumequeue" / topic / str(queue_id)
            for name in self.sim.disk.list(directory):
                self.sim.disk.unlink(directory / name)
        before = self.kept()
        self.sim.model.first_position = self.sim.store.first_position
        check(
            self.sim.disk.copy(),
            self.sim.flush,
            self.sim.model,
            len(self.sim.model.log),
            self.sim.clock,
            self.sim.epoch,
            True,
        )
        self.reopen()
        assert self.kept() == before

    def kept(self) -> bytes:
        """The log from its first position on."""
        return bytes(self.sim.model.log[self.sim.store.first_position :])

    def reopen(self) -> None:
        model = self.sim.model
        known = {*model.ends, *KEYS, ("%TIMER", 0)}
        self.sim.open()
        model.found(self.sim.store)
        model.log.extend(bytes(self.sim.store.confirmed_position - len(model.log)))
        assert set(model.ends) <= known

    @invariant()
    def what_is_visible_is_what_was_confirmed(self) -> None:
        store, model = self.sim.store, self.sim.model
        assert store.confirmed_position == len(model.log)
        bounds = model.bounds(store.first_position, len(model.log), [])
        for key, end in model.ends.items():
            assert store.bounds(*key) == bounds[key]
            assert bounds[key][1] == end
            assert self.sim.retention_segments or bounds[key][0] == 0
        assert store.synced_position <= store.writer.written
        if self.sim.flush == "sync":
            assert store.synced_position >= store.confirmed_position

    def teardown(self) -> None:
        self.mend_disk()
        self.sim.settle()
        self.sim.check_reads()
        self.sim.store.close()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
