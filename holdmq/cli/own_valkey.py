"""The Valkey that ``holdmq up`` starts for the key-value engine when ``storage.kv.url`` names no server.

Its directory, for its owner only:

- ``url``: where it listens, with its password; `holdmq kv` takes it as ``storage.kv.url``
- ``valkey.conf``: written by each start of ``holdmq up``
- ``appendonlydir``: what it was told, written by Valkey before it answers
- ``lock``: held by the server, so that there is one

As a program (``python -m holdmq.cli.own_valkey DIR``) it takes the lock and becomes the server.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import socket
import sys
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdmq.cli.supervisor import LINE_MAX_BYTES, ServiceCommand
from holdmq.config.model import StorageSection
from holdmq.errors import ConfigError, StartupError
from holdmq.files.private_directory import make_private
from holdmq.files.private_file import read_private, write_private
from holdmq.service.memory import memory_limit
from holdmq.service.process import ENV_PARENT_PID, EXIT_FAILED, die_with_parent
from holdmq.service.valkey_program import server_program

NAME: Final = "valkey"
HOST: Final = "127.0.0.1"
URL_FILE: Final = "url"
CONF_FILE: Final = "valkey.conf"
LOCK_FILE: Final = "lock"

LOCK_WAIT_S: Final = 30.0
"""For a server that was left behind to end: it gets SIGTERM when its supervisor is gone, and then syncs."""
_LOOK_S: Final = 0.1
_URL_MAX_BYTES: Final = 1024
_PASSWORD_BYTES: Final = 32

_CONF: Final = """\
# Written by holdmq up at each start.
bind {host}
port {port}
protected-mode yes
requirepass {password}
dir ./
appendonly yes
appendfsync {appendfsync}
save ""
maxmemory {maxmemory}
maxmemory-policy noeviction
loglevel warning
logfile ""
"""


def own_url(directory: Path, taken: Collection[int]) -> str:
    """Return the address of the server in `directory`, the last one's while its port is free; blocking.

    `taken` are ports that others of this installation will listen on. Raises StartupError when the
    directory cannot be written, ConfigError when others can read the file.
    """
    path = directory / URL_FILE
    try:
        make_private(directory, CONF_FILE)
        if path.exists():
            url = read_private(path, "the address of holdmq up's Valkey", _URL_MAX_BYTES).decode().strip()
            port = urlsplit(url).port or 0
            if port not in taken and _is_free(port):
                return url
        url = f"redis://:{secrets.token_hex(_PASSWORD_BYTES)}@{HOST}:{_free_port(taken)}/"
        write_private(path, f"{url}\n".encode())
    except OSError as error:
        raise StartupError(
            f"the data directory {directory} cannot be written: {error.strerror}; "
            "give it to this user, or choose another with --data DIR"
        ) from error
    return url


def valkey_command(directory: Path, url: str, storage: StorageSection, stop_limit_s: float) -> ServiceCommand:
    """Write the server's configuration (blocking), and return how to run it."""
    server_program()
    parts = urlsplit(url)
    conf = _CONF.format(
        host=HOST,
        port=parts.port,
        password=parts.password,
        # As for the log engine: what a loss of power may take. A crash takes nothing either way.
        appendfsync="always" if storage.flush == "sync" else "everysec",
        # What is above is refused, and not killed by the kernel; a rewrite's copy has the other half.
        maxmemory=memory_limit(storage.memory_limit_bytes) // 2,
    )
    try:
        write_private(directory / CONF_FILE, conf.encode())
    except OSError as error:
        raise StartupError(f"{directory / CONF_FILE} cannot be written: {error.strerror}") from error
    argv = [sys.executable, "-P", "-m", "holdmq.cli.own_valkey", str(directory)]
    return ServiceCommand(NAME, argv, partial(ping, url), stop_limit_s)


async def ping(url: str) -> tuple[bool, str]:
    """Ask the server at `url` once whether it serves: not while it reads its file. Raises OSError."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(f"AUTH default {parts.password}\r\nPING\r\n".encode())
        if not (answer := await reader.readline()).startswith(b"-"):
            answer = await reader.readline()
    finally:
        writer.close()
    return answer.startswith(b"+PONG"), answer[:LINE_MAX_BYTES].decode(errors="replace").strip()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return port > 0


def _free_port(taken: Collection[int]) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port


def become_server(directory: Path) -> None:
    """Lock `directory` and replace this process with the server; returns never, raises StartupError."""
    program = server_program()
    parent = os.environ.get(ENV_PARENT_PID)
    if parent is not None:
        die_with_parent(int(parent))  # the kernel keeps this bond through exec
    try:
        lock = os.open(directory / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        _wait_for(lock, directory)
        os.set_inheritable(lock, True)  # held until the server has ended
        os.chdir(directory)
        os.execv(program, [str(program), f"./{CONF_FILE}"])  # noqa: S606 # no shell is wanted
    except OSError as error:
        raise StartupError(f"the Valkey in {directory} cannot be started: {error.strerror}") from error


def _wait_for(lock: int, directory: Path) -> None:
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise StartupError(
                    f"another Valkey has had {directory} for {LOCK_WAIT_S:g} s: "
                    f"`fuser {directory / LOCK_FILE}` names its process; stop it"
                ) from None
            time.sleep(_LOOK_S)
        else:
            return


if __name__ == "__main__":
    try:
        become_server(Path(sys.argv[1]))
    except (ConfigError, StartupError) as refused:
        sys.stderr.write(f"{refused}\n")
        sys.exit(EXIT_FAILED)
