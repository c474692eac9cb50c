"""What parked pulls cost a broker, and how soon an arrival reaches one.

    python -m loadtest.bench.hold --pulls 10000 --queues 1000 --rate 10000 --readers 1 10

A broker process holds `--pulls` PULLs on `--queues` queues for `--idle-s` seconds: its memory before and
after, and its CPU meanwhile. Then messages come at `--rate` a second, round `--busy-queues` queues, to
readers that hold a pull each for their part of the queues, for each number of `--readers` in turn: the time
from the send to the reader (which contains the way to the log), and from the producer's confirmation to the
reader (below zero: the reader had it first). One reader gets the messages of a tick in one answer; with as
many readers as queues each message has an answer and a pull of its own.

With `--engine kv` the broker's store is a Valkey that runs beside it, and the way to it is in the times.

Producer and readers are one event loop, in this process. What it adds is measured beside them: how late it
reads a socket of its own that is ready. So is how long both processes had work and no core: on a machine
that does other things too, the tails are those of its scheduler.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import uvloop

from holdmq.errors import HoldMQError
from holdmq.produce.body import produce_body
from holdmq.record.codec import NO_HOST, RecordTemplate, decode_record
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    HeartbeatRequest,
    ProduceRequest,
    ProduceRun,
    PulledQueue,
    PullQueue,
    PullRequest,
    PullResponse,
    TopicCreateRequest,
)
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.figures import show_ms
from loadtest.peers import BrokerProcess, holdmq_broker, key_value_engine
from loadtest.usage import cpu_s, resident_bytes, waited_s

TOPIC: Final = "held"
HOLD_MS: Final = 60_000
CONNECTIONS: Final = 10
TICK_S: Final = 0.001
DRAIN_S: Final = 1.0


class OwnLag:
    """How late this process's loop reads a byte that it wrote to itself."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._near, self._far = socket.socketpair()
        self._sent_at = 0.0
        self._far.setblocking(False)
        self._loop.add_reader(self._far, self._arrived)

    def probe(self) -> None:
        """Write one, unless the last one is still on its way."""
        if not self._sent_at:
            self._sent_at = time.perf_counter()
            self._near.send(b"x")

    def close(self) -> None:
        """Free the pair of sockets."""
        self._loop.remove_reader(self._far)
        self._near.close()
        self._far.close()

    def _arrived(self) -> None:
        self._far.recv(16)
        self.lags_s.append(time.perf_counter() - self._sent_at)
        self._sent_at = 0.0


async def park(clients: list[Client], pulls: int, queues: int) -> None:
    """Hold pulls, spread over connections and queues; they are answered when the connections close."""
    for index in range(pulls):
        request = PullRequest([PullQueue(TOPIC, index % queues, 0, 0)], 1 << 16, HOLD_MS)
        clients[index % len(clients)].request(RequestCode.PULL, request, lambda _: None, HOLD_MS / 1e3 + 5)
    # Answered in order: when this one is, those before have been looked at.
    for client in clients:
        await client.call(RequestCode.HEARTBEAT, HeartbeatRequest())


class PullReader:
    """Reads queues by held pulls, from their ends on, and notes when each message came."""

    def __init__(self, client: Client, offsets: dict[int, int], arrivals: dict[int, float]) -> None:
        self._client = client
        self._offsets = offsets
        self._arrivals = arrivals
        self.is_done = False

    def pull(self) -> None:
        """Ask for what follows."""
        queues = [PullQueue(TOPIC, queue_id, 0, offset) for queue_id, offset in self._offsets.items()]
        self._client.request(
            RequestCode.PULL, PullRequest(queues, 1 << 20, HOLD_MS), self._answered, HOLD_MS / 1e3 + 5
        )

    def _answered(self, reply: Reply | HoldMQError) -> None:
        now = time.perf_counter()
        if self.is_done:
            return
        if isinstance(reply, HoldMQError):
            raise reply
        for pulled in rows(PulledQueue, reply.header(PullResponse).queues):
            self._offsets[pulled.queue_id] = pulled.next_offset
        at = 0
        while at < len(reply.body):
            record = decode_record(reply.body, at)
            self._arrivals[struct.unpack(">Q", record.body[:8])[0]] = now
            at += int.from_bytes(reply.body[at : at + 4], "big")
        self.pull()


