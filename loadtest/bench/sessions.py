"""Persistent sessions: what an idle one takes, how fast they connect, how fast what waited comes.

    python -m loadtest.bench.sessions [--parts idle connect replay many] [--sessions 18000] [--messages N]

- idle: `--sessions` connections to one worker, MQTT 3.1.1, clean session 0, ids of 23 bytes, one exact
  filter each: resident bytes of the worker for each of them.
- connect: new sessions, then the same ones again: connections per second, CPU of worker and broker for each.
- replay: `--messages` of 100 bytes wait for one session, which comes back (window 64): messages per second,
  their order checked; beside it a pair of clients in a process of its own exchanges messages: their latency
  before and meanwhile.
- many: `--offline` sessions with `--each` messages among `--others`: until all of them are served, with
  such a pair beside them.

Clients run in this process, on the same machine; figures of CPU are the servers' own.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdmq.errors import StartupError
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.child import ChildProcess
from loadtest.figures import quantile
from loadtest.peers import Services, holdmq_services
from loadtest.processes import raise_file_limit
from loadtest.swarm import Swarm, open_client, payload_of, publish_run, swarm
from loadtest.usage import cpu_s, resident_bytes, waited_s

PARTS: Final = ("idle", "connect", "replay", "many")
WARM_SESSIONS: Final = 500
SETTLE_S: Final = 2.0
"""For rows to be written and buffers to be given back."""
PUBLISH_WINDOW: Final = 1_000
LIVE_EVERY_S: Final = 0.005
PAIR_TURN_S: Final = 0.02
ALONE_S: Final = 2.0
PATIENCE_S: Final = 300.0
_NUMBER: Final = struct.Struct(">Q")


def idle(services: Services, sessions: int) -> None:
    """Resident bytes of a worker for each idle session."""
    (worker,) = services.workers()
    with swarm(services.address, "warm") as warm:
        warm.connect(WARM_SESSIONS, subscribe="warm/{id}")
        time.sleep(SETTLE_S)
    time.sleep(SETTLE_S)
    before = resident_bytes(worker)
    with swarm(services.address, "idle") as crowd:
        took = crowd.connect(sessions, subscribe="cmd/{id}")
        time.sleep(3 * SETTLE_S)
        grown = resident_bytes(worker) - before
        say(
            f"idle      {sessions:,} sessions: {grown / sessions / 1024:.2f} KiB each "
            f"({grown / 1e6:,.1f} MB); connected and subscribed {sessions / took:,.0f}/s"
        )
        crowd.disconnect()
    time.sleep(SETTLE_S)
    left = resident_bytes(worker) - before
    say(f"          after they left: {left / 1e6:+,.1f} MB")


def connect(services: Services, count: int) -> None:
    """Connections per second of new and of known sessions."""
    pids = [*services.workers(), services.broker_pid]
    for what in ("new", "known", "clean"):
        with swarm(services.address, "rate") as crowd:
            used = [cpu_s(pid) for pid in pids]
            took = crowd.connect(count, clean=what == "clean")
            us = [(cpu_s(pid) - before) / count * 1e6 for pid, before in zip(pids, used, strict=True)]
            crowd.disconnect()
        say(
            f"connect   {count:,} {what} sessions: {count / took:,.0f}/s; CPU of each: "
            f"{sum(us[:-1]):.0f} us in workers, {us[-1]:.0f} us in the broker"
        )
        time.sleep(SETTLE_S)


class PairLatency(NamedTuple):
    """How long messages took, in ms."""

    p50: float
    p99: float
    most: float

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f}, p99 {self.p99:.2f}, max {self.most:.2f} ms"


class Pair:
    """A publisher and a subscriber, and how long messages take between them."""

    def __init__(self, target: str) -> None:
        self._subscriber = Swarm(target, "live-sub")
        self._subscriber.connect(1, clean=True, subscribe="live/x")
        self._publisher = open_client(target, "live-publisher")
        self._publisher.setblocking(False)
        self._sent = 0
        self._due = time.perf_counter()
        self.latencies: list[float] = []

    def turn(self) -> None:
        """Send what is due, take what came."""
        now = time.perf_counter()
        if now >= self._due:
            self._due = now + LIVE_EVERY_S
            self._sent = self._sent % 60_000 + 1
            self._publisher.send(publish_run("live/x", [struct.pack(">d", now)], self._sent))
        with contextlib.suppress(BlockingIOError):
            self._publisher.recv(1 << 16)
        for _, packet_type, body in self._subscriber.step(0):
            if packet_type == 3:
                sent_at: float = struct.unpack(">d", payload_of(body))[0]
                self.latencies.append(time.perf_counter() - sent_at)

    def run(self, seconds: float) -> None:
        """Exchange messages for so many seconds."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.turn()
            time.sleep(0.001)

    def told(self) -> PairLatency:
        """Of what came since the last call."""
        found, self.latencies = sorted(self.latencies), []
        p50, p99, most = (quantile(found, share) * 1e3 for share in (0.5, 0.99, 1))
        return PairLatency(p50, p99, most)

    def close(self) -> None:
        """End both clients' connections."""
        self._subscriber.close()
        self._publisher.close()


