"""A subscriber that stops reading beside many that read: what they notice, what it costs, what it gets.

    python -m loadtest.bench.slow_subscriber --seconds 60 --readers 1000 --rate 20 --pairs-rate 500

Starts registry, broker and a gateway with one worker, and measures two loads, all of QoS 1:

- fan-out: a publisher with `--rate` messages a second, which each of `--readers` subscribers gets.
- pairs: as many publishers as readers, `--pairs-rate` messages a second together, a reader for each.

One more subscriber, with a session that outlives its connection, takes all of it. It reads for `--turn-s`
and then reads nothing for as long, `--rounds` times: the readers' p99 while it does not read is compared
with that of the turn before, and the median of the ratios counts. Then it reads nothing for `--seconds`.
Told are the readers' latencies before, meanwhile, and while it gets what waited; the worker's memory, as its
gateway tells it once a second, against the last look before; and how soon the subscriber had everything.
Each client checks that the messages of each publisher come in order, none missing.

Exit code 1 if the ratio is above `--ratio-max`, the memory grew by `--memory-max-mb` or more, or a message
did not come. A rate that is not carried ends the run: latencies would be those of a queue.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Final

from holdmq.errors import HoldMQError, StartupError
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.beside_slow import SIZE_MIN, LoadPlan, SlowState, SlowTraffic
from loadtest.figures import quantile
from loadtest.gateway_memory import EVERY_S, read_numbers
from loadtest.peers import free_port, holdmq_services
from loadtest.processes import raise_file_limit
from loadtest.usage import cpu_s

WARM_S: Final = 3.0
BEFORE_SHARE: Final = 0.25
"""Of the long stall's time: how long the turn before it is."""


class MemoryWatch:
    """Looks at the memory of a gateway's workers once a second, on a thread: the load does not wait."""

    def __init__(self, admin: str) -> None:
        self.looks: list[int] = []
        self._admin = admin
        self._failure: HoldMQError | None = None
        self._ending = Event()
        self._thread = Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            try:
                numbers = read_numbers(self._admin)
            except HoldMQError as error:
                self._failure = error
                return
            self.looks.append(int(sum(numbers["memory_bytes"].values())))

    def last(self) -> int:
        """The last look, in bytes; StartupError when there is none."""
        if self._failure is not None:
            raise self._failure
        if not self.looks:
            raise StartupError(f"the gateway at {self._admin} has told no numbers yet")
        return self.looks[-1]

    def close(self) -> None:
        """End the thread that looks."""
        self._ending.set()
        self._thread.join()


@dataclass(slots=True)
class LoadFigures:
    """What was seen of one load; latencies in ms, memory in bytes."""

    slow: SlowState
    worker_cpu: float
    waited: int
    level_s: float
    memory_before: int
    grown_bytes: int
    drift_bytes: int
    before: list[float]
    meanwhile: list[float]
    catching_up: list[float]
    reading_p99: list[float] = field(default_factory=list)
    stalled_p99: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The readers' p99 while the slow one did not read, to that of the turn before."""
        return [
            stalled / reading for reading, stalled in zip(self.reading_p99, self.stalled_p99, strict=True)
        ]


def p99(latencies: Sequence[float]) -> float:
    """The 99th percentile; StartupError when there is nothing to take it of."""
    if not latencies:
        raise StartupError("no message came in a turn; choose longer turns or a higher rate")
    return quantile(sorted(latencies), 0.99)


def measure_load(traffic: SlowTraffic, watch: MemoryWatch, worker: int, options: Options) -> LoadFigures:
    """Turns of reading and not reading, then the long one."""
    traffic.run(WARM_S)
    reading_p99: list[float] = []
    stalled_p99: list[float] = []
    cpu, began = cpu_s(worker), time.perf_counter()
    for _ in range(options.rounds):
        reading_p99.append(p99(traffic.run(options.turn_s)))
        traffic.stall()
        stalled_p99.append(p99(traffic.run(options.turn_s)))
        traffic.read()
    worker_cpu = (cpu_s(worker) - cpu) / (time.perf_counter() - began)
    earlier = watch.last()
    before = traffic.run(options.seconds * BEFORE_SHARE)
    memory_before = watch.last()
    looks = len(watch.looks)
    had = traffic.stall().came
    meanwhile = traffic.run(options.seconds)
    watch.last()
    grown = max(watch.looks[looks:], default=memory_before) - memory_before
    waited, began = traffic.sent - had, time.perf_counter()
    catching_up = traffic.read()
    level_s = time.perf_counter() - began
    return LoadFigures(
        traffic.finish(),
        worker_cpu,
        waited,
        level_s,
        memory_before,
        grown,
        memory_before - earlier,
        before,
        meanwhile,
        catching_up,
        reading_p99,
        stalled_p99,
    )


