"""How soon the job's counts can be read, and what the job takes, busy and idle.

    python -m loadtest.bench.freshness [--rate 5000] [--topics 50] [--seconds 90] [--devices true]

Starts registry, broker and `holdmq stats` as they are started by hand, with their defaults; `--devices` and
`--postgresql-url` are stats.devices and the sink. A process of its own sends `--rate` messages a second to
`--topics` topics in turns, by the SDK, each with the client id of one of `--clients` devices.

- busy: this process looks at `tps_1s` every `--poll-ms`, as the console does (new files alone). A second of
  the broker's store time is readable at the first look that finds all of its messages, of all topics; told is
  how long after its end that is. Beside it, CPU and memory of the job.
- idle: after `--quiet-s` without a message, CPU of the job over `--idle-s`, and its memory.

CPU is in percent of one core, of the driver, its JVM and their Python workers, as the kernel counts it;
memory is theirs too, shared pages divided among those who share them (PSS). All of it shares this machine:
the load of others makes it slower. Exit code 1 when a message is not counted exactly once.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import sys
import time
from contextlib import ExitStack, closing, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyspark

from holdmq.client import Producer
from holdmq.errors import HoldMQError, StartupError
from holdmq.message import Message
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.child import ChildProcess
from loadtest.figures import quantile
from loadtest.gateway_memory import read_metrics
from loadtest.peers import StatsProcess, holdmq_broker, holdmq_stats
from loadtest.readable import DeltaSeconds, PostgresqlSeconds, Readable, Seconds
from loadtest.usage import TreeCpu, children_of, cpu_s, proportional_bytes, tree_of

TURN_S: Final = 0.01
"""How often the producer sends what is due."""
WARM_S: Final = 10.0
"""Of load before anything is measured: classes, workers and topics are there by then."""
COUNTED_S: Final = 60.0
"""How long the job may take for the last messages."""
LOOKS_AT_MEMORY: Final = 3
CPU_LOOK_S: Final = 1.0
_MIB: Final = 1 << 20
_BATCHES: Final = re.compile(r'holdmq_stats_batch_seconds_(count|sum)\{query="tps_1s"\} (\S+)\n')


class Sent(NamedTuple):
    """What the producer did: messages, CPU as a share of a core, and by how much a turn was late at most."""

    messages: int
    cpu: float
    late_max_s: float


async def _send(pipe: Any, registry: str, rate: float, topics: int, clients: int, body_bytes: int) -> None:
    messages = cycle([(f"bench-{n % topics}", f"device-{n}") for n in range(clients)])
    body = os.urandom(body_bytes)
    sent, late_max_s = 0, 0.0
    async with Producer([registry]) as producer:
        for topic in range(topics):  # they are there before the clock starts
            await producer.send(Message(f"bench-{topic}", body, client_id="first"))
        pipe.send("begun")
        begin, cpu = time.monotonic(), time.process_time()
        while not pipe.poll():
            due = int((time.monotonic() - begin) * rate) - sent
            if due > 0:
                chosen = islice(messages, due)
                await producer.send_batch(
                    [Message(topic, body, client_id=client) for topic, client in chosen]
                )
                sent += due
                late_max_s = max(late_max_s, time.monotonic() - begin - sent / rate)
            await asyncio.sleep(TURN_S)
        took = time.monotonic() - begin
        pipe.send(Sent(sent + topics, (time.process_time() - cpu) / took, late_max_s))


def produce(pipe: Any, *arguments: Any) -> None:
    """The producer's process: sends until it is told something, and then tells what it did."""
    with suppress(BrokenPipeError):  # whoever asked is gone
        try:
            asyncio.run(_send(pipe, *arguments))
        except HoldMQError as error:
            pipe.send(StartupError(f"the producer: {error}"))


class Usage(NamedTuple):
    """CPU until a moment, in s: of the job's driver, its JVM, their workers; ours; the broker's."""

    at: float
    driver: float
    jvm: float
    workers: float
    own: float
    broker: float

    def since(self, before: Usage) -> str:
        """What was used from `before` on."""
        took = self.at - before.at
        driver, jvm, workers, own, broker = (
            f"{(late - early) / took:.1%}" for late, early in zip(self[1:], before[1:], strict=True)
        )
        job = sum(self[1:4]) - sum(before[1:4])
        return (
            f"CPU of the job {job / took:.1%} of a core (driver {driver}, JVM {jvm}, Python workers "
            f"{workers}); the broker {broker}, this process {own}"
        )