def _pair(pipe: Any, target: str) -> None:
    """The pair's process: tells its latencies since it was asked last, until the pipe ends."""
    pair = Pair(target)
    with contextlib.suppress(EOFError):
        while True:
            pair.run(PAIR_TURN_S)
            if pipe.poll():
                pipe.recv()
                pipe.send(pair.told())
    pair.close()


class _Beside:
    """A pair beside what is measured: how it fares alone and from `begin` on, and who waited for a core."""

    def __init__(self, services: Services) -> None:
        self._pids = [*services.workers(), services.broker_pid]
        self._waited = [0.0] * len(self._pids)
        self._began = 0.0
        self._pair = ChildProcess(_pair, services.address)
        self._ask()
        time.sleep(ALONE_S)
        self._alone = self._ask()

    def _ask(self) -> PairLatency:
        self._pair.tell("tell")
        return PairLatency(*self._pair.told())

    def begin(self) -> None:
        """Now it is measured."""
        self._ask()
        self._waited = [waited_s(pid) for pid in self._pids]
        self._began = time.perf_counter()

    def end(self) -> None:
        """It is over: say what was seen."""
        took = time.perf_counter() - self._began
        shares = [(waited_s(pid) - b) / took for pid, b in zip(self._pids, self._waited, strict=True)]
        say(f"          a pair beside it: {self._alone} alone; {self._ask()} meanwhile")
        say(f"          waiting for a core: workers {sum(shares[:-1]):.0%}, the broker {shares[-1]:.0%}")
        self._pair.end()


def _publish(target: str, count: int, packets: Callable[[int, int], bytes]) -> float:
    """Publish messages over one connection, all acknowledged; seconds it took.

    `packets(first, end)` gives the PUBLISHes of some of them, with packet ids by `_packet_id`.
    """
    began = time.perf_counter()
    with open_client(target, f"publisher-{os.getpid()}") as publisher:
        sent = acked = 0
        while acked < count:
            room = min(PUBLISH_WINDOW - (sent - acked), count - sent)
            if room >= PUBLISH_WINDOW // 2 or (room and sent + room == count):
                publisher.sendall(packets(sent, sent + room))
                sent += room
            data = publisher.recv(1 << 16)
            if not data:
                raise StartupError(f"{target} closed a publisher's connection")
            acked += len(data) // 4
            while len(data) % 4:
                data = publisher.recv(4 - len(data) % 4)
                acked += 1
    return time.perf_counter() - began


def _packet_id(number: int) -> int:
    """Ids of a window never meet: it is a small part of them."""
    return number % 60_000 + 1


def _publish_numbered(target: str, topic: str, count: int, payload_bytes: int = 100) -> float:
    """Publish messages that tell their numbers to one topic; seconds it took."""
    pad = b"x" * (payload_bytes - _NUMBER.size)

    def packets(first: int, end: int) -> bytes:
        wrap = min(end, first - first % 60_000 + 60_000)
        runs = ((first, wrap), (wrap, end))
        return b"".join(
            publish_run(topic, [_NUMBER.pack(n) + pad for n in range(at, to)], _packet_id(at))
            for at, to in runs
        )

    return _publish(target, count, packets)


