"""HoldMQ's services as real processes on free loopback ports, in a directory of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
SERVICES: Final = ("registry", "broker", "gateway")


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Poll `holds`; AssertionError naming `what` when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


class Processes:
    """Registry, broker, gateway (and by name stats and console), each started, killed and restarted by name.

    `settings` are `--set` pairs for all of them. Each process's log is `<name>.log` in `directory`.
    """

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        names = (*SERVICES, "stats", "console")
        self.ports = {name: free_port() for name in names}
        self.admin_ports = {name: free_port() for name in names}
        self.settings: dict[str, object] = {
            "storage.data_dir": directory / "store",
            "stats.data_dir": directory / "stats",
            "client.registries": f'["127.0.0.1:{self.ports["registry"]}"]',
            "log.format": "json",
            **{f"{name}.admin_port": port for name, port in self.admin_ports.items()},
            **{f"{name}.port": port for name, port in self.ports.items() if name != "stats"},
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, name: str) -> list[str]:
        """The command line of a service."""
        pairs = [part for key, value in self.settings.items() for part in ("--set", f"{key}={value}")]
        return [sys.executable, "-m", "holdmq.cli", name, *pairs]

    def start(self, *names: str, prefix: tuple[str, ...] = ()) -> None:
        """Start services in order, each when the one before is ready. `prefix` runs them under a tool."""
        for name in names or SERVICES:
            with (self.directory / f"{name}.log").open("ab") as log:
                self.running[name] = subprocess.Popen(
                    [*prefix, *self.command(name)],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        """Wait for /readyz."""

        def ready() -> bool:
            code = self.running[name].poll()
            assert code is None, f"{name} ended with {code}:\n{self.log(name)[-4000:]}"
            return self.get(name, "/readyz")[0] == 200

        wait_until(ready, f"{name} ready")

    def get(self, name: str, path: str) -> tuple[int, str]:
        """(status, text) of an admin page; status 0 when nobody answers."""
        url = f"http://127.0.0.1:{self.admin_ports[name]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, service: str, name: str) -> float:
        """The sum over all labels of a metric."""
        total = 0.0
        for line in self.get(service, "/metrics")[1].splitlines():
            if line.startswith((name + " ", name + "{")):
                total += float(line.rpartition(" ")[2])
        return total

    def log(self, name: str) -> str:
        """What a service has logged."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """kill -9, and wait for the end."""
        process = self.running.pop(name)
        process.kill()
        process.wait(STOP_TIMEOUT_S)

    def stop(self, name: str) -> int:
        """SIGTERM; the exit code."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self.running)):
            process = self.running[name]
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
