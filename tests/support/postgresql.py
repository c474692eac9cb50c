"""A PostgreSQL server of a test's own: Debian's package on a free loopback port, gone with the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from processes import free_port, wait_until

USER = "holdmq"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "20",
    "autovacuum": "off",
}


class Postgresql:
    """One server; `start` and `stop` may be called again and again."""

    def __init__(self, directory: Path) -> None:
        """Make its data directory. PostgreSQL refuses to run as root, so then it is its package's user."""
        self.port = free_port()
        self._directory = directory
        self._data = directory / "data"
        self._account: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            self._account = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(directory, "postgres", "postgres")
        made = subprocess.run(
            [_tool("initdb"), "-D", self._data, "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8"],
            capture_output=True,
            text=True,
            check=False,
            cwd=directory,
            **self._account,
        )
        assert made.returncode == 0, made.stderr

    def url(self, database: str = "postgres") -> str:
        """The address of a database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self, name: str) -> str:
        """Make an empty database and return its address."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url(name)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = SETTINGS | {"port": str(self.port), "unix_socket_directories": str(self._directory)}
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_tool("postgres"), "-D", self._data, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                **self._account,
            )
        wait_until(self._answers, "PostgreSQL answers")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT in order, SIGQUIT as a crash does."""
        assert self._process is not None, "start comes first"
        self._process.send_signal(number)
        self._process.wait(40)
        self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        try:
            psycopg.connect(self.url(), connect_timeout=20).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running_postgresql() -> Iterator[Postgresql]:
    """A server that is ended, and forgotten, with the block."""
    # Below /tmp: what pytest makes for this user the server's user may not enter.
    with tempfile.TemporaryDirectory(prefix="holdmq-postgresql-") as directory:
        server = Postgresql(Path(directory))
        server.start()
        try:
            yield server
        finally:
            if server._process is not None:
                # Nobody needs what it would write down first.
                server.stop(signal.SIGQUIT)


def _tool(name: str) -> Path:
    """A program of the newest PostgreSQL; Debian keeps them out of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    assert found, "PostgreSQL is not installed: .ci/setup test"
    return found[-1]