class SteadyLoad:
    """Sends messages at a steady rate, a batch each tick, round the queues."""

    def __init__(self, client: Client, producer_id: int, queues: int, body_bytes: int) -> None:
        self._client = client
        self._producer_id = producer_id
        self._templates = [RecordTemplate(TOPIC.encode(), q, b"", NO_HOST, 0) for q in range(queues)]
        self._sequences = [0] * queues
        self._padding = bytes(body_bytes - 8)
        self.sent: list[float] = []
        self.confirmed: dict[int, float] = {}

    async def run(self, rate: int, seconds: float, lag: OwnLag) -> None:
        """Send for so long, and measure how late this process is meanwhile."""
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            due = int((now - begin) * rate) - len(self.sent)
            if due > 0:
                self._send(due)
            lag.probe()
            await asyncio.sleep(TICK_S)

    def _send(self, count: int) -> None:
        first = len(self.sent)
        numbers = range(first, first + count)
        queues = len(self._templates)
        records: list[bytes] = []
        runs: list[ProduceRun] = []
        for queue_id in range(queues):
            own = [n for n in numbers if n % queues == queue_id]
            if own:
                first_sequence = self._sequences[queue_id]
                runs.append(ProduceRun(TOPIC, queue_id, len(own), self._producer_id, 1, first_sequence))
                self._sequences[queue_id] += len(own)
                encode = self._templates[queue_id].encode
                records += [encode(struct.pack(">Q", n) + self._padding, 0) for n in own]
        sizes = struct.pack(f">{len(records)}I", *map(len, records))
        body = produce_body(len(records), [sizes], [b"".join(records)])
        self.sent += [time.perf_counter()] * count

        def answered(reply: Reply | HoldMQError) -> None:
            if isinstance(reply, HoldMQError):
                raise reply
            self.confirmed.update(dict.fromkeys(numbers, time.perf_counter()))

        header = ProduceRequest(body.crc, runs)
        self._client.request(RequestCode.PRODUCE, header, answered, 30, body.parts, body.length_bytes)


def line(name: str, times_s: list[float], what: str = "messages") -> None:
    """Print the percentiles of some times."""
    say(f"{name:30} {show_ms(times_s, 0.5, 0.9, 0.99, 0.999)}  ({len(times_s):,} {what})")


async def connect(broker: BrokerProcess, count: int) -> list[Client]:
    clients = [Client(broker.address, "client", f"bench-{index}") for index in range(count)]
    for client in clients:
        client.start()
    return clients


async def idle(broker: BrokerProcess, options: Options) -> None:
    """The first part: memory and CPU of pulls that wait."""
    clients = await connect(broker, CONNECTIONS)
    await clients[0].call(RequestCode.TOPIC_CREATE, TopicCreateRequest(TOPIC, options.queues))
    await park(clients, 0, options.queues)
    await asyncio.sleep(DRAIN_S)
    memory, before = resident_bytes(broker.pid), cpu_s(broker.pid)
    await asyncio.sleep(options.idle_s)
    unloaded = (cpu_s(broker.pid) - before) / options.idle_s
    await park(clients, options.pulls, options.queues)
    parked_bytes = resident_bytes(broker.pid) - memory
    await asyncio.sleep(DRAIN_S)
    before = cpu_s(broker.pid)
    await asyncio.sleep(options.idle_s)
    loaded = (cpu_s(broker.pid) - before) / options.idle_s
    say(
        f"{options.pulls:,} parked pulls on {options.queues:,} queues: {parked_bytes / 2**20:.1f} MiB more; "
        f"CPU {loaded:.2%} of a core, {unloaded:.2%} without them"
    )
    for client in clients:
        await client.close()


