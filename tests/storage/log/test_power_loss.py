"""Power loss at every write and fsync of scripted runs: what was promised is there, and nothing else."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import structlog
from sim_disk import PowerLoss, SimDisk
from sim_store import SEGMENT_BYTES, SimStore, check, random_runs

# Each is seconds of computing: minutes on a machine that has others to serve.
pytestmark = pytest.mark.timeout(900)

SYNC_POINTS_MIN = 2_000
SYNC_PARTS = 5
ASYNC_POINTS_MIN = 600
RETENTION_POINTS_MIN = 700
CLOSED_PART = 0.2
"""Of the stores that were found: closing one writes it all once more, to a disk that nobody looks at."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of recoveries have nothing new to say."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


class Script:
    """A seeded run of a store; at each point of it the power is lost, in a copy."""

    def __init__(self, seed: int, flush: str, retention_segments: int) -> None:
        self.chance = Random(seed)
        self.seed = seed
        self.sim = SimStore(SimDisk(), flush, None, retention_segments)
        self.watch()
        self.points = 0
        self.again = 0
        self.losses = 0
        self.refused = 0
        self.released = 0
        self.rolled = 0
        self.durable = 0
        self.first_position = 0
        self.is_running = False

    def watch(self) -> None:
        self.sim.disk.at_point = self.lose_power

    def lose_power(self, point: int, _operation: str, _path: Path) -> None:
        self.points += 1
        sim = self.sim
        seed = self.seed * 1_000_003 + point
        disk = sim.disk.after_power_loss(seed)
        disk.capacity_bytes = None
        if self.is_running:
            sim.model.first_position = sim.store.first_position
        promised = len(sim.model.log) if sim.flush == "sync" else self.synced()
        chance = Random(seed)
        if chance.random() < 0.25:
            disk = self.lose_power_again(disk, chance)
        store = check(disk, sim.flush, sim.model, promised, sim.clock, sim.epoch, not self.is_running, chance)
        self.losses += store.confirmed_position < len(sim.model.log)
        if chance.random() < CLOSED_PART:
            store.close()

    def synced(self) -> int:
        """What async flush promises; a store that is just opening does not know it yet."""
        self.durable = max(self.durable, self.sim.store.synced_position)
        return self.durable

    def lose_power_again(self, disk: SimDisk, chance: Random) -> SimDisk:
        """The start after it does not get through either."""
        last = chance.randrange(1, 40)

        def off(point: int, _operation: str, _path: Path) -> None:
            disk.is_off = point == last

        disk.at_point = off
        again = SimStore(disk, self.sim.flush, self.sim.clock, self.sim.retention_segments)
        try:
            again.open()
            again.store.timer.step()
            again.store.index.keys.step()
        except PowerLoss:
            self.again += 1
        return disk.after_power_loss(chance.randrange(1 << 30))

    def play(self, points: int) -> None:
        sim = self.sim
        sim.open()
        self.is_running = True
        while self.points < points:
            self.move()
        sim.clock.now_s += 5
        sim.tick()
        sim.settle()
        sim.check_reads()
        self.is_running = False
        sim.store.close()
        self.first_position = sim.store.first_position
        self.released += len(sim.model.released)
        self.rolled += sim.store.timer.rolled

    def move(self) -> None:
        sim, chance = self.sim, self.chance
        what = chance.random()
        if what < 0.37:
            for _ in range(chance.choice((1, 1, 2, 4))):
                sim.append(random_runs(chance))
        elif what < 0.45:
            delays_ms = chance.choices((0, 300, 1_000, 4_000, 90_000, 10_000_000), k=chance.choice((1, 4)))
            sim.schedule([(*chance.choice((("a", 0), ("late", 1))), delay_ms) for delay_ms in delays_ms])
        elif what < 0.65:
            sim.write()
        elif what < 0.77:
            sim.deliver()
        elif what < 0.83:
            sim.tick()
        elif what < 0.90:
            sim.index()
            if sim.retention_segments:
                self.roll()
        elif what < 0.93:
            sim.checkpoint()
        elif what < 0.96:
            sim.check_reads()
        elif what < 0.98:
            self.fill_up()
        elif what < 0.995 or sim.retention_segments:
            self.restart(chance.random() < 0.5)

    def roll(self) -> None:
        """Let more be due, and retention come through: timers are appended again, in steps, before."""
        for _ in range(4):
            self.sim.append([("a", 0, 1, 2500)])
        for _ in range(5):
            self.sim.settle()
            self.sim.index()

    def fill_up(self) -> None:
        """No space for a while: batches are refused, or split between the two sides of the moment."""
        sim = self.sim
        if self.chance.random() < 0.4:
            sim.disk.capacity_bytes = sim.disk.used_bytes + self.chance.choice((0, 0, 500))
        else:
            # File systems that copy on write run out of space inside of a preallocated file, too.
            directory = self.chance.choice(("commitlog", "commitlog", "0"))
            sim.disk.failing = failing("write", errno.ENOSPC, directory)
        sent = []
        for _ in range(3):
            sent += [sim.append(random_runs(self.chance)) for _ in range(self.chance.choice((1, 2, 3)))]
            sim.write()
        sim.index()
        sim.deliver()
        sim.disk.capacity_bytes = None
        sim.disk.failing = failing("", 0)
        sim.settle()
        assert sim.store.state().ok or not sim.append(random_runs(self.chance)).error
        sim.settle()
        assert sim.store.state().ok
        self.refused += sum(each.error is not None for each in sent)

    def restart(self, is_clean: bool) -> None:
        sim = self.sim
        if sim.retention_segments:
            # More is due than retention has seen to when the end comes.
            for _ in range(12):
                sim.append([("a", 0, 1, 1500)])
            sim.settle()
        self.rolled += sim.store.timer.rolled
        if is_clean:
            sim.settle()
            self.is_running = False
            sim.store.close()
        else:
            self.is_running = False
            sim.kill()
            self.watch()
        before = len(sim.model.log)
        sim.open()
        assert sim.store.confirmed_position >= before, "a killed process takes nothing with it"
        self.is_running = True
        sim.model.found(sim.store)
        if sim.retention_segments:
            # The first pass of retention comes before the first checkpoint.
            sim.append(random_runs(self.chance))
            sim.settle()
            sim.index()


