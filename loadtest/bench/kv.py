"""Append, queue reads and log reads of the key-value engine, in one process and through a broker.

    python -m loadtest.bench.kv [--records 300000] [--batch 100] [--part engine | broker] [--engine kv | log]

Prints its parameters, and for each round a line per part, each with a Valkey of its own that flushes its
append-only file every second.

- `engine`: the store alone, in this process. The appender keeps at most `--window` batches unconfirmed; its
  records are encoded before. Every read is one from the server, and checks each record. "overhead" is what
  Valkey's memory grows by per record, less the record itself.
- `broker`: the SDK's `send_bodies`, with `--in-flight` batches on their way, then `poll_raw`; the broker is a
  process of its own. With `--engine log` its store is files, written without waiting for the disk.

"own", or "client", is the CPU of this process, "server" that of Valkey, in seconds; what Valkey's children
used, when they rewrote the append-only file meanwhile, is in it.
"""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import uvloop
from redis import Redis

from holdmq.client import Producer, PullConsumer
from holdmq.config.model import StorageSection
from holdmq.errors import StorageError
from holdmq.record.batch import Ints, split_records
from holdmq.service.interpreter import prepare_interpreter
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.bench.sdk_peers import WARM_MESSAGES, RoundPlan, in_flight
from loadtest.bench.storage import TOPIC, prepare
from loadtest.peers import BrokerProcess, holdmq_broker, key_value_engine
from loadtest.usage import cpu_s
from storage.api.batches import Batch, BatchRun
from storage.kv.store import KvStore

QUEUES: Final = 4
READ_BYTES: Final = 8 << 20
ENGINES: Final = ("kv", "log")
PARTS: Final = ("engine", "broker")


def server_cpu_s(server: Any) -> float:
    """The CPU that a Valkey has used, its children included."""
    return float(sum(used for name, used in server.info("cpu").items() if not name.endswith("_main_thread")))


class KvBench:
    """A store in a Valkey, whose callbacks run here as they would on the event loop."""

    def __init__(self, directory: Path, url: str) -> None:
        self._posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        settings = {"data_dir": str(directory), "engine": "kv", "kv": {"url": url}}
        self.store = KvStore(StorageSection.model_validate(settings), "bench", lambda _: 1, self._posted.put)
        self.store.open()
        self._server: Any = Redis.from_url(url)
        self._answered = 0

    def _note_answer(self, _batch: Batch, error: StorageError | None) -> None:
        if error is not None:
            raise error
        self._answered += 1

    def memory_bytes(self) -> int:
        """What Valkey has allocated."""
        return int(self._server.info("memory")["used_memory"])

    def append(self, made: list[tuple[bytearray, Ints]], window: int) -> int:
        """Append prepared batches and wait until all are confirmed; records."""
        self._answered = 0
        count = 0
        for index, (records, sizes) in enumerate(made):
            count += len(sizes)
            run = BatchRun(TOPIC, index % QUEUES, len(sizes))
            self.store.append(Batch(memoryview(records), sizes, [run]), self._note_answer)
            while index - self._answered >= window or not self._posted.empty():
                self._posted.get()()
        while self._answered < len(made):
            self._posted.get()()
        return count

    def read_queues(self) -> int:
        """Read every queue from its start, from the server; records."""
        count = 0
        for queue_id in range(QUEUES):
            offset, end = self.store.bounds(TOPIC, queue_id)
            while offset < end:
                read = self.store.read_queue_cold(TOPIC, queue_id, 0, offset, READ_BYTES, 1 << 20)
                if read.next_offset == offset:
                    raise StorageError("a read came to nothing", operation="read", path=f"{TOPIC}/{queue_id}")
                offset, count = read.next_offset, count + read.count
        return count

    def read_log(self) -> int:
        """Read the log from its start; records."""
        position, count = self.store.first_position, 0
        while position < self.store.confirmed_position:
            for batch in self.store.read_log(position, READ_BYTES):
                count += len(batch.sizes)
                position = batch.end
        return count

    def time(self, name: str, work: Callable[[], int]) -> str:
        """Do something and say how many records it was per second, and whose CPU it took."""
        own, server, began = time.process_time(), server_cpu_s(self._server), time.perf_counter()
        count = work()
        elapsed = time.perf_counter() - began
        own, server = time.process_time() - own, server_cpu_s(self._server) - server
        return f"{name} {count / elapsed:>9,.0f}/s (own {own:.2f} s, server {server:.2f} s)"


