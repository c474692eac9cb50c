"""HoldMQ's services as real processes on free loopback ports, in a directory of the test's own."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import forked
import pytest
from any_disk import ANY_DISK

from loadtest.usage import children_of

Process = forked.Forked | subprocess.Popen[bytes]
READY_S = 60.0
STOP_S = 100.0
"""A job under Spark ends the batch that it is in, and then its JVM."""
ANSWER_S = 30.0
SERVICES: Final = ("registry", "broker", "gateway")

PORTS_FIRST: Final = 10_000
PORTS_PER_PROCESS: Final = 2_000
"""Ports of one test process: below those that the system gives to connections, and no other worker's."""
_ports = itertools.count(os.getpid() * 61)
"""Begins elsewhere in every process: another run of the tests on this machine has the same ranges."""


def free_port() -> int:
    """A TCP port that nobody listens on now, and that no other test process asks for."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
    while True:
        port = PORTS_FIRST + process * PORTS_PER_PROCESS + next(_ports) % PORTS_PER_PROCESS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = READY_S) -> None:
    """Poll `holds`; AssertionError naming `what` when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


class Stack:
    """Processes of one installation, by name: registry, broker, gateway, stats, console.

    `overrides` are `section.key` settings for all of them.
    """

    def __init__(self, directory: Path, overrides: dict[str, Any] | None = None) -> None:
        self.directory = directory
        self.registry_port = free_port()
        self.broker_port = free_port()
        self.mqtt_port = free_port()
        self.registry = f"127.0.0.1:{self.registry_port}"
        self.admin_ports = {name: free_port() for name in ("registry", "broker", "gateway", "stats")}
        self.processes: dict[str, Process] = {}
        settings: dict[str, Any] = {
            "registry.port": self.registry_port,
            "broker.port": self.broker_port,
            "broker.register_interval_s": 1,
            "gateway.port": self.mqtt_port,
            "gateway.workers": 2,
            "gateway.drain_s": 5,
            "registry.data_dir": directory / "registry",
            "storage.data_dir": directory / "store",
            "stats.data_dir": directory / "stats",
            "console.data_dir": directory / "console",
            "console.auth": "none",
            # A query more in each JVM; tests that are about devices turn it on.
            "stats.devices": False,
            # Two of them are on disk whatever is stored, for each of the stacks that run at once.
            "storage.segment_size_bytes": 16 << 20,
            "log.format": "json",
        }
        settings |= {f"storage.{name}": percent for name, percent in ANY_DISK.items()}
        settings |= {f"{name}.admin_port": port for name, port in self.admin_ports.items()}
        settings |= _engine_settings(directory, overrides or {}) | (overrides or {})
        self._sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]

    def set(self, key: str, value: object) -> None:
        """One more `section.key` setting of what starts from now on."""
        self._sets += ["--set", f"{key}={value}"]

    def start(self, name: str, *options: str, wait: bool = True, prefix: tuple[str, ...] = ()) -> Process:
        """Start one service with `options`, under the tool `prefix` if given, and wait until it is ready."""
        args = [name, *self._sets, *options]
        if name in forked.SERVICES and not prefix:
            self.processes[name] = forked.start(args, self.directory, self._log_path(name))
        else:
            with self._log_path(name).open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [*prefix, sys.executable, "-m", "holdmq.cli", *args],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                )
        if wait:
            self.wait_ready(name)
        return self.processes[name]

    def start_all(self, services: tuple[str, ...] = SERVICES) -> None:
        """Start services side by side, and wait until all are ready."""
        for name in services:
            self.start(name, wait=False)
        for name in services:
            self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        """Wait until /readyz says yes; fails with the process's log."""
        deadline = time.monotonic() + READY_S
        while True:
            code = self.processes[name].poll()
            if code is not None:
                pytest.fail(f"{name} ended with exit code {code}:\n{self.log(name)}")
            status, text = self.http(name, "/readyz")
            if status == 200:
                return
            if time.monotonic() > deadline:
                pytest.fail(f"{name} is not ready ({text}):\n{self.log(name)}")
            time.sleep(0.05)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait for the end and return the exit code."""
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail(f"{name} did not end within {STOP_S} s of {number.name}:\n{self.log(name)}")

    def restart(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop a service with a signal and start it again: same ports, same data."""
        self.stop(name, number)
        self.start(name)

    def workers(self) -> list[int]:
        """The process ids of the gateway's workers."""
        return children_of(self.processes["gateway"].pid)

    def kill_workers(self) -> None:
        """kill -9 of every worker; back when their successors serve."""
        killed = self.workers()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

        def are_new() -> bool:
            now = self.workers()
            return len(now) == len(killed) and not set(now) & set(killed)

        wait_until(are_new, "new workers")
        wait_until(lambda: self.http("gateway", "/readyz")[0] == 200, "ready again")

    def kill_broker(self) -> None:
        """kill -9 of the broker, and a start; back when every worker of the gateway has it again."""
        before = self.log("gateway").count("broker connected")
        self.restart("broker", signal.SIGKILL)
        goal = before + len(self.workers())
        wait_until(
            lambda: self.log("gateway").count("broker connected") >= goal, "every worker has its broker"
        )

    def log(self, name: str) -> str:
        """What a service wrote so far."""
        return self._log_path(name).read_text(errors="replace")

    def http(self, name: str, path: str) -> tuple[int, str]:
        """Status and text of an admin path; 0 while nobody answers."""
        url = f"http://127.0.0.1:{self.admin_ports[name]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, metric: str) -> float:
        """The value of a metric line, labels included in `metric`; 0 when it is not there."""
        for line in self.http(name, "/metrics")[1].splitlines():
            if line.startswith(metric + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def _log_path(self, name: str) -> Path:
        return self.directory / f"{name}.log"


def _engine_settings(directory: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """Settings of the tested engine, unless a test is about one."""
    if "storage.engine" in overrides:
        return {}
    import tested_engine  # whose server has a port from here

    return tested_engine.storage_settings(directory)


def end_all(stacks: list[Stack], first: str = "") -> None:
    """End every process, those of the service `first` before all others.

    AssertionError if one had ended by itself, or does not exit with 0.
    """
    problems: list[str] = []
    ending = [(stack, name) for stack in stacks for name in reversed(list(stack.processes))]
    for stack, name in sorted(ending, key=lambda one: one[1] != first):
        ended = stack.processes[name].poll()
        code = stack.stop(name) if ended is None else ended
        if code:
            problems.append(f"{name} ended with exit code {code}:\n{stack.log(name)}")
    assert not problems, "\n".join(problems)


@contextmanager
def running_stack(directory: Path, *services: str, **overrides: Any) -> Iterator[Stack]:
    """Registry, broker and gateway, or these services, for all tests of a module; ended as by `end_all`."""
    stack = Stack(directory, overrides)
    try:
        stack.start_all(services or SERVICES)
        yield stack
    finally:
        end_all([stack])


@pytest.fixture
def holdmq_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """A function that starts registry, broker and gateway and returns their Stack::

    def test_something(holdmq_stack: StackMaker) -> None:
        stack = holdmq_stack(**{"gateway.workers": 1})       # any section.key as override
        stack.mqtt_port, stack.registry, stack.broker_port, stack.admin_ports["gateway"], …
        stack.restart("broker", signal.SIGKILL)               # same ports, same data
        stack.log("gateway")                                  # what it wrote so far

    Every process is ended with the test; one that ended by itself, or does not exit with 0, fails it.
    """
    stacks: list[Stack] = []

    def make(services: tuple[str, ...] = SERVICES, **overrides: Any) -> Stack:
        directory = tmp_path / f"stack{len(stacks)}"
        directory.mkdir()
        stack = Stack(directory, overrides)
        stacks.append(stack)
        stack.start_all(services)
        return stack

    yield make
    end_all(stacks)