def replay(services: Services, messages: int) -> None:
    """How fast an offline session gets what waited for it."""
    with swarm(services.address, "replay") as one:
        one.connect(1, subscribe="replay/#")
        one.disconnect()
        took = _publish_numbered(services.address, "replay/x", messages)
        say(f"replay    {messages:,} messages published in {took:.1f} s")
        beside = _Beside(services)
        pids = [*services.workers(), services.broker_pid]
        used = [cpu_s(pid) for pid in pids]
        expected = 0

        def came(_number: int, body: bytes) -> None:
            nonlocal expected
            found = _NUMBER.unpack_from(payload_of(body))[0]
            if found != expected:
                raise StartupError(f"message {found} came where {expected} should have")
            expected += 1

        began = time.perf_counter()
        beside.begin()
        one.connect(1, on_message=came)
        while expected < messages:
            if time.perf_counter() - began > PATIENCE_S:
                raise StartupError(f"only {expected:,} of {messages:,} messages came")
            for number, packet_type, body in one.step(0.01):
                if packet_type == 3:
                    came(number, body)
        took = time.perf_counter() - began
        us = [(cpu_s(pid) - before) / messages * 1e6 for pid, before in zip(pids, used, strict=True)]
        say(
            f"          replayed in {took:.1f} s = {messages / took:,.0f}/s, in order; CPU of each: "
            f"{sum(us[:-1]):.1f} us in workers, {us[-1]:.1f} us in the broker"
        )
        beside.end()
        one.disconnect()


def many(services: Services, offline: int, each: int, others: int) -> None:
    """Until all of many sessions have what waited for them."""
    with swarm(services.address, "many") as crowd:
        crowd.connect(offline, subscribe="box/{id}")
        crowd.disconnect()
        for part in range(each):
            _publish(services.address, offline, partial(_to_each, crowd, part))
            _publish_numbered(services.address, "noise/x", others // each)
        beside = _Beside(services)
        began = time.perf_counter()
        beside.begin()
        got = [0] * offline
        left = offline * each

        def came(number: int, body: bytes) -> None:
            nonlocal left
            found = _NUMBER.unpack_from(payload_of(body))[0]
            if found != got[number]:
                raise StartupError(f"session {number}: message {found} came where {got[number]} should have")
            got[number] += 1
            left -= 1

        pids = [*services.workers(), services.broker_pid]
        used = [cpu_s(pid) for pid in pids]
        connected = crowd.connect(offline, on_message=came)
        while left:
            if time.perf_counter() - began > PATIENCE_S:
                raise StartupError(f"{left:,} messages did not come")
            for number, packet_type, body in crowd.step(0.1):
                if packet_type == 3:
                    came(number, body)
        say(
            f"many      {offline:,} sessions with {each} messages among {others:,}: all served within "
            f"{time.perf_counter() - began:.1f} s (connected in {connected:.1f} s)"
        )
        spent = [cpu_s(pid) - before for pid, before in zip(pids, used, strict=True)]
        say(f"          CPU: {sum(spent[:-1]):.1f} s in workers, {spent[-1]:.1f} s in the broker")
        beside.end()
        crowd.disconnect()


def _to_each(crowd: Swarm, part: int, first: int, end: int) -> bytes:
    """The PUBLISHes of `part` to some clients of a crowd."""
    payload = [_NUMBER.pack(part)]
    return b"".join(
        publish_run(f"box/{crowd.client_id(n)}", payload, _packet_id(n)) for n in range(first, end)
    )


def measure(options: Options, home: Path) -> None:
    """Run the parts, each with an installation of its own."""
    for part in options.parts:
        workers = 1 if part == "idle" else options.workers
        with (
            tempfile.TemporaryDirectory(dir=home) as directory,
            holdmq_services(Path(directory), f"gateway.workers={workers}", *options.set) as services,
        ):
            with swarm(services.address, "first") as first:
                first.connect(1)  # the whole way is open
            if part == "idle":
                idle(services, options.sessions)
            elif part == "connect":
                connect(services, options.connects)
            elif part == "replay":
                replay(services, options.messages)
            else:
                many(services, options.offline, options.each, options.others)


def main() -> int:
    """Run the parts; exit code 0, or 1 with a sentence when something fails."""
    command = BenchCommand(
        __doc__,
        sessions=18_000,
        connects=10_000,
        messages=200_000,
        offline=2_000,
        each=10,
        others=500_000,
        workers=(1, "gateway.workers; idle needs 1"),
    )
    command.add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    command.add_settings()
    return command.run(measure, open_files=raise_file_limit())


if __name__ == "__main__":
    sys.exit(main())