class BrokerBench:
    """A broker with a topic for each measurement; `server` is its Valkey, None with the log engine."""

    def __init__(self, broker: BrokerProcess, server: Any | None) -> None:
        self._broker = broker
        self._server = server
        self._topics = 0

    async def measure(self, plan: RoundPlan) -> str:
        """Produce and consume; what to say of it."""
        self._topics += 1
        topic = f"bodies-{self._topics}"
        async with Producer([self._broker.registry]) as producer:

            async def produce() -> int:
                await in_flight(plan, lambda batch: producer.send_bodies(topic, batch))
                return plan.messages

            said = await self._time("produced", produce)
        async with PullConsumer([self._broker.registry]) as consumer:
            await consumer.assign([topic], "earliest")

            async def consume() -> int:
                count = 0
                while count < plan.messages:
                    parts = await consumer.poll_raw(READ_BYTES)
                    count += sum(len(split_records(part.records)) for part in parts)
                return count

            return f"{said}; {await self._time('consumed', consume)}"

    def _used(self) -> list[float]:
        """The CPU of client, broker and server until now."""
        server = 0.0 if self._server is None else server_cpu_s(self._server)
        return [time.process_time(), cpu_s(self._broker.pid), server]

    async def _time(self, name: str, work: Callable[[], Awaitable[int]]) -> str:
        before, began = self._used(), time.perf_counter()
        count = await work()
        elapsed = time.perf_counter() - began
        client, broker, server = (after - was for after, was in zip(self._used(), before, strict=True))
        return (
            f"{name} {count / elapsed:>9,.0f}/s "
            f"(client {client:.2f} s, broker {broker:.2f} s, server {server:.2f} s)"
        )


def measure(options: Options, home: Path) -> None:
    """Print a line per round and part, each with servers of its own."""
    for number in range(options.rounds):
        place = home / str(number)
        place.mkdir()
        if "broker" in options.part:
            (place / "broker").mkdir()
            say(through_broker(place / "broker", options))
        if "engine" in options.part and options.engine == "kv":
            say(alone(place, options))


def through_broker(place: Path, options: Options) -> str:
    """Measure a broker once; the line."""
    plan = RoundPlan(options.records, options.body_bytes, options.batch, options.in_flight)
    with ExitStack() as stack:
        sets: tuple[str, ...] = ("storage.flush=async",)
        server = None
        if options.engine == "kv":
            sets = stack.enter_context(key_value_engine(place))
            server = stack.enter_context(Redis.from_url(sets[1].partition("=")[2]))
        bench = BrokerBench(stack.enter_context(holdmq_broker(place, *sets)), server)
        # Connections are tried, caches filled, the interpreter's specialised code made.
        uvloop.run(bench.measure(plan._replace(messages=WARM_MESSAGES)))
        return f"broker: {uvloop.run(bench.measure(plan))}"


def alone(place: Path, options: Options) -> str:
    """Measure the store once; the line."""
    prepare_interpreter()
    with key_value_engine(place) as (_, setting):
        bench = KvBench(place / "store", setting.partition("=")[2])
        with closing(bench.store):
            return f"engine: {row(bench, options)}"


def row(bench: KvBench, options: Options) -> str:
    """Measure once; the line."""
    made = prepare(options.records, options.batch, options.body_bytes, QUEUES)
    raw_bytes = sum(len(records) for records, _ in made)
    before = bench.memory_bytes()
    parts = [bench.time("append", lambda: bench.append(made, options.window))]
    overhead = (bench.memory_bytes() - before - raw_bytes) / options.records
    parts += [bench.time("queue read", bench.read_queues), bench.time("log read", bench.read_log)]
    return (
        f"{'; '.join(parts)}; record {raw_bytes / options.records:.0f} bytes, overhead {overhead:.2f} bytes"
    )


def main() -> int:
    """Run the benchmark; exit code 0, or 1 with a sentence when the server fails."""
    command = BenchCommand(
        __doc__,
        records=300_000,
        batch=(100, "records per batch"),
        rounds=5,
        body_bytes=200,
        window=(256, "unconfirmed batches of the engine"),
        in_flight=(100, "batches on their way to the broker"),
    )
    command.add("--part", choices=PARTS, nargs="+", default=list(PARTS), help="what is measured")
    command.add("--engine", choices=ENGINES, default="kv", help="log: through the broker alone")
    return command.run(measure, queues=QUEUES)


if __name__ == "__main__":
    sys.exit(main())