async def ends_of(client: Client, queues: int) -> list[int]:
    """Where the next message of each queue will be."""
    ends: list[int] = []
    while len(ends) < queues:  # an answer has as many as its bytes allow
        asked = PullRequest([PullQueue(TOPIC, queue_id, 0, 0) for queue_id in range(len(ends), queues)], 1)
        answer = (await client.call(RequestCode.PULL, asked, 5)).header(PullResponse)
        ends += [pulled.end_offset for pulled in rows(PulledQueue, answer.queues)]
    return ends


async def arrivals(broker: BrokerProcess, options: Options, count: int) -> None:
    """The second part: from send and confirmation to so many readers."""
    clients = await connect(broker, count + 1)
    found: dict[int, float] = {}
    queues = options.busy_queues
    load = SteadyLoad(clients[-1], count, queues, options.body_bytes)
    ends = await ends_of(clients[-1], queues)
    readers = [
        PullReader(clients[index], {q: ends[q] for q in range(index, queues, count)}, found)
        for index in range(count)
    ]
    for reader in readers:
        reader.pull()
    lag = OwnLag()
    pids = {"broker": broker.pid, "this process": os.getpid()}
    before = {name: (cpu_s(pid), waited_s(pid)) for name, pid in pids.items()}
    # What is noted here forms no cycles, and a pause of this process is none of the broker's.
    gc.freeze()
    gc.disable()
    await load.run(options.rate, options.seconds, lag)
    shares = {
        name: ((cpu_s(pid) - before[name][0]), (waited_s(pid) - before[name][1]))
        for name, pid in pids.items()
    }
    deadline = time.perf_counter() + 10
    while len(found) < len(load.sent) or len(load.confirmed) < len(load.sent):
        if time.perf_counter() > deadline:
            raise HoldMQError(f"{len(load.sent)} messages were sent, {len(found)} came")
        await asyncio.sleep(0.01)
    for reader in readers:
        reader.is_done = True
    say(f"{len(load.sent) / options.seconds:,.0f} msg/s of {queues} queues to {count} held readers")
    numbers = range(len(load.sent) // 10, len(load.sent))  # the first tenth warms up
    line("confirmation to reader", [found[n] - load.confirmed[n] for n in numbers])
    line("send to reader", [found[n] - load.sent[n] for n in numbers])
    line("this process reads its socket", lag.lags_s, "times")
    for name, (cpu, waited) in shares.items():
        say(
            f"{name}: CPU {cpu / options.seconds:.0%} of a core, "
            f"waited for one {waited / options.seconds:.1%} of the time"
        )
    gc.enable()
    lag.close()
    for client in clients:
        await client.close()


async def run(options: Options, home: Path) -> None:
    with ExitStack() as stack:
        sets = stack.enter_context(key_value_engine(home)) if options.engine == "kv" else ()
        broker = stack.enter_context(holdmq_broker(home, *sets))
        await idle(broker, options)
        for count in options.readers:
            await arrivals(broker, options, count)


def check(options: Options) -> str | None:
    """Return what is wrong with the options."""
    ordered = 1 <= min(options.readers) <= max(options.readers) <= options.busy_queues <= options.queues
    return None if ordered else "1 <= readers <= busy queues <= queues"


def main() -> int:
    """Run the benchmark; exit code 0, or 1 with a sentence when the broker fails."""
    command = BenchCommand(
        __doc__,
        pulls=10_000,
        queues=1_000,
        idle_s=10.0,
        busy_queues=(10, "that messages come to"),
        readers=([1, 10], "at most one per busy queue"),
        rate=(10_000, "messages per second"),
        seconds=8.0,
        body_bytes=100,
    )
    command.add("--engine", choices=("log", "kv"), default="log")
    return command.run(lambda options, home: uvloop.run(run(options, home)), check, hold_ms=HOLD_MS)


if __name__ == "__main__":
    sys.exit(main())
