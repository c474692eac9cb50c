"""Three replicas and three members of etcd, each in a network namespace and with a small disk of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from any_disk import ANY_DISK
from etcd_members import PROGRAM
from processes import free_port, wait_until
from replica_networks import Network, network
from small_disks import SmallDisk, small_disk

from holdmq.errors import HoldMQError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.replica_headers import (
    ReplicaStatusRequest,
    ReplicaStatusResponse,
    ReplicaSwitchRequest,
    ReplicaSwitchResponse,
)

SHARD: Final = "broker-0"
REPLICAS: Final = ("a", "b", "c")
ETCDS: Final = ("e0", "e1", "e2")
PORT, REPLICA_PORT, ADMIN_PORT, ETCD_PORT, PEER_PORT = 10911, 10912, 9464, 2379, 2380
HEAL_S: Final = 60.0
DISK_BYTES: Final = 1 << 30
SEGMENT_BYTES: Final = 1 << 20
KEPT_SEGMENTS: Final = 12
"""Of the runs under retention: some ten seconds of the load, more than any client is behind."""


@dataclass(frozen=True)
class RoundTimes:
    """The times of a shard under test; without arguments those that take three seconds for a failover."""

    ttl_s: int = 3
    renew_s: float = 0.5
    timeout_s: float = 0.7
    margin_s: float = 0.5
    lag_ms: int = 1000
    hold_ms: int = 200

    def settings(self) -> dict[str, Any]:
        """Them as settings of a replica."""
        return {
            "coordination.ttl_s": self.ttl_s,
            "coordination.renew_s": self.renew_s,
            "coordination.timeout_s": self.timeout_s,
            "coordination.margin_s": self.margin_s,
            "replication.lag_ms": self.lag_ms,
            "replication.hold_ms": self.hold_ms,
        }


DEFAULT_TIMES: Final = RoundTimes(9, 3.0, 2.0, 2.0, 3000, 500)
"""What a shard has that nobody sets times for."""


@dataclass(frozen=True)
class ShardOptions:
    """How a shard under test is set up. `other_version`: sources that `start_other_version` runs."""

    times: RoundTimes = RoundTimes()
    is_retained: bool = False
    other_version: Path | None = None


class ShardNetwork:
    """The processes; registry and gateway are beside the test. Each replica's disk can be filled."""

    def __init__(self, directory: Path, net: Network, disks: dict[str, SmallDisk], options: ShardOptions):
        self.directory = directory
        self.net = net
        self.disks = disks
        self.options = options
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.mqtt_port = free_port()
        self.registry = f"{net.here}:{free_port()}"
        self.listed: tuple[str, ...] = REPLICAS
        for name in (*REPLICAS, *ETCDS):
            net.add(name)

    def data(self, name: str) -> Path:
        """The data directory of a replica or member of etcd."""
        return self.disks[name].path / "store" if name in self.disks else self.directory / name

    # Processes

    def _spawn(
        self, name: str, words: list[str], prefix: tuple[str, ...] = (), sources: Path | None = None
    ) -> None:
        environment = dict(os.environ) | ({} if sources is None else {"PYTHONPATH": str(sources)})
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*prefix, "setpriv", "--pdeathsig", "KILL", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, env=environment,
            )  # fmt: skip

    def start_etcd(self, name: str) -> None:
        """Start a member of etcd with what its directory has."""
        at = self.net.addresses
        cluster = ",".join(f"{member}=http://{at[member]}:{PEER_PORT}" for member in ETCDS)
        flags = {
            "name": name,
            "data-dir": str(self.data(name)),
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
        self,
        name: str,
        service: str,
        settings: dict[str, Any],
        prefix: tuple[str, ...] = (),
        sources: Path | None = None,
    ) -> None:
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self._spawn(name, [sys.executable, "-m", "holdmq.cli", service, *sets], prefix, sources)

    def start_replica(self, name: str, sources: Path | None = None) -> None:
        """Start a replica with what its directory has; of other `sources`, if given."""
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
            "storage.data_dir": self.data(name),
            "storage.segment_size_bytes": SEGMENT_BYTES,
            "replication.replicas": ",".join(f"{r}={at[r]}:{REPLICA_PORT}" for r in self.listed),
            "replication.replica": name,
            "replication.bind": address,
            "replication.port": REPLICA_PORT,
            "coordination.kind": "etcd",
            "coordination.etcd.urls": ",".join(f"http://{at[e]}:{ETCD_PORT}" for e in ETCDS),
            "log.format": "json",
            **{f"storage.{key}": value for key, value in ANY_DISK.items()},
            **self.options.times.settings(),
        }
        if self.options.is_retained:
            settings |= {
                "storage.retention_segments": KEPT_SEGMENTS,
                "storage.retention_interval_ms": 200,
                "storage.delete": "consumed",
            }
        self._service(name, "broker", settings, self.net.prefix(name), sources)

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

    def ended_by_itself(self) -> list[str]:
        """Processes that nobody ended."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def empty(self, name: str) -> None:
        """Take everything away that a replica or member of etcd has; it does not run."""
        shutil.rmtree(self.data(name))

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
        found = [(s.epoch, name) for name in REPLICAS if (s := self.status(name)) is not None and _serves(s)]
        return max(found)[1] if found else ""

    def wait_in_sync(self) -> None:
        """Wait until all listed replicas are members, whole, and one serves."""
        self.wait_level(self.listed)

    def wait_level(self, names: tuple[str, ...]) -> None:
        """Wait until these replicas, and no others, are members, whole, and one serves."""

        def is_level() -> bool:
            found = [self.status(name) for name in names]
            return all(s is not None and s.is_whole for s in found) and any(
                s is not None and _serves(s) and set(s.in_sync) == set(names) for s in found
            )

        wait_until(is_level, f"{', '.join(names)} are in sync", HEAL_S)

    def wait_out_of_sync(self, name: str) -> None:
        """Wait until a leader is served by others than this one alone."""

        def is_out() -> bool:
            found = [self.status(other) for other in REPLICAS if other != name]
            return any(s is not None and _serves(s) and name not in s.in_sync for s in found)

        wait_until(is_out, f"{name} is not in sync any more", HEAL_S)

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

    def etcd_leader(self) -> str:
        """The member of etcd that leads; the first that runs if none says so."""
        at = self.net.addresses
        for name in ETCDS:
            url = f"http://{at[name]}:{ETCD_PORT}/v3/maintenance/status"
            answer = _posted(url)
            if answer is not None and answer.get("leader") == answer["header"]["member_id"]:
                return name
        return next(name for name in ETCDS if name in self.processes)

    def last_words(self, name: str) -> str:
        """The last lines of a process's log."""
        lines = (self.directory / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-4:])

    def logs(self) -> str:
        """The last lines of each replica."""
        parts = []
        for name in (*REPLICAS, "gateway"):
            path = self.directory / f"{name}.log"
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            parts.append(f"== {name}\n" + "\n".join(lines[-30:]))
        return "\n".join(parts)


def _serves(status: ReplicaStatusResponse) -> bool:
    """Whether it leads, and has the lease: one that slept says for a moment that it leads still."""
    return status.is_serving and status.lease_ms > 0


def _posted(url: str) -> dict[str, Any] | None:
    try:
        answer = httpx.post(url, json={}, timeout=2.0)
    except httpx.HTTPError:
        return None
    found: dict[str, Any] = answer.json()
    return found


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.HTTPError, OSError):
        return False


@contextmanager
def shard_network(directory: Path, options: ShardOptions) -> Iterator[ShardNetwork]:
    """A shard that is in sync; all of it ends with the context."""
    with ExitStack() as stack:
        net = stack.enter_context(network())
        disks = {name: stack.enter_context(small_disk(directory / name, DISK_BYTES)) for name in REPLICAS}
        shard = ShardNetwork(directory, net, disks, options)
        # Before the disks go.
        stack.callback(shard.end_all)
        try:
            shard.start()
            yield shard
        except AssertionError as error:
            raise AssertionError(f"{error}\n{shard.logs()}") from error
