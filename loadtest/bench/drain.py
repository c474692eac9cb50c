"""A gateway drains: its clients are sent away at the configured rate, and go on at another gateway.

    python -m loadtest.bench.drain --clients 18000 --drain-rate 500

Starts registry, broker and two gateways. `--clients` connect to the first and subscribe with QoS 1: of each
four one speaks MQTT 3.1.1 and has a session that outlives its connection, one speaks it without, two do the
same with MQTT 5. Then the first gateway gets SIGTERM, as from Kubernetes. Who had a session is sent a message
with QoS 1 through the second gateway while he is nowhere; some `--away-s` later everybody comes to that one.

The time to drain and the grace period are those that the chart computes for a pod of `--connections-max`
(helm/holdmq/templates/_drain.tpl), without the delay before SIGTERM. Exit code 1 if the gateway does not end
with exit code 0 before the grace period; if clients leave at another rate than the configured one; if one of
MQTT 5 is not told 0x9D, or one of MQTT 3.1.1 is not closed in good order; if a session is not there at the
second gateway, or not its message, or one is there that should have ended. All runs on this machine.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import uvloop

from holdmq.errors import StartupError
from holdmq.mqtt import AckRun, Packet, PublishRun, encode_pubacks, encode_publish
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.child import ChildProcess
from loadtest.device import Device
from loadtest.fleet import CONNECT_TIMEOUT_S
from loadtest.peers import GatewayProcess, holdmq_broker, holdmq_gateway
from loadtest.plan import FleetPlan
from loadtest.processes import raise_file_limit
from loadtest.source_address import bind_source
from loadtest.swarm import swarm

CONNECTING_MAX: Final = 200
KEEP_ALIVE_S: Final = 3_600
"""Longer than a run: clients send no pings."""
EXPIRY_S: Final = 3_600
PATIENCE_S: Final = 240.0
"""From the request to drain until all are served at the other gateway."""
RATE_OFF_MAX: Final = 0.05
"""How far the rate may be from the configured one, as a share of it."""
SECOND_OVER_MAX: Final = 0.25
"""How far the fastest second may be above it: what a busy machine has delayed comes in the next one."""


class ClientKind(NamedTuple):
    """How a client speaks, and whether its session outlives the connection."""

    name: str
    mqtt: str
    expiry_s: int
    farewell: str
    """How its connection ends when all is well."""


KINDS: Final = (
    ClientKind("3.1.1 with a session", "3.1.1", EXPIRY_S, "closed by the server"),
    ClientKind("3.1.1 without", "3.1.1", 0, "closed by the server"),
    ClientKind("5 with a session", "5", EXPIRY_S, "DISCONNECT 0x9D"),
    ClientKind("5 without", "5", 0, "DISCONNECT 0x9D"),
)


def kind_of(number: int) -> ClientKind:
    """The kind of the client `number`."""
    return KINDS[number % len(KINDS)]


class _Receiver(Device):
    """A client that acknowledges what it is sent, and tells the crowd."""

    __slots__ = ("_crowd",)

    def __init__(self, crowd: Crowd, plan: FleetPlan, number: int) -> None:
        super().__init__(crowd, plan, number, perf_counter())
        self._crowd = crowd

    def received(self, item: PublishRun[bytes] | AckRun | Packet, now: float) -> None:
        if isinstance(item, PublishRun) and self._transport is not None:
            self._transport.write(encode_pubacks([message[2] for message in item.messages]))
            for _, _, _, start, end, _ in item.messages:
                self._crowd.message_came(self.number, int(item.buffer[start:end]))


class _Sender(Device):
    """Publishes a client's number to its topic, and tells the crowd when that is stored."""

    __slots__ = ("_crowd", "_unanswered")

    def __init__(self, crowd: Crowd, plan: FleetPlan, number: int) -> None:
        super().__init__(crowd, plan, number, perf_counter())
        self._crowd = crowd
        self._unanswered: dict[int, int] = {}

    def publish(self, number: int) -> None:
        """Publish the number of a client to its topic with QoS 1."""
        if self._transport is None:
            raise StartupError("the second gateway closed the publisher's connection")
        packet_id = number % 60_000 + 1
        self._unanswered[packet_id] = number
        head, tail = encode_publish(self._plan.level, b"drain/%d" % number, b"%d" % number, 1 << 1)
        self._transport.write(head + packet_id.to_bytes(2, "big") + tail)

    def received(self, item: PublishRun[bytes] | AckRun | Packet, now: float) -> None:
        if isinstance(item, AckRun):
            for packet_id in item.packet_ids:
                self._crowd.stored(self._unanswered.pop(packet_id))


