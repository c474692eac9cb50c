"""`holdmq up --replicas`: what is refused, what is told to whom, and a failover in front of a device."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from any_disk import ANY_DISK
from command_line import Cli, run_here
from etcd_members import PROGRAM, etcd_cluster
from mqtt_client import MqttClient, bodies, connect_again, numbered
from processes import free_port, wait_until

from holdmq.cli.up_replicas import PORT_STEP, UpReplicas, refuse_left_replicas
from holdmq.config.model import Config
from holdmq.config.sources import load
from holdmq.errors import ConfigError, StartupError

END_S = 100.0
TIMES = {
    "coordination.ttl_s": 3,
    "coordination.renew_s": 0.5,
    "coordination.timeout_s": 0.7,
    "coordination.margin_s": 0.5,
}
"""Shorter than what is the default, so that a failover takes three seconds."""


def config_of(*sets: str) -> Config:
    return load(None, [*sets, "log.format=json"])


def replicas_of(count: int, *sets: str) -> UpReplicas:
    return UpReplicas(config_of(*sets), count)


def test_each_replica_has_its_own_ports_and_directory() -> None:
    replicas = replicas_of(3, "storage.data_dir=/d/store")
    assert [each.name for each in replicas.all] == ["broker-a", "broker-b", "broker-c"]
    assert [each.data_dir for each in replicas.all] == ["/d/store-a", "/d/store-b", "/d/store-c"]
    sections = [load(None, [*replicas.settings(), *each.settings()]) for each in replicas.all]
    ports = [(one.broker.port, one.replication.port, one.broker.admin_port) for one in sections]
    assert ports[0] == (10911, 10912, 10913), "the first one's are those of a broker with one copy"
    assert len({port for of_one in ports for port in of_one}) == 9
    for place, one in enumerate(sections):
        addresses = one.replication.addresses()
        assert one.replication.replica == list(addresses)[place]
        assert addresses[one.replication.replica] == f"127.0.0.1:{one.replication.port}"
        assert one.coordination.kind == "etcd"
        assert one.replication.min_in_sync == 2


def test_two_copies_go_on_with_one_unless_told_otherwise() -> None:
    assert "replication.min_in_sync=1" in replicas_of(2).settings()
    told = replicas_of(2, "replication.min_in_sync=2").settings()
    assert not any(text.startswith("replication.min_in_sync") for text in told)


def test_a_coordinator_of_the_users_is_used() -> None:
    assert replicas_of(3).has_own_etcd
    assert not replicas_of(3, "coordination.etcd.urls=http://10.0.0.1:2379").has_own_etcd
    kubernetes = replicas_of(3, "coordination.kind=kubernetes")
    assert not kubernetes.has_own_etcd
    assert not any(text.startswith("coordination") for text in kubernetes.settings())


@pytest.mark.parametrize(
    ("count", "sets", "why"),
    [
        (1, (), r"--replicas takes 2 to 7, not 1"),
        (8, (), r"--replicas takes 2 to 7, not 8"),
        (3, ("replication.replicas=a=h:1,b=h:2",), r"replication\.replicas is set"),
        (3, ("storage.engine=kv",), r"--replicas is for the log engine, and storage\.engine is kv"),
        (3, ("broker.advertise=h:1",), r"broker\.advertise names one address, and each replica has its own"),
        (3, ("broker.port=65530",), r"broker\.port is 65530, and the last replica's would be 65550"),
    ],
)
def test_what_cannot_be_is_one_sentence(count: int, sets: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        replicas_of(count, *sets)


def test_the_log_of_one_copy_is_not_left_behind_nor_are_replicas(tmp_path: Path) -> None:
    config = config_of(f"storage.data_dir={tmp_path / 'store'}")
    replicas = UpReplicas(config, 3)
    replicas.refuse_other_data()
    refuse_left_replicas(config)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "format.json").write_text("{}")
    with pytest.raises(
        StartupError, match=r"rename it to .*/store-a, and the other replicas get what it has"
    ):
        replicas.refuse_other_data()
    (tmp_path / "store").rename(tmp_path / "store-a")
    replicas.refuse_other_data()
    with pytest.raises(StartupError, match=r"store-a is the log of a replica.* say --replicas N as before"):
        refuse_left_replicas(config)


class Admin:
    """An admin port that says what it is told to say."""

    def __init__(self) -> None:
        self.port = 0
        self.metrics = "holdmq_replication_is_leader 0.0\n"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        status, body = ("200 OK", self.metrics) if path == b"/metrics" else ("503 No", "it is waiting\n")
        writer.write(f"HTTP/1.0 {status}\r\n\r\n{body}".encode())
        writer.close()


@pytest.fixture
async def admins() -> AsyncIterator[list[Admin]]:
    found = [Admin() for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        while True:
            # Those of two replicas are PORT_STEP apart.
            first = free_port()
            try:
                for place, admin in enumerate(found):
                    admin.port = first + place * PORT_STEP
                    server = await asyncio.start_server(admin.answer, "127.0.0.1", admin.port)
                    await stack.enter_async_context(server)
                break
            except OSError:
                await stack.aclose()
        yield found


async def test_they_are_ready_when_one_of_them_leads(admins: list[Admin]) -> None:
    replicas = replicas_of(3, f"broker.admin_port={admins[0].port}")
    is_ready, why = await replicas.one_leads()
    assert (is_ready, why) == (False, "a: it is waiting; b: it is waiting; c: it does not listen")
    admins[1].metrics = "# HELP x\nholdmq_replication_is_leader 1.0\n"
    assert await replicas.one_leads() == (True, "")


def ports() -> dict[str, int]:
    """Ports for all, those of three brokers in the order that `holdmq up` wants."""
    for _ in range(20):
        found = [free_port() for _ in range(2 * PORT_STEP + 3)]
        if found[-1] - found[0] == len(found) - 1:
            break
    else:
        pytest.fail("no free ports next to each other")
    given = dict(zip(("broker.port", "replication.port", "broker.admin_port"), found[:3], strict=True))
    others = ("registry.port", "registry.admin_port", "gateway.port", "gateway.admin_port")
    return given | {key: free_port() for key in others}


def flags(directory: Path, given: dict[str, int], *more: str) -> list[str]:
    settings: dict[str, Any] = {
        **given,
        **TIMES,
        "broker.register_interval_s": 1,
        "gateway.workers": 1,
        "gateway.drain_s": 1,
        "log.format": "json",
        "storage.segment_size_bytes": 16 << 20,
        **{f"storage.{name}": percent for name, percent in ANY_DISK.items()},
    }
    sets = [f"--set={key}={value}" for key, value in settings.items()]
    return ["--without=stats", "--without=console", f"--data={directory / 'data'}", *sets, *more]


class RunningReplicas:
    """`holdmq up --replicas`, until it is told to stop."""

    def __init__(self, directory: Path, given: dict[str, int], *more: str) -> None:
        self._log = directory / "up.log"
        command = [sys.executable, "-m", "holdmq.cli", "up", "--json", *flags(directory, given, *more)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        told = [self.process.stdout.readline() for _ in range(2)]
        assert all(told), self.log()
        self.ready, self.advice = map(json.loads, told)

    def log(self) -> str:
        """What it and its processes said."""
        return self._log.read_text(errors="replace")

    def children(self) -> dict[str, psutil.Process]:
        """Its processes by name, a replica's is its id."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            line = child.cmdline()
            ids = [text.partition("=")[2] for text in line if text.startswith("replication.replica=")]
            found[ids[0] if ids else "etcd" if child.name() == "etcd" else line[4]] = child
        return found

    def rows(self) -> dict[str, dict[str, Any]]:
        """What `holdmq replica list` says, by replica."""
        words = shlex.split(self.advice["replicas"].partition(": ")[2])
        done = run_here(*words[1:], "--json")
        return {row["replica"]: row for row in json.loads(done.stdout)["replicas"]}

    def leader(self) -> str:
        """Who leads and serves now; "" = nobody."""
        return next((name for name, row in self.rows().items() if row.get("serves")), "")

    def are_in_sync(self) -> bool:
        """Whether all replicas answer and have what is confirmed."""
        return bool(self.leader()) and all(
            row["in_sync"] and row.get("whole") for row in self.rows().values()
        )

    def stop(self) -> str:
        """End it in good order; what it and its processes said."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_S)
        assert code == 0, self.log()
        return self.log()


@contextlib.contextmanager
def running(directory: Path, given: dict[str, int], *more: str) -> Iterator[RunningReplicas]:
    up = RunningReplicas(directory, given, *more)
    try:
        yield up
    finally:
        MqttClient.close_all()
        if up.process.poll() is None:
            up.process.terminate()
            up.process.wait(END_S)
        assert up.process.stdout is not None
        up.process.stdout.close()


def json_lines(said: str) -> list[dict[str, Any]]:
    """The lines of a log that are JSON."""
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_people_see_which_replica_speaks(tmp_path: Path) -> None:
    given = ports()
    with running(tmp_path, given, "--replicas=2", f"--etcd={PROGRAM}", "--set=log.format=human") as up:
        wait_until(up.are_in_sync, "both are in sync")
        leader = up.leader()
        said = up.stop()
    for name in ("a", "b"):
        lines = [line for line in said.splitlines() if line.startswith(f"broker-{name} |")]
        assert any("replica lives" in line for line in lines), said
        assert any(" leads " in f"{line} " for line in lines) == (name == leader), said


def test_devices_go_on_when_the_leader_is_killed_and_it_comes_back(tmp_path: Path, holdmq: Cli) -> None:
    given = ports()
    port = given["gateway.port"]
    with running(tmp_path, given, "--replicas=3", f"--etcd={PROGRAM}") as up:
        assert up.ready["event"] == "ready"
        assert f"b 127.0.0.1:{given['broker.port'] + PORT_STEP}" in up.ready["broker"]
        assert set(up.children()) == {"etcd", "registry", "a", "b", "c", "gateway"}
        wait_until(up.are_in_sync, "all are in sync")
        reader, writer = MqttClient(port, "reader"), MqttClient(port, "writer")
        reader.subscribe("devices/#")
        writer.publish("devices/1", *numbered(20))
        before = up.leader()
        killed = up.children()[before]
        killed.kill()
        writer.publish("devices/1", *numbered(20, 20))
        assert bodies(reader.take(40)) == numbered(40)
        assert up.leader() not in ("", before)
        wait_until(up.are_in_sync, "the killed one is back")
        assert up.children()[before].pid != killed.pid
        reader.close()
        writer.publish("devices/1", b"while away")
        said = up.stop()
        assert f"broker-{before} was killed by SIGKILL; restart 1" in said
        of_brokers = [line for line in json_lines(said) if line["service"] == "broker"]
        assert {line["replica"] for line in of_brokers} == {"a", "b", "c"}
    data = tmp_path / "data"
    assert {path.name for path in data.glob("store*")} == {"store-a", "store-b", "store-c"}
    with running(tmp_path, given, "--replicas=3", f"--etcd={PROGRAM}") as up:
        assert bodies(connect_again(port, "reader").take(1)) == [b"while away"]
        up.stop()
    alone = holdmq("up", *flags(tmp_path, given))
    assert alone.returncode == 1
    assert "store-a is the log of a replica" in alone.stderr


def test_two_replicas_by_an_etcd_that_runs_and_then_a_third(tmp_path: Path) -> None:
    given = ports()
    with etcd_cluster(tmp_path / "members", 1) as cluster:
        etcd = f"--set=coordination.etcd.urls={cluster.urls[0]}"
        with running(tmp_path, given, "--replicas=2", etcd) as up:
            assert set(up.children()) == {"registry", "a", "b", "gateway"}
            assert not (tmp_path / "data" / "etcd").exists()
            wait_until(up.are_in_sync, "both are in sync")
            other = {"a": "b", "b": "a"}[up.leader()]
            os.kill(up.children()[other].pid, signal.SIGSTOP)
            try:
                MqttClient(given["gateway.port"], "writer").publish("devices/1", *numbered(5))
                assert not up.rows()[other]["in_sync"], "one copy is left, and takes messages"
            finally:
                os.kill(up.children()[other].pid, signal.SIGCONT)
            wait_until(up.are_in_sync, "both are in sync again")
            up.stop()
        with running(tmp_path, given, "--replicas=3", etcd) as up:
            wait_until(up.are_in_sync, "a third one has been added")
            assert up.rows()["c"]["confirmed"] > 0
            up.stop()


def test_the_log_of_one_copy_becomes_the_replicas(tmp_path: Path, holdmq: Cli) -> None:
    given = ports()
    port = given["gateway.port"]
    alone = subprocess.Popen(
        [sys.executable, "-m", "holdmq.cli", "up", *flags(tmp_path, given)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert alone.stdout is not None
        assert alone.stdout.readline().startswith("holdmq: ready ")
        MqttClient(port, "reader").subscribe("devices/#")
        MqttClient.close_all()
        MqttClient(port, "writer").publish("devices/1", *numbered(20))
    finally:
        MqttClient.close_all()
        alone.terminate()
        alone.communicate(timeout=END_S)
    refused = holdmq("up", *flags(tmp_path, given, "--replicas=3", f"--etcd={PROGRAM}"))
    assert refused.returncode == 1
    assert "rename it to" in refused.stderr
    (tmp_path / "data" / "store").rename(tmp_path / "data" / "store-a")
    with running(tmp_path, given, "--replicas=3", f"--etcd={PROGRAM}") as up:
        wait_until(up.are_in_sync, "all are in sync")
        assert bodies(connect_again(port, "reader").take(20)) == numbered(20)
        up.stop()


def test_a_port_of_a_further_replica_is_looked_at_before_anything_starts(tmp_path: Path, holdmq: Cli) -> None:
    given = ports()
    port = given["broker.port"] + PORT_STEP
    with socket.create_server(("127.0.0.1", port)):
        done = holdmq("up", *flags(tmp_path, given, "--replicas=3", f"--etcd={PROGRAM}"))
    assert done.returncode == 1
    assert f"port {port} (broker.port) on 127.0.0.1 is in use by another process" in done.stderr
    twice = {**given, "registry.port": given["replication.port"] + PORT_STEP}
    done = holdmq("up", *flags(tmp_path, twice, "--replicas=3", f"--etcd={PROGRAM}"))
    assert done.returncode == 2
    assert f"replication.port of replica b and registry.port are both {twice['registry.port']}" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("--etcd=/bin/true",), ("--replicas=3", "--etcd=/bin/true", "--set=coordination.kind=kubernetes")],
)
def test_an_etcd_that_is_not_to_be_started_is_refused(
    tmp_path: Path, holdmq: Cli, words: tuple[str, ...]
) -> None:
    done = holdmq("up", f"--data={tmp_path / 'data'}", *words)
    assert done.returncode == 2
    assert done.stderr == "error: --etcd names the etcd to start for --replicas, and none is to be started\n"


def test_without_an_etcd_people_are_told_how_to_get_one(tmp_path: Path, holdmq: Cli) -> None:
    done = holdmq("up", *flags(tmp_path, ports(), "--replicas=3", f"--etcd={tmp_path / 'none'}"))
    assert done.returncode == 1
    assert "error: holdmq up --replicas needs an etcd of 3.5.6 or newer" in done.stderr
