"""Rounds of faults on replicas in network namespaces, under load of devices and applications, checked.

`python -m replica_rounds ROUNDS SEED` prints what each round did and how long nothing was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_view import messages_of
from devices import Fleet
from etcd_members import PROGRAM
from processes import free_port, wait_until
from replica_networks import Network, network

from holdmq.client.producer import Producer
from holdmq.errors import HoldMQError
from holdmq.message import Message
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.replica_headers import (
    ReplicaStatusRequest,
    ReplicaStatusResponse,
    ReplicaSwitchRequest,
    ReplicaSwitchResponse,
)

SHARD = "broker-0"
REPLICAS = ("a", "b", "c")
ETCDS = ("e0", "e1", "e2")
PORT, REPLICA_PORT, ADMIN_PORT, ETCD_PORT, PEER_PORT = 10911, 10912, 9464, 2379, 2380
TTL_S = 3
FAILOVER_MAX_S = TTL_S + 2.0
TIMES: dict[str, Any] = {
    "coordination.ttl_s": TTL_S,
    "coordination.renew_s": 0.5,
    "coordination.timeout_s": 0.7,
    "coordination.margin_s": 0.5,
    "replication.lag_ms": 1000,
    "replication.hold_ms": 200,
}
HEAL_S = 60.0


class ShardNetwork:
    """Three replicas and three members of etcd, a namespace each; registry and gateway beside the test."""

    def __init__(self, directory: Path, net: Network) -> None:
        self.directory = directory
        self.net = net
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.mqtt_port = free_port()
        self.registry = f"{net.here}:{free_port()}"
        for name in (*REPLICAS, *ETCDS):
            net.add(name)

    # Processes

    def _spawn(self, name: str, words: list[str], prefix: tuple[str, ...] = ()) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*prefix, "setpriv", "--pdeathsig", "KILL", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
            )  # fmt: skip

    def start_etcd(self, name: str) -> None:
        """Start a member of etcd with what its directory has."""
        at = self.net.addresses
        cluster = ",".join(f"{member}=http://{at[member]}:{PEER_PORT}" for member in ETCDS)
        flags = {
            "name": name,
            "data-dir": str(self.directory / name),
            "listen-client-urls": f"http://{at[name]}:{ETCD_PORT}",
            "advertise-client-urls": f"http://{at[name]}:{ETCD_PORT}",
            "listen-peer-urls": f"http://{at[name]}:{PEER_PORT}",
            "initial-advertise-peer-urls": f"http://{at[name]}:{PEER_PORT}",
            "initial-cluster": cluster,
            "heartbeat-interval": "50",
            "election-timeout": "500",
            "log-level": "error",
            "unsafe-no-fsync": "true",
        }
        words = [str(PROGRAM), *(f"--{key}={value}" for key, value in flags.items())]
        self._spawn(name, words, self.net.prefix(name))

    def _service(
        self, name: str, service: str, settings: dict[str, Any], prefix: tuple[str, ...] = ()
    ) -> None:
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self._spawn(name, [sys.executable, "-m", "holdmq.cli", service, *sets], prefix)

    def start_replica(self, name: str) -> None:
        """Start a replica with what its directory has."""
        at = self.net.addresses
        address = at[name]
        settings = {
            "security.allow_anonymous": "true",
            "client.registries": self.registry,
            "broker.name": SHARD,
            "broker.bind": address,
            "broker.port": PORT,
            "broker.advertise": f"{address}:{PORT}",
            "broker.admin_bind": address,
            "broker.admin_port": ADMIN_PORT,
            "broker.register_interval_s": 1,
            "storage.data_dir": self.directory / name,
            "storage.segment_size_bytes": 16 << 20,
            "replication.replicas": ",".join(f"{r}={at[r]}:{REPLICA_PORT}" for r in REPLICAS),
            "replication.replica": name,
            "replication.bind": address,
            "replication.port": REPLICA_PORT,
            "coordination.kind": "etcd",
            "coordination.etcd.urls": ",".join(f"http://{at[e]}:{ETCD_PORT}" for e in ETCDS),
            "log.format": "json",
            **TIMES,
        }
        self._service(name, "broker", settings, self.net.prefix(name))

    def start(self) -> None:
        """Start everything, and come back when all replicas are in sync."""
        for name in ETCDS:
            self.start_etcd(name)
        host, _, port = self.registry.partition(":")
        common = {
            "security.allow_anonymous": "true",
            "log.format": "json",
            "client.registries": self.registry,
        }
        self._service(
            "registry",
            "registry",
            common
            | {
                "registry.bind": host,
                "registry.port": port,
                "registry.admin_port": free_port(),
                "registry.data_dir": self.directory / "registry",
            },
        )
        for name in REPLICAS:
            self.start_replica(name)
        self.wait_in_sync()
        gateway_admin = free_port()
        self._service(
            "gateway",
            "gateway",
            common
            | {"gateway.port": self.mqtt_port, "gateway.workers": 1, "gateway.admin_port": gateway_admin},
        )
        wait_until(lambda: _is_ready(gateway_admin), "the gateway is ready")

    def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process, and wait for its end."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def end_all(self) -> None:
        """Kill every process."""
        for name in list(self.processes):
            self.end(name)

    # Questions

    def status(self, name: str) -> ReplicaStatusResponse | None:
        """What a replica says; None = nothing."""

        async def ask() -> ReplicaStatusResponse:
            client = Client(f"{self.net.addresses[name]}:{REPLICA_PORT}", "client", "test")
            try:
                reply = await client.call(RequestCode.REPLICA_STATUS, ReplicaStatusRequest(SHARD), 1.0)
                return reply.header(ReplicaStatusResponse)
            finally:
                await client.close()

        try:
            return asyncio.run(ask())
        except HoldMQError:
            return None

    def leader(self) -> str:
        """The replica that serves in the highest epoch; "" = none."""
        found = [
            (s.epoch, name) for name in REPLICAS if (s := self.status(name)) is not None and s.is_serving
        ]
        return max(found)[1] if found else ""

    def wait_in_sync(self) -> None:
        """Wait until all replicas are members, whole, and one serves."""

        def is_level() -> bool:
            found = [self.status(name) for name in REPLICAS]
            return all(s is not None and s.is_whole for s in found) and any(
                s is not None and s.is_serving and len(s.in_sync) == len(REPLICAS) for s in found
            )

        try:
            wait_until(is_level, "all replicas are in sync", HEAL_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def switch(self, leader: str, to: str = "") -> None:
        """Ask a leader to hand over."""

        async def ask() -> None:
            client = Client(f"{self.net.addresses[leader]}:{REPLICA_PORT}", "client", "test")
            try:
                header = ReplicaSwitchRequest(SHARD, to)
                (await client.call(RequestCode.REPLICA_SWITCH, header, 2.0)).header(ReplicaSwitchResponse)
            finally:
                await client.close()

        asyncio.run(ask())

    def logs(self) -> str:
        """The last lines of each replica."""
        parts = []
        for name in (*REPLICAS, "gateway"):
            path = self.directory / f"{name}.log"
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            parts.append(f"== {name}\n" + "\n".join(lines[-30:]))
        return "\n".join(parts)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.HTTPError, OSError):
        return False


class Application(threading.Thread):
    """An SDK producer that sends one message after the other and notes where each was acknowledged."""

    def __init__(self, registry: str) -> None:
        super().__init__(name="application", daemon=True)
        self.placed: dict[tuple[int, int], bytes] = {}
        self.errors: list[str] = []
        self.gaps: list[tuple[float, float]] = []
        self.acked_at = time.monotonic()
        self._registry = registry
        self._stopping = threading.Event()

    def run(self) -> None:
        """Send until `stop`."""
        asyncio.run(self._send())

    async def _send(self) -> None:
        serial = 0
        async with Producer([self._registry], send_timeout_s=60.0) as producer:
            while not self._stopping.is_set():
                body = b"app-%d" % serial
                serial += 1
                try:
                    result = await producer.send(Message("applications", body), key="one")
                except HoldMQError as error:
                    self.errors.append(str(error))
                    continue
                now = time.monotonic()
                if now - self.acked_at > 0.5:
                    self.gaps.append((self.acked_at, now))
                self.acked_at = now
                if result.queue_offset >= 0:
                    self.placed[result.queue.queue_id, result.queue_offset] = body
                await asyncio.sleep(0.002)

    def longest_gap_since(self, began: float) -> float:
        """The longest time without an acknowledgement that ended after `began`, or goes on."""
        gaps = [end - max(begin, began) for begin, end in self.gaps if end > began]
        return max([*gaps, time.monotonic() - max(self.acked_at, began)], default=0.0)

    def stop(self) -> None:
        """End after the message in hand."""
        self._stopping.set()
        self.join(90.0)


class Rounds:
    """Faults by name; each is done, watched until records are acknowledged again, and healed."""

    def __init__(self, shard: ShardNetwork, chance: random.Random) -> None:
        self.shard = shard
        self.chance = chance
        self.faults: dict[str, Callable[[str, str], None]] = {
            "kill the leader": lambda leader, _: shard.end(leader),
            "kill a copy": lambda _, copy: shard.end(copy),
            "stop the leader": lambda leader, _: shard.end(leader, signal.SIGTERM),
            "pause the leader": lambda leader, _: self._pause(leader),
            "pause a copy": lambda _, copy: self._pause(copy),
            "cut the leader off": lambda leader, _: shard.net.separate(
                leader, [n for n in (*REPLICAS, *ETCDS) if n != leader]
            ),
            "cut the leader from its copies": lambda leader, _: shard.net.separate(
                leader, [n for n in REPLICAS if n != leader]
            ),
            "cut the leader from etcd": lambda leader, _: shard.net.separate(leader, list(ETCDS)),
            "cut a copy off": lambda _, copy: shard.net.separate(
                copy, [n for n in (*REPLICAS, *ETCDS) if n != copy]
            ),
            "one way from the leader": shard.net.cut,
            "one way to the leader": lambda leader, copy: shard.net.cut(copy, leader),
            "bridge": lambda leader, copy: shard.net.separate(leader, [copy]),
            "kill a member of etcd": lambda _leader, _copy: shard.end(self.chance.choice(ETCDS)),
            "etcd gone": lambda _leader, _copy: [shard.end(name) for name in ETCDS[:2]] and None,
            "emptied disk": lambda _, copy: self._empty(copy),
            "switch": lambda leader, _: shard.switch(leader),
            "switch storm": lambda _leader, _copy: self._storm(),
            "swap": self._swap,
        }

    def _pause(self, name: str) -> None:
        self.shard.processes[name].send_signal(signal.SIGSTOP)

    def _empty(self, name: str) -> None:
        self.shard.end(name)
        shutil.rmtree(self.shard.directory / name)
        self.shard.start_replica(name)

    def _swap(self, leader: str, copy: str) -> None:
        self._pause(leader)
        time.sleep(TTL_S + 1.5)
        self.shard.processes[leader].send_signal(signal.SIGCONT)
        if self.shard.leader() != copy:
            self.shard.end(copy)

    def _storm(self) -> None:
        for _ in range(4):
            leader = self.shard.leader()
            if leader:
                # It may be handing over already, or another one leads by now.
                with contextlib.suppress(HoldMQError):
                    self.shard.switch(leader)
            time.sleep(0.7)

    def heal(self) -> None:
        """Everything works again."""
        shard = self.shard
        shard.net.heal()
        for name in REPLICAS:
            process = shard.processes.get(name)
            if process is not None:
                process.send_signal(signal.SIGCONT)
        for name in (*REPLICAS, *ETCDS):
            process = shard.processes.get(name)
            if process is None or process.poll() is not None:
                shard.processes.pop(name, None)
                (shard.start_replica if name in REPLICAS else shard.start_etcd)(name)
        shard.wait_in_sync()


NO_FAILOVER = ("etcd gone",)
"""Faults under which nothing is acknowledged before they are healed."""


@contextmanager
def shard_network(directory: Path) -> Iterator[ShardNetwork]:
    """A shard that is in sync; all of it ends with the context."""
    with network() as net:
        shard = ShardNetwork(directory, net)
        try:
            shard.start()
            yield shard
        finally:
            shard.end_all()


def run_rounds(
    directory: Path, rounds: int, seed: int, say: Callable[[str], None], only: tuple[str, ...] = ()
) -> list[tuple[str, float]]:
    """Do so many rounds; how long nothing was acknowledged in each. AssertionError for a broken promise."""
    chance = random.Random(seed)
    found: list[tuple[str, float]] = []
    with shard_network(directory) as shard:
        fleet = Fleet(shard.mqtt_port, 8, 5, "devices/{i}/temp")
        application = Application(shard.registry)
        fleet.start()
        application.start()
        try:
            wait_until(lambda: fleet.acknowledged > 50 and len(application.placed) > 50, "the load runs")
            todo: list[str] = []
            turn = Rounds(shard, chance)
            for _ in range(rounds):
                if not todo:
                    todo = [name for name in turn.faults if not only or name in only]
                    chance.shuffle(todo)
                found.append(_round(turn, todo.pop(), application, fleet, say))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{shard.logs()}") from None
        finally:
            application.stop()
            fleet.stop()
        assert fleet.error is None
        assert not application.errors, application.errors[:3]
        check(shard, application, fleet)
    return found


def _round(
    turn: Rounds, name: str, application: Application, fleet: Fleet, say: Callable[[str], None]
) -> tuple[str, float]:
    shard = turn.shard
    leader = shard.leader()
    copy = turn.chance.choice([n for n in REPLICAS if n != leader])
    began = time.monotonic()
    acked, published = len(application.placed), fleet.acknowledged
    turn.faults[name](leader, copy)
    time.sleep(1.0 if name in NO_FAILOVER else TTL_S + 3.0)
    gap_s = application.longest_gap_since(began)
    if name not in NO_FAILOVER:
        assert len(application.placed) > acked, f"{name}: nothing was acknowledged for {gap_s:.1f} s"
    turn.heal()
    wait_until(lambda: len(application.placed) > acked + 20, f"{name}: records are acknowledged again")
    wait_until(lambda: fleet.acknowledged > published + 20, f"{name}: devices publish again")
    after = shard.leader()
    say(f"{name:32} {leader} -> {after}  nothing acknowledged for {gap_s:5.2f} s")
    return name, gap_s


def check(shard: ShardNetwork, application: Application, fleet: Fleet) -> None:
    """Everything acknowledged is where it was said to be, in order and once."""
    stored: dict[str, dict[int, dict[int, bytes]]] = defaultdict(lambda: defaultdict(dict))
    found = asyncio.run(messages_of([shard.registry], "devices", "applications"))
    for message in found:
        stored[message.topic][message.queue_id][message.queue_offset] = message.body
    for (queue_id, offset), body in application.placed.items():
        assert stored["applications"][queue_id].get(offset) == body, f"lost: {body!r} at {queue_id}/{offset}"
    for queue in stored["applications"].values():
        numbers = [int(queue[offset].split(b"-")[1]) for offset in sorted(queue)]
        assert numbers == sorted(set(numbers)), "an application's messages are out of order, or twice"
    _check_devices(fleet, stored["devices"])
    shard.wait_in_sync()
    _check_copies(shard)


def _check_devices(fleet: Fleet, queues: dict[int, dict[int, bytes]]) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    for messages in queues.values():
        assert sorted(messages) == list(range(len(messages)))
        for offset in sorted(messages):
            name, _, number = messages[offset].decode().partition(":")
            seen[name].append(int(number))
    for device in fleet.devices:
        first_seen = list(dict.fromkeys(seen[device.name]))
        missing = set(device.acknowledged) - set(first_seen)
        assert not missing, f"{device.name} lost acknowledged messages: {sorted(missing)[:5]}"
        acknowledged = set(device.acknowledged)
        in_order = [number for number in first_seen if number in acknowledged]
        assert in_order == sorted(in_order), f"{device.name}'s messages are out of order"


def _check_copies(shard: ShardNetwork) -> None:
    """The files of all copies are equal up to the lowest confirmed position."""
    confirmed = min(status.confirmed for name in REPLICAS if (status := shard.status(name)) is not None)
    logs = {name: shard.directory / name / "commitlog" for name in REPLICAS}
    first = max(min(int(p.name) for p in path.iterdir() if p.name.isdigit()) for path in logs.values())
    contents = {name: _log_bytes(path, first, confirmed) for name, path in logs.items()}
    reference = contents[REPLICAS[0]]
    for name in REPLICAS[1:]:
        assert contents[name] == reference, f"the logs of {REPLICAS[0]} and {name} differ below {confirmed}"


def _log_bytes(path: Path, first: int, end: int) -> bytes:
    parts = []
    for segment in sorted(p for p in path.iterdir() if p.name.isdigit() and int(p.name) >= first):
        start = int(segment.name)
        if start < end:
            with segment.open("rb") as file:
                parts.append(file.read(end - start))
    return b"".join(parts)[: end - first]


def main() -> None:
    """Run rounds and print a table."""
    rounds, seed = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as directory:
        found = run_rounds(Path(directory), rounds, seed, print, tuple(sys.argv[3:]))
    gaps = sorted(gap for name, gap in found if name not in NO_FAILOVER)
    late = [gap for gap in gaps if gap > FAILOVER_MAX_S]
    print(
        json.dumps(
            {
                "rounds": len(found),
                "ttl_s": TTL_S,
                "gap_p50_s": round(gaps[len(gaps) // 2], 2),
                "gap_max_s": round(gaps[-1], 2),
                "over_ttl_and_2_s": len(late),
            }
        )
    )


if __name__ == "__main__":
    main()