class Crowd:
    """All clients: connected to the first gateway, sent away by it, and back at the second one."""

    def __init__(self, first: str, second: str, clients: int, away_s: float) -> None:
        self._first, self._second = first, second
        self._clients = clients
        self._away_s = away_s
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(CONNECTING_MAX)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._staying: set[int] = set()
        self._away: set[int] = set()
        self._unserved: set[int] = set()
        """Who has yet to get the message that was sent to him while he was away."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = asyncio.Event()
        self._sender = _Sender(self, self._plan(second, KINDS[1], "sender"), clients)
        self._devices: list[Device] = [self._sender]
        self.sent_away_at: list[float] = []
        self.served_at = 0.0
        self.farewells: dict[str, Counter[str]] = {kind.name: Counter() for kind in KINDS}
        self.back: Counter[str] = Counter()
        self.resumed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """What clients that wanted to come back were told instead, until they came back."""
        self.lost: Counter[str] = Counter()
        """Why connections to the second gateway ended."""
        self.messages: Counter[int] = Counter()

    @staticmethod
    def _plan(target: str, kind: ClientKind, prefix: str = "drain") -> FleetPlan:
        host, _, port = target.rpartition(":")
        return FleetPlan(
            *(host, int(port), 1),
            keep_alive_s=KEEP_ALIVE_S,
            mqtt=kind.mqtt,
            client_prefix=prefix,
            client_id_bytes=23,
            expiry_s=kind.expiry_s,
            subscribe="drain/{i}" if prefix == "drain" else "",
        )

    async def connect(self) -> None:
        """Connect all clients to the first gateway, and the publisher to the second one."""
        if not await self._connect(self._sender, self._second):
            raise StartupError(f"the publisher cannot connect: {dict(self.refused)}")
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._clients):
                device = _Receiver(self, self._plan(self._first, kind_of(number)), number)
                self._devices.append(device)
                tasks.create_task(self._connect(device, self._first))
        self._staying = {device.number for device in self._devices[1:] if device.is_connected}
        if len(self._staying) < self._clients:
            raise StartupError(
                f"{len(self._staying)} of {self._clients} clients connected: {dict(self.refused)}"
            )

    async def go_elsewhere(self) -> None:
        """Wait until all are sent away, and back, and have their messages; or PATIENCE_S."""
        self._away = set(range(self._clients))
        self._unserved = {number for number in self._away if kind_of(number).expiry_s}
        self._devices = [self._sender]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._is_over.wait()
        except TimeoutError:
            for task in self._tasks:
                task.cancel()

    async def leave(self) -> None:
        """Disconnect all that are connected."""
        for device in self._devices:
            device.leave()
        await asyncio.sleep(0.05)

    async def _connect(self, device: Device, target: str) -> bool:
        host, _, port = target.rpartition(":")
        is_in = self._waiting[device.number] = self._loop.create_future()
        connection = socket.socket()
        connection.setblocking(False)
        bind_source(connection, device.number)
        try:
            async with self._places, asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.sock_connect(connection, (host, int(port)))
                await self._loop.create_connection(lambda: device, sock=connection)
                await is_in
        except OSError as error:  # TimeoutError among them
            connection.close()
            self._waiting.pop(device.number, None)
            device.is_over = True
            self.refused[str(error) or "no CONNACK in time"] += 1
        return device.is_connected

    async def _come_back(self, number: int) -> None:
        kind = kind_of(number)
        device: Device = _Receiver(self, self._plan(self._second, kind), number)
        while not await self._connect(device, self._second):
            await asyncio.sleep(self._away_s)
            device = _Receiver(self, self._plan(self._second, kind), number)
        self._devices.append(device)
        self.back[kind.name] += 1
        self.resumed[kind.name] += device.is_resumed
        self._away.discard(number)
        self._look_whether_over()

    def _come_back_later(self, number: int) -> None:
        """Spread over the time that they stay away: devices wait for a random time as well."""
        wait_s = self._away_s * (0.5 + number % 101 / 100)
        self._loop.call_later(wait_s, self._begin_to_come_back, number)

    def _begin_to_come_back(self, number: int) -> None:
        task = self._loop.create_task(self._come_back(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look_whether_over(self) -> None:
        if not self._away and not self._unserved and not self._is_over.is_set():
            self.served_at = perf_counter()
            self._is_over.set()

    def device_connected(self, device: Device, took_s: float) -> None:
        self._is_in(device)

    def device_failed(self, device: Device, reason: str) -> None:
        number = device.number
        if number in self._waiting:
            self.refused[reason] += 1
            self._is_in(device)
        elif number not in self._staying:
            self.lost[reason] += 1
        else:
            self._staying.remove(number)
            self.sent_away_at.append(perf_counter())
            kind = kind_of(number)
            self.farewells[kind.name][reason] += 1
            if kind.expiry_s:
                self._sender.publish(number)
            else:
                self._come_back_later(number)

    def _is_in(self, device: Device) -> None:
        waiting = self._waiting.pop(device.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def stored(self, number: int) -> None:
        """The message to a client that is away is in the log."""
        self._come_back_later(number)

    def message_came(self, number: int, body: int) -> None:
        """A client has got a message; StartupError when it is another's."""
        if body != number:
            raise StartupError(f"client {number} was sent the message of {body}")
        self.messages[number] += 1
        self._unserved.discard(number)
        self._look_whether_over()


