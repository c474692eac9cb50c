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
import secrets
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdmq.cli.own_server import HOST, become, free_port, is_free
from holdmq.cli.supervisor import LINE_MAX_BYTES, ServiceCommand
from holdmq.config.model import StorageSection
from holdmq.errors import ConfigError, StartupError
from holdmq.files.private_directory import make_private
from holdmq.files.private_file import read_private, write_private
from holdmq.service.memory import memory_limit
from holdmq.service.process import EXIT_FAILED
from holdmq.service.valkey_program import server_program

NAME: Final = "valkey"
URL_FILE: Final = "url"
CONF_FILE: Final = "valkey.conf"

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
            if port not in taken and is_free(port):
                return url
        url = f"redis://:{secrets.token_hex(_PASSWORD_BYTES)}@{HOST}:{free_port(taken)}/"
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


def become_server(directory: Path) -> None:
    """Lock `directory` and replace this process with the server; returns never, raises StartupError."""
    become(directory, "Valkey", server_program(), [f"./{CONF_FILE}"])


if __name__ == "__main__":
    try:
        become_server(Path(sys.argv[1]))
    except (ConfigError, StartupError) as refused:
        sys.stderr.write(f"{refused}\n")
        sys.exit(EXIT_FAILED)
