"""etcd's members of a test's own, one or three, on free loopback ports; gone with the test.

The program is the one that `.ci/setup test` built. What makes faults is here, too: kill -9, SIGSTOP, emptied
and restored directories.
"""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from processes import free_port, wait_until

PROGRAM: Final = Path(__file__).parents[2] / "build/etcd/etcd"
ANSWER_S: Final = 10.0
START_S: Final = 30.0
HEARTBEAT_MS: Final = 50
ELECTION_MS: Final = 500
"""A leader that is silent for so long is replaced. Less would be elections whenever the machine is busy."""


class EtcdMember:
    """One member; it may be ended and started again and again, with the same ports and directory.

    `options` are flags of etcd, as `client_cert_auth="true"`; `scheme` is that of its clients' URL.
    """

    def __init__(self, directory: Path, name: str, scheme: str = "http", **options: str) -> None:
        self.name = name
        self.directory = directory
        self.url = f"{scheme}://127.0.0.1:{free_port()}"
        self.peer_url = f"http://127.0.0.1:{free_port()}"
        self._options = {f"--{key.replace('_', '-')}": value for key, value in options.items()}
        self._cluster = f"{name}={self.peer_url}"
        self._process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        self.tls: ssl.SSLContext | None = None
        """How `ask` speaks to it; None without TLS."""

    def __repr__(self) -> str:
        return f"etcd {self.name} at {self.url}"

    @property
    def data(self) -> Path:
        """Where it keeps all that it has."""
        return self.directory / "data"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def join(self, members: list[EtcdMember]) -> None:
        """Say which members a new cluster has, before the first start."""
        self._cluster = ",".join(f"{member.name}={member.peer_url}" for member in members)

    def start(self) -> None:
        """Start it with what its directory has."""
        assert self._process is None, f"{self} runs"
        assert PROGRAM.exists(), f"there is no {PROGRAM}: make setup builds it, with Go 1.26 or newer"
        self.directory.mkdir(parents=True, exist_ok=True)
        flags = {
            "--name": self.name,
            "--data-dir": str(self.data),
            "--listen-client-urls": self.url,
            "--advertise-client-urls": self.url,
            "--listen-peer-urls": self.peer_url,
            "--initial-advertise-peer-urls": self.peer_url,
            "--initial-cluster": self._cluster,
            "--initial-cluster-token": str(self.directory.parent),
            "--heartbeat-interval": str(HEARTBEAT_MS),
            "--election-timeout": str(ELECTION_MS),
            "--logger": "zap",
            "--log-level": "warn",
            # What a crash of the machine would take is not what these tests are about; disks are shared here.
            "--unsafe-no-fsync": "true",
            **self._options,
        }
        words = [f"{flag}={value}" for flag, value in flags.items()]
        with (self.directory / "log").open("ab") as log:
            # Whoever kills the tests has no member left over.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(PROGRAM), *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
            )  # fmt: skip

    def kill(self) -> None:
        """kill -9."""
        process = self._process
        assert process is not None, f"{self} does not run"
        process.kill()
        process.wait(ANSWER_S)
        self._process, self.is_paused = None, False

    def stop(self) -> None:
        """End it in order."""
        process = self._process
        assert process is not None, f"{self} does not run"
        process.terminate()
        try:
            process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"{self} did not end within {ANSWER_S} s:\n{self.log()}")
        self._process, self.is_paused = None, False

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
            self.kill()

    def wipe(self) -> None:
        """Empty its directory; it does not run."""
        assert self._process is None, f"{self} runs"
        shutil.rmtree(self.data)

    def keep(self) -> None:
        """Copy its directory, as a backup of the disk; it does not run."""
        assert self._process is None, f"{self} runs"
        shutil.rmtree(self.directory / "kept", ignore_errors=True)
        shutil.copytree(self.data, self.directory / "kept")

    def restore(self) -> None:
        """Put the copy of `keep` back; it does not run."""
        self.wipe()
        shutil.copytree(self.directory / "kept", self.data)

    def log(self) -> str:
        """All that it wrote."""
        return (self.directory / "log").read_text(errors="replace")

    def ask(self, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
        """One call of its gateway. Raises httpx.HTTPError."""
        headers = {"Authorization": token} if token else {}
        answer = httpx.post(
            f"{self.url}{path}", json=body, headers=headers, timeout=ANSWER_S, verify=self.tls or True
        )
        answer.raise_for_status()
        fields: dict[str, Any] = answer.json()
        return fields

    def is_ready(self) -> bool:
        """Whether it answers a linearizable read, so that there is a leader."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self} ended:\n{self.log()}"
        try:
            self.ask("/v3/kv/range", {"key": "AA=="})
        except httpx.HTTPStatusError as error:
            # With users it wants to know who asks; it is there then.
            return error.response.status_code in (400, 401, 403)
        except httpx.TransportError:
            return False
        return True

    def is_leader(self) -> bool:
        """Whether it says that it leads."""
        try:
            status = self.ask("/v3/maintenance/status", {})
        except httpx.HTTPError:
            return False
        return status.get("leader") == status["header"]["member_id"]


class EtcdCluster:
    """Members that were started together."""

    def __init__(self, members: list[EtcdMember]) -> None:
        self.members = members

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    def wait_ready(self) -> None:
        """Wait until all members that run answer; fails with their logs."""
        for member in self.members:
            if member.is_running and not member.is_paused:
                wait_until(member.is_ready, f"{member} answers", START_S)

    def leader(self) -> EtcdMember:
        """Who leads now: waits for an election."""
        found: list[EtcdMember] = []

        def is_found() -> bool:
            found[:] = [
                member
                for member in self.members
                if member.is_running and not member.is_paused and member.is_leader()
            ]
            return len(found) == 1

        wait_until(is_found, "a member leads", START_S)
        return found[0]

    def followers(self) -> list[EtcdMember]:
        """All others that there are."""
        leader = self.leader()
        return [member for member in self.members if member is not leader]


@contextmanager
def etcd_cluster(
    directory: Path,
    members: int,
    scheme: str = "http",
    tls: ssl.SSLContext | None = None,
    **options: str,
) -> Iterator[EtcdCluster]:
    """A cluster that answers; ended with the context."""
    cluster = EtcdCluster(
        [EtcdMember(directory / f"m{i}", f"m{i}", scheme, **options) for i in range(members)]
    )
    try:
        for member in cluster.members:
            member.tls = tls
            member.join(cluster.members)
            member.start()
        cluster.wait_ready()
        yield cluster
    finally:
        for member in cluster.members:
            member.end()