def _clients(pipe: Any, first: str, second: str, clients: int, away_s: float) -> None:
    """The process of the clients: says when they are connected, then what became of them."""

    async def run() -> None:
        crowd = Crowd(first, second, clients, away_s)
        try:
            await crowd.connect()
        except StartupError as error:
            pipe.send(error)
            return
        pipe.send("connected")
        await crowd.go_elsewhere()
        pipe.send(
            {
                "sent_away_at": crowd.sent_away_at,
                "served_at": crowd.served_at,
                "farewells": {name: dict(seen) for name, seen in crowd.farewells.items()},
                "back": dict(crowd.back),
                "sessions_present": dict(crowd.resumed),
                "refused_meanwhile": dict(crowd.refused),
                "lost": dict(crowd.lost),
                "messages": {"served": len(crowd.messages), "repeated": _repeated(crowd.messages)},
            }
        )
        await crowd.leave()

    raise_file_limit()
    uvloop.run(run())


def _repeated(messages: Counter[int]) -> int:
    return messages.total() - len(messages)


def pace(times: Sequence[float]) -> dict[str, float]:
    """How many of these times there are per second, on the whole and in the slowest and the fastest one."""
    ordered = sorted(times)
    span_s = ordered[-1] - ordered[0] if ordered else 0.0
    if not span_s:
        return {"per_second": 0.0, "slowest_second": 0, "fastest_second": 0}
    seconds = Counter(int(at - ordered[0]) for at in ordered)
    whole = [seconds[second] for second in range(max(1, int(span_s)))]
    rate = round((len(ordered) - 1) / span_s, 1)
    return {"per_second": rate, "slowest_second": min(whole), "fastest_second": max(whole)}


def drain(first: GatewayProcess, second: GatewayProcess, grace_s: float, options: Options) -> dict[str, Any]:
    """Connect the clients, drain the first gateway, and return what was seen."""
    fleet = ChildProcess(_clients, first.address, second.address, options.clients, options.away_s)
    try:
        fleet.told()
        began = perf_counter()
        first.ask_to_end()
        code = first.exit_code(grace_s)
        took_s = perf_counter() - began
        found: dict[str, Any] = fleet.told()
    finally:
        fleet.end()
    times = found.pop("sent_away_at")
    served_at = found.pop("served_at")
    return {
        "sent_away": {"clients": len(times), **pace(times)},
        "last_sent_away_s": round(max(times, default=began) - began, 2),
        "all_served_s": round(served_at - began, 2) if served_at else None,
        "gateway": {"exit_code": code, "ended_s": round(took_s, 2), "grace_s": grace_s},
        **found,
    }