class FreshnessBench:
    """Looks at a job that runs, and at its table."""

    def __init__(self, stats: StatsProcess, broker_pid: int, seconds: Seconds, poll_s: float) -> None:
        self.readable = Readable()
        self._stats = stats
        self._broker_pid = broker_pid
        self._seconds = seconds
        self._poll_s = poll_s
        self._due = time.monotonic()
        self._cpu = TreeCpu(stats.pid)
        self._cpu_due = self._due

    def watch(self, seconds: float) -> int:
        """Look at the table for so long; return the most memory that the job took meanwhile, in bytes."""
        begin, looks, most = time.monotonic(), 0, 0
        while (passed := time.monotonic() - begin) < seconds:
            self._look()
            if passed > seconds * (looks + 0.5) / LOOKS_AT_MEMORY:
                looks += 1
                most = max(most, self.memory())
        return most

    def await_counted(self, messages: int) -> None:
        """Look until so many are counted; StartupError when that does not come, or there are more."""
        deadline = time.monotonic() + COUNTED_S
        while (counted := sum(self.readable.totals.values())) < messages and time.monotonic() < deadline:
            self._look()
        if counted != messages:
            raise StartupError(f"{messages:,} messages were sent, and {counted:,} counted")

    def _look(self) -> None:
        self._due = max(self._due + self._poll_s, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))
        self.rest(0)
        # The moment after the look: what it found could be read by then.
        self.readable.see(self._seconds.totals(), time.time())

    def rest(self, seconds: float) -> None:
        """Look at the job's processes alone, once a second."""
        end = time.monotonic() + seconds
        while True:
            self._stats.check()
            if time.monotonic() >= self._cpu_due:
                self._cpu_due = time.monotonic() + CPU_LOOK_S
                self._cpu.look()
            if time.monotonic() >= end:
                return
            time.sleep(min(CPU_LOOK_S, end - time.monotonic()))

    def batches(self) -> tuple[float, float]:
        """Micro-batches of the counts until now, and the seconds that they took together."""
        found = dict(_BATCHES.findall(read_metrics(self._stats.admin)))
        return float(found.get("count", 0)), float(found.get("sum", 0))

    def memory(self) -> int:
        """Memory of the job's processes, in bytes."""
        return sum(map(proportional_bytes, tree_of(self._stats.pid)))

    def usage(self) -> Usage:
        """Return the CPU used until now."""
        whole, driver = self._cpu.look(), cpu_s(self._stats.pid)
        jvm = sum(map(cpu_s, children_of(self._stats.pid)))
        broker = cpu_s(self._broker_pid)
        return Usage(time.monotonic(), driver, jvm, whole - driver - jvm, time.process_time(), broker)


def busy(bench: FreshnessBench, registry: str, given: Options) -> None:
    """Print how fresh the counts are under load."""
    producer = ChildProcess(produce, registry, given.rate, given.topics, given.clients, given.body_bytes)
    try:
        producer.told()
        bench.watch(WARM_S)
        first, before, batches = int(time.time()) + 1, bench.usage(), bench.batches()
        memory = bench.watch(given.seconds)
        after, ran, end = bench.usage(), bench.batches(), int(time.time())
        producer.tell("stop")
        sent: Sent = producer.told()
    finally:
        producer.end()
    bench.await_counted(sent.messages)
    lags = sorted(bench.readable.lags_s(first, end))
    p50, p95 = (quantile(lags, share) for share in (0.5, 0.95))
    found = [bench.readable.totals.get(second, 0) for second in range(first, end)]
    say(
        f"busy      {len(lags)} seconds of {min(found):,} to {max(found):,} messages; readable after their "
        f"end: p50 {p50:.2f} s, p95 {p95:.2f} s, max {lags[-1]:.2f} s"
    )
    count, took = (late - early for late, early in zip(ran, batches, strict=True))
    say(
        f"          {count:.0f} batches, {took / max(1, count):.2f} s each; "
        f"memory {memory / _MIB:,.0f} MiB (PSS)"
    )
    say(f"          {after.since(before)}")
    say(f"          the producer {sent.cpu:.1%}, late by {sent.late_max_s:.2f} s at most; {_load()}")


def idle(bench: FreshnessBench, quiet_s: float, idle_s: float) -> None:
    """What the job takes without messages."""
    bench.rest(quiet_s)
    before = bench.usage()
    bench.rest(idle_s)
    after = bench.usage()
    say(f"idle      after {quiet_s:.0f} s without messages, over {idle_s:.0f} s: {after.since(before)}")
    say(f"          memory {bench.memory() / _MIB:,.0f} MiB (PSS); {_load()}")


def _load() -> str:
    return f"load of the machine {os.getloadavg()[0]:.1f}"


def measure(options: Options, home: Path) -> None:
    """Start the servers and the job, and measure it busy and idle."""
    settings = [f"stats.devices={options.devices}", *options.set]
    if options.postgresql_url:
        settings += ["stats.sink=postgresql", f"stats.postgresql_url={options.postgresql_url}"]
    with ExitStack() as stack:
        broker = stack.enter_context(holdmq_broker(home))
        begin = time.monotonic()
        stats = stack.enter_context(holdmq_stats(home, broker.registry, *settings))
        say(f"start     ready after {time.monotonic() - begin:.1f} s")
        seconds = stack.enter_context(closing(_seconds(options.postgresql_url, stats.data_dir)))
        bench = FreshnessBench(stats, broker.pid, seconds, options.poll_ms / 1000)
        busy(bench, broker.registry, options)
        idle(bench, options.quiet_s, options.idle_s)


def main() -> int:
    """Run the benchmark; exit code 0, or 1 with a sentence when something fails."""
    command = BenchCommand(
        __doc__,
        rate=5_000.0,
        topics=50,
        clients=10_000,
        body_bytes=130,
        seconds=(90.0, "measured; devices are counted once a minute"),
        poll_ms=100.0,
        quiet_s=60.0,
        idle_s=60.0,
    )
    command.add("--devices", choices=("true", "false"), default="true", help="stats.devices")
    command.add("--postgresql-url", help="sink: an empty database; without it Delta tables")
    command.add_settings()
    load = f"{os.getloadavg()[0]:.1f}"
    return command.run(measure, machine=platform.machine(), pyspark=pyspark.__version__, load=load)


def _seconds(postgresql_url: str | None, data_dir: Path) -> Seconds:
    if postgresql_url:
        return PostgresqlSeconds(postgresql_url)
    return DeltaSeconds(data_dir / "tables" / "tps_1s")


if __name__ == "__main__":
    sys.exit(main())
