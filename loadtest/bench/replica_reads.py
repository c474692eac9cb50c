"""What a group that catches up costs producers: from the leader, from a replica, and without any.

    python -m loadtest.bench.replica_reads [--gib 1] [--seconds 20] [--rounds 3] [--rate 200]

A registry and one broker with `--replicas` copies and an etcd of one member. First `--gib` GiB of messages of
`--size` bytes are stored. Then, in turns, a producer sends `--rate` messages per second for `--seconds`, each
of its own and without waiting for the one before, while a group that begins at the first message catches up:
not at all, from the leader (`which_broker_when_consume_slowly` 0), from a replica (1). Printed are median and
p99 of the time from when a message was to be sent until it was acknowledged, what the group read, and the CPU
of the leader and of all copies. All of them share this machine's cores, disk and page cache, so a replica
takes from the leader here what it would not on a machine of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from holdmq.client import Consumer, GroupAdmin, Message, Producer
from holdmq.errors import HoldMQError, StartupError
from loadtest.bench.harness.command import BenchCommand, Options, say, take_turns
from loadtest.child import ChildProcess
from loadtest.peers import ReplicatedServices, holdmq_replicas
from loadtest.usage import cpu_of_tree_s

TOPIC: Final = "backlog"
LIVE_TOPIC: Final = "live"
BATCH_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 4
SEND_S: Final = 60.0
WARM_S: Final = 2.0
NO_READER: Final = "no reader"
PLACES: Final = {"from the leader": 0, "from a replica": 1}


class CatchUpRound(NamedTuple):
    """One measurement: latencies in ms, MiB that the group read per second, CPU seconds per second."""

    p50_ms: float
    p99_ms: float
    read_mib_s: float
    leader_cpu: float
    copies_cpu: float


def serve_child(pipe: Pipe, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
    """Run `work(pipe, …)` on an event loop; what fails is told as a StartupError."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(pipe, *arguments))
    except HoldMQError as error:
        pipe.send(StartupError(str(error)))


async def _told(pipe: Pipe) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, pipe.recv)


async def produce(pipe: Pipe, registry: str, size: int, rate: int) -> None:
    """Produce at a rate each time it is told for how many seconds; tell the latencies in ms."""
    loop = asyncio.get_running_loop()
    body = bytes(size)
    async with Producer([registry]) as producer:
        latencies: list[float] = []

        async def send(at: float, key: str) -> None:
            await producer.send(Message(LIVE_TOPIC, body), key=key)
            latencies.append((loop.time() - at) * 1e3)

        pipe.send("ready")
        while seconds := await _told(pipe):
            latencies.clear()
            began_at = loop.time()
            async with asyncio.TaskGroup() as tasks:
                for number in range(int(seconds * rate)):
                    at = began_at + number / rate
                    await asyncio.sleep(max(0.0, at - loop.time()))
                    tasks.create_task(send(at, str(number % 64)))
            pipe.send(list(latencies))


async def consume(pipe: Pipe, registry: str, group: str, place: int) -> None:
    """Catch up as a group until it is told to end; tell how many bytes came, and in how many seconds."""
    read = 0
    last_at = time.monotonic()

    async def handle(message: Message) -> None:
        nonlocal read, last_at
        read += len(message.body)
        last_at = time.monotonic()

    async with GroupAdmin([registry]) as groups:
        await groups.update(group, which_broker_when_consume_slowly=place)
    async with Consumer([registry], group, handle, [TOPIC], start="earliest"):
        began_at = time.monotonic()
        pipe.send("ready")
        await _told(pipe)
        pipe.send((read, last_at - began_at))