def show(name: str, load: LoadPlan, found: LoadFigures) -> str:
    """What was seen, as lines."""
    reading, stalled = statistics.median(found.reading_p99), statistics.median(found.stalled_p99)
    ratios = " ".join(f"{ratio:.2f}" for ratio in found.ratios)
    who = f"{load.publishers:,} publishers, {load.readers:,} readers"
    turns = f"p99 {reading:.2f} ms while it reads, {stalled:.2f} ms while it does not"
    long = f"p99 {p99(found.before):.2f} ms before, {p99(found.meanwhile):.2f} ms meanwhile"
    memory = (
        f"{found.memory_before / 1e6:.1f} MB before, at most {found.grown_bytes / 1e3:+,.0f} kB meanwhile"
    )
    got = f"{found.waited:,} that waited within {found.level_s:.1f} s, all {found.slow.came:,} in order"
    lines = (
        f"{name}: {who}, {load.rate * load.copies:,.0f}/s; the worker used {found.worker_cpu:.0%} of a core",
        f"  in turns: {turns}: x{statistics.median(found.ratios):.2f} (rounds {ratios})",
        f"  long:     {long}, {p99(found.catching_up):.2f} ms while it got what waited",
        f"  memory:   {memory} ({found.drift_bytes / 1e3:+,.0f} kB in the turn before)",
        f"  it got:   {got}, {found.slow.again} twice; closed {found.slow.closed} times",
    )
    return "\n".join(lines)


def faults(found: LoadFigures, options: Options) -> list[str]:
    """What was not as it should be."""
    wrong = []
    ratio = statistics.median(found.ratios)
    if ratio > options.ratio_max:
        wrong.append(f"the readers' p99 is {ratio:.2f} times what it was")
    if found.grown_bytes >= options.memory_max_mb * 1e6:
        wrong.append(f"the worker's memory grew by {found.grown_bytes / 1e6:.1f} MB")
    return wrong


def run(load: LoadPlan, options: Options, home: Path) -> LoadFigures:
    """Measure one load with an installation of its own."""
    admin = free_port()
    sets = ["gateway.workers=1", f"gateway.admin_port={admin}", *options.set]
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=home))
        services = stack.enter_context(holdmq_services(Path(directory), *sets))
        traffic = SlowTraffic(load, services.address)
        stack.callback(traffic.close)
        (worker,) = services.workers()
        watch = MemoryWatch(f"127.0.0.1:{admin}")
        stack.callback(watch.close)
        return measure_load(traffic, watch, worker, options)


def measure(options: Options, home: Path) -> list[str]:
    """Measure the loads and print what was seen; what was not as it should be."""
    wrong: list[str] = []
    for name in options.loads:
        is_pairs = name == "pairs"
        rate = options.pairs_rate if is_pairs else options.rate
        load = LoadPlan(options.readers, rate, is_pairs, options.size)
        found = run(load, options, home)
        say(show(name, load, found))
        wrong += [f"{name}: {sentence}" for sentence in faults(found, options)]
    return wrong


def check(options: Options) -> str | None:
    """Return what is wrong with the options."""
    if options.size < SIZE_MIN or options.rounds < 1:
        return f"--size is at least {SIZE_MIN}, --rounds at least 1"
    return None


def main() -> int:
    """Measure; exit code 0, or 1 with what was not as it should be."""
    command = BenchCommand(
        __doc__,
        readers=1_000,
        rate=(20.0, "msg/s of the publisher of fan-out"),
        pairs_rate=(500.0, "msg/s of all publishers of pairs"),
        size=(100, f"payload bytes, at least {SIZE_MIN}"),
        seconds=(60.0, "of the long stall"),
        rounds=5,
        turn_s=5.0,
        ratio_max=1.25,
        memory_max_mb=1.0,
    )
    command.add("--loads", nargs="+", choices=("fan-out", "pairs"), default=["fan-out", "pairs"])
    command.add_settings()
    return command.run(measure, check, qos=1, workers=1, open_files=raise_file_limit())


if __name__ == "__main__":
    sys.exit(main())
