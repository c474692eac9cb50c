"""The etcd that `holdmq up --replicas` brings, with a real one: found, guarded, kept, alone, ended last."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from etcd_members import PROGRAM

from holdmq.cli import own_etcd as module
from holdmq.cli.own_etcd import NAME, ask_health, etcd_command, etcd_program, own_etcd
from holdmq.cli.supervisor import ServiceSupervisor
from holdmq.config.model import Config
from holdmq.config.sources import load
from holdmq.coordination.api import Coordinator, ShardState
from holdmq.coordination.configured import coordinator_of
from holdmq.errors import CoordinatorError, StartupError

STATE = ShardState(1, "a", ("a", "b"), 1)
END_S = 60.0


class OwnMember:
    """A supervisor with one etcd, as `holdmq up` has it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.where = own_etcd(directory, ())
        self.lines: list[str] = []
        self.supervisor = ServiceSupervisor(
            lambda name, line: self.lines.append(f"{name}: {line}"), asyncio.Event()
        )
        self.coordinators: list[Coordinator] = []

    async def start(self) -> None:
        command = etcd_command(self.directory, self.where, PROGRAM, 30)
        self.ask_ready = command.ask_ready
        self.supervisor.start(command)
        assert await self.supervisor.wait_ready(NAME), self.lines

    def config(self, *sets: str) -> Config:
        """What a replica of it is told."""
        return load(None, ["coordination.kind=etcd", *self.where.settings(), *sets])

    def coordinator(self, *sets: str) -> Coordinator:
        """A replica's client."""
        made = coordinator_of(self.config(*sets), "a")
        assert made is not None
        self.coordinators.append(made)
        return made

    def process(self) -> psutil.Process:
        """The supervisor's child itself, become etcd."""
        (found,) = (
            child
            for child in psutil.Process().children()
            if child.name() == "etcd" and Path(child.cwd()) == self.directory
        )
        return found

    async def end(self) -> None:
        for coordinator in self.coordinators:
            await coordinator.close()
        await self.supervisor.stop()


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[OwnMember]:
    made = OwnMember(tmp_path / "etcd")
    yield made
    await made.end()


def program(path: Path, says: str) -> Path:
    """Something that says of itself which version it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_the_one_of_path_is_taken_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = program(tmp_path / "build" / "etcd", "etcd Version: 3.6.16")
    installed = program(tmp_path / "bin" / "etcd", "etcd Version: 3.5.6")
    monkeypatch.setattr(module, "CHECKOUT_PROGRAM", built)
    monkeypatch.setenv("PATH", f"{installed.parent}:{os.environ['PATH']}")
    assert etcd_program(None) == installed
    program(installed, "etcd Version: 3.4.23")
    assert etcd_program(None) == built, "Debian 12 has an older one"
    assert etcd_program(built) == built


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("etcd Version: 3.5.5", "etcd is 3.5.5"),
        ("something else 9.9.9", "etcd is no etcd that runs"),
    ],
)
def test_one_that_will_not_do_is_said_with_how_to_get_another(tmp_path: Path, says: str, why: str) -> None:
    path = program(tmp_path / "etcd", says)
    with pytest.raises(StartupError) as refused:
        etcd_program(path)
    told = str(refused.value)
    assert told.startswith("holdmq up --replicas needs an etcd of 3.5.6 or newer")
    assert why in told
    for way in ("etcd-server of Debian", "--etcd PATH", "--set coordination.etcd.urls=URL"):
        assert way in told


def test_where_there_is_none_it_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKOUT_PROGRAM", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartupError, match="none was found"):
        etcd_program(None)
    with pytest.raises(StartupError, match="none is no etcd that runs"):
        etcd_program(tmp_path / "none")


def test_without_the_package_people_are_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "holdmq.credentials.certificates", raising=False)
    monkeypatch.delattr("holdmq.credentials.certificates", raising=False)
    with pytest.raises(StartupError, match=r"pip install 'holdmq\[etcd,tls\]'"):
        own_etcd(tmp_path / "etcd", ())


def test_its_ports_are_the_same_while_they_are_free(tmp_path: Path) -> None:
    directory = tmp_path / "etcd"
    first = own_etcd(directory, ())
    ports = {urlsplit(url).port or 0 for url in (first.url, first.peer_url)}
    assert len(ports) == 2
    assert own_etcd(directory, ()) == first
    another = own_etcd(directory, ports)
    assert not {urlsplit(url).port for url in (another.url, another.peer_url)} & ports


def test_nobody_else_reads_its_directory_or_its_keys(tmp_path: Path) -> None:
    directory = tmp_path / "etcd"
    certs = own_etcd(directory, ()).certs
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for key in certs.glob("*-key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    authority = (certs / "ca.pem").read_bytes()
    own_etcd(directory, ())
    assert (certs / "ca.pem").read_bytes() == authority


async def test_replicas_reach_it_and_nobody_without_a_certificate(own: OwnMember) -> None:
    await own.start()
    a = own.coordinator()
    assert await a.compare_and_set(0, STATE) is not None
    assert await a.hold(9)
    assert (await a.read()).state == STATE
    stranger = own.coordinator("coordination.etcd.tls_cert=", "coordination.etcd.tls_key=")
    with pytest.raises(CoordinatorError):
        await stranger.read()
    anonymous = ssl.create_default_context(cafile=str(own.where.certs / "ca.pem"))
    with pytest.raises(OSError):  # noqa: PT011 # whatever TLS says of it
        await ask_health(own.where.url, anonymous)


async def test_what_it_was_told_is_there_after_a_kill_and_after_a_stop(own: OwnMember) -> None:
    await own.start()
    version = await own.coordinator().compare_and_set(0, STATE)
    killed = own.process()
    killed.send_signal(signal.SIGKILL)
    async with asyncio.timeout(END_S):
        while not any("restart 1" in line for line in own.lines):
            await asyncio.sleep(0.02)
        while not await is_healthy(own):
            await asyncio.sleep(0.1)
    assert own.process().pid != killed.pid
    assert (await own.coordinator().read()).version == version
    await own.end()
    again = OwnMember(own.directory)
    assert again.where == own.where
    await again.start()
    try:
        assert (await again.coordinator().read()).state == STATE
    finally:
        await again.end()


async def is_healthy(own: OwnMember) -> bool:
    try:
        return (await own.ask_ready())[0]
    except OSError:
        return False


async def test_a_second_one_waits_until_the_first_has_ended(own: OwnMember) -> None:
    await own.start()
    second = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdmq.cli.own_etcd", own.directory, PROGRAM, stderr=subprocess.DEVNULL
    )
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.wait(), 0.7)
        await own.supervisor.stop()
        async with asyncio.timeout(END_S):
            while not await is_healthy(own):
                await asyncio.sleep(0.1)
    finally:
        second.terminate()
        await second.wait()


async def test_an_etcd_of_its_user_is_none_of_its_business(
    own: OwnMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_DATA_DIR", str(own.directory / "elsewhere"))
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://0.0.0.0:2379")
    await own.start()
    assert not (own.directory / "elsewhere").exists()
    assert not any(name.startswith("ETCD_") for name in own.process().environ())


def test_as_a_program_it_says_in_a_sentence_why_there_is_no_server(tmp_path: Path) -> None:
    done: Any = subprocess.run(
        [sys.executable, "-m", "holdmq.cli.own_etcd", tmp_path, tmp_path / "none"],
        capture_output=True, text=True, timeout=END_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == f"the etcd in {tmp_path} cannot be started: No such file or directory\n"