async def fill(registry: str, gib: float, size: int) -> None:
    """Store the backlog that groups catch up."""
    batch = max(1, BATCH_BYTES // size)
    left = int(gib * (1 << 30) / size)
    body = bytes(size)
    async with Producer([registry]) as producer:
        while left > 0:
            sends = [min(batch, max(0, left - step * batch)) for step in range(IN_FLIGHT)]
            await asyncio.gather(
                *(
                    producer.send_batch([Message(TOPIC, body)] * count, timeout_s=SEND_S)
                    for count in sends
                    if count
                )
            )
            left -= sum(sends)


class CatchUpBed:
    """The servers, a producer, and groups of ever new names."""

    def __init__(self, options: Options, services: ReplicatedServices) -> None:
        self._options = options
        self._services = services
        self._groups = 0
        self._producer = ChildProcess(
            serve_child, produce, services.registry, options.live_size, options.rate
        )
        self._producer.told()

    def close(self) -> None:
        """End the process that produces."""
        self._producer.tell(0)
        self._producer.end()

    def measure(self, place: int | None, seconds: float) -> CatchUpRound:
        """Produce for so long beside a group that reads at `place` (None = there is none)."""
        reader: ChildProcess | None = None
        if place is not None:
            self._groups += 1
            group = f"group-{self._groups}"
            reader = ChildProcess(serve_child, consume, self._services.registry, group, place)
            reader.told()
        services = self._services
        leader = services.leader_pid()
        before = {pid: cpu_of_tree_s(pid) for pid in services.replica_pids}
        self._producer.tell(seconds)
        latencies: list[float] = self._producer.told()
        used = {pid: (cpu_of_tree_s(pid) - was) / seconds for pid, was in before.items()}
        leader_cpu = used.pop(leader)
        rate = 0.0
        if reader is not None:
            reader.tell("end")
            read, read_s = reader.told()
            reader.end()
            rate = read / max(0.001, read_s) / (1 << 20)
        quantiles = statistics.quantiles(latencies, n=100)
        return CatchUpRound(quantiles[49], quantiles[98], rate, leader_cpu, sum(used.values()))


def measure(options: Options, home: Path) -> None:
    """Run the comparison and print its lines."""
    settings = (f"replication.far_reads_bytes={options.far_mib << 20}", *options.set)
    with ExitStack() as stack:
        services = stack.enter_context(holdmq_replicas(home, options.replicas, *settings))
        began_at = time.monotonic()
        asyncio.run(fill(services.registry, options.gib, options.size))
        say(f"backlog of {options.gib:g} GiB stored in {time.monotonic() - began_at:.0f} s")
        bed = CatchUpBed(options, services)
        stack.callback(bed.close)
        bed.measure(None, WARM_S)
        targets: dict[str, int | None] = {NO_READER: None, **PLACES}
        rounds = take_turns(
            options.rounds,
            {name: partial(bed.measure, place, options.seconds) for name, place in targets.items()},
        )
        say(show(rounds))


def show(rounds: dict[str, list[CatchUpRound]]) -> str:
    """Return a line for each target: medians over its rounds, and the p99 beside that without a reader."""
    alone = statistics.median(each.p99_ms for each in rounds[NO_READER])
    lines = []
    for name, found in rounds.items():
        p50, p99, read, leader, copies = (statistics.median(column) for column in zip(*found, strict=True))
        lines.append(
            f"{name:16} produce p50 {p50:7.2f} ms  p99 {p99:8.2f} ms ({p99 / alone - 1:+.0%})  read "
            f"{read:6.1f} MiB/s  CPU: leader {leader:.2f}, copies {copies:.2f}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the comparison; exit code 0, or 1 with a sentence when a server cannot be started or fails."""
    command = BenchCommand(
        __doc__,
        gib=(1.0, "GiB of messages that the group has to catch up, up to 10"),
        size=(4096, "payload bytes of the backlog"),
        live_size=(200, "payload bytes of what is produced meanwhile"),
        rate=(200, "messages per second that are produced meanwhile"),
        seconds=(20.0, "of one measurement"),
        rounds=3,
        replicas=(3, "copies of the broker"),
        far_mib=(64, "MiB behind the log's end from which on a read is far"),
    )
    command.add_settings()
    return command.run(measure)


if __name__ == "__main__":
    sys.exit(main())