def failing(operation: str, code: int, directory: str = "") -> Callable[[str, Path], int | None]:
    return lambda asked, path: code if asked == operation and path.parent.name == directory else None


def play(flush: str, seeds: range, points: int, retention_segments: int = 0) -> dict[str, int]:
    names = ("points", "again", "losses", "refused", "first_position", "released", "rolled")
    totals = dict.fromkeys(names, 0)
    for seed in seeds:
        script = Script(seed, flush, retention_segments)
        script.play(points)
        for name in totals:
            totals[name] += getattr(script, name)
    print(f"{flush}: {totals}")
    return totals


@pytest.mark.parametrize("part", range(SYNC_PARTS))
def test_sync_flush_keeps_every_promise_at_every_point(part: int) -> None:
    totals = play("sync", range(2 * part, 2 * part + 2), SYNC_POINTS_MIN // SYNC_PARTS * 2 // 5)
    assert totals["points"] >= SYNC_POINTS_MIN // SYNC_PARTS
    assert totals["again"] > 50
    assert totals["released"] > 0
    assert totals["losses"] == 0


def test_async_flush_loses_only_a_suffix_and_says_so() -> None:
    totals = play("async", range(100, 103), 170)
    assert totals["points"] >= ASYNC_POINTS_MIN
    assert totals["losses"] > 50
    assert totals["refused"] > 0


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_retention_takes_only_the_oldest_whenever_the_power_goes(flush: str) -> None:
    totals = play(flush, range(200, 202), 320, retention_segments=2)
    assert totals["points"] >= RETENTION_POINTS_MIN
    assert totals["rolled"] > 0
    assert totals["first_position"] >= 4 * SEGMENT_BYTES