def verdict(found: dict[str, Any], options: Options) -> list[str]:
    """What was not as it should be."""
    wrong: list[str] = []
    gateway, away = found["gateway"], found["sent_away"]
    if gateway["exit_code"] is None:
        wrong.append(f"the gateway runs still when its grace period of {gateway['grace_s']} s is over")
    elif gateway["exit_code"]:
        wrong.append(f"the gateway ended with exit code {gateway['exit_code']}")
    if abs(away["per_second"] / options.drain_rate - 1) > RATE_OFF_MAX:
        wrong.append(f"{away['per_second']} clients a second were sent away, not {options.drain_rate}")
    if away["fastest_second"] > options.drain_rate * (1 + SECOND_OVER_MAX):
        wrong.append(f"{away['fastest_second']} clients were sent away in one second")
    each = Counter(kind_of(number).name for number in range(options.clients))
    for kind in KINDS:
        count = each[kind.name]
        if (seen := found["farewells"][kind.name]) != {kind.farewell: count}:
            wrong.append(f"{count} clients of {kind.name} heard {seen}")
        if (back := found["back"].get(kind.name, 0)) != count:
            wrong.append(f"{back} of {count} clients of {kind.name} came back")
        present, due = found["sessions_present"].get(kind.name, 0), count if kind.expiry_s else 0
        if present != due:
            wrong.append(f"{present} sessions of {kind.name} were there, not {due}")
    owed = sum(each[kind.name] for kind in KINDS if kind.expiry_s)
    if found["messages"]["served"] != owed:
        wrong.append(f"{found['messages']['served']} of {owed} messages came")
    if found["lost"]:
        wrong.append(f"the second gateway lost clients: {found['lost']}")
    return wrong


def measure(options: Options, home: Path) -> list[str]:
    """Run the drain; what was not as it should be."""
    workers = options.workers
    worker_rate = max(1, options.drain_rate // workers)
    worker_connections = math.ceil(options.connections_max / workers)
    drain_s = max(10, math.ceil(worker_connections / worker_rate) + 6)
    sets = [
        f"gateway.workers={workers}",
        f"gateway.connections_max={worker_connections}",
        f"gateway.drain_rate={worker_rate}",
        f"gateway.drain_s={drain_s}",
        "gateway.drain_is_final=true",
        f"gateway.keepalive_max_s={KEEP_ALIVE_S}",
    ]
    with ExitStack() as stack:
        broker = stack.enter_context(holdmq_broker(home, *options.set))

        def gateway(name: str, *more: str) -> GatewayProcess:
            made = holdmq_gateway(home / name, broker.registry, *sets, *more, *options.set)
            process = stack.enter_context(made)
            with swarm(process.address, name) as opening:
                opening.connect(1)  # the whole way is open
                opening.disconnect()
            return process

        second = gateway("second")
        first = gateway("first", f"gateway.server_reference={second.address}")
        found = drain(first, second, drain_s + 15, options)
    say(json.dumps(found, indent=2))
    return verdict(found, options)


def _wrong(options: Options) -> str | None:
    if options.connections_max <= options.clients:
        return "a gateway takes --clients and one that publishes: --connections-max has to be more"
    return None


def main() -> int:
    """Run the drain; exit code 0, or 1 with what was not as it should be."""
    command = BenchCommand(
        __doc__,
        clients=18_000,
        drain_rate=(500, "clients that a gateway sends away per second"),
        connections_max=(20_000, "connections that a gateway takes"),
        workers=(1, "worker processes of a gateway"),
        away_s=(2.0, "how long a client stays away, half as long to one and a half times that"),
    )
    command.add_settings()
    return command.run(measure, _wrong, open_files=raise_file_limit())


if __name__ == "__main__":
    sys.exit(main())
