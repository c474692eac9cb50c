"""The etcd that ``holdmq up --replicas`` starts when ``coordination.etcd.urls`` names none.

One member, on this machine's loopback address, that takes nobody without a certificate by its own authority.
Its directory, for its owner only:

- ``urls``: where it listens for clients, and for the members that it does not have
- ``etcd.json``: written by each start of ``holdmq up``
- ``certs``: the authority, and what it signed for etcd and for the replicas
- ``data``: what it was told, written by etcd before it answers
- ``lock``: held by etcd, so that there is one

As a program (``python -m holdmq.cli.own_etcd DIR PROGRAM``) it takes the lock and becomes the server.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import holdmq
from holdmq.cli.own_server import HOST, become, free_port, is_free
from holdmq.cli.supervisor import LINE_MAX_BYTES, ServiceCommand
from holdmq.errors import StartupError
from holdmq.files.private_directory import make_private
from holdmq.files.private_file import read_private, write_private
from holdmq.service.process import EXIT_FAILED

NAME: Final = "etcd"
CONF_FILE: Final = "etcd.json"
URLS_FILE: Final = "urls"
OLDEST: Final = (3, 5, 6)
"""What ``coordination.kind`` needs: older ones may lose what they answered."""

CHECKOUT_PROGRAM: Final = Path(holdmq.__file__).parents[1] / "build" / "etcd" / "etcd"
"""Where ``make test`` builds it in a checkout of the sources."""

_URLS_MAX_BYTES: Final = 1024
_VERSION: Final = re.compile(r"etcd Version: (\d+)\.(\d+)\.(\d+)")
_VERSION_S: Final = 10.0
_CERTIFICATE_DAYS: Final = 3650
"""As long as the authority's: each start makes new ones, and nobody else has the authority's key."""
_MEMBER: Final = "own"
_COMPACTED_AFTER: Final = "1h"
"""The state is written each few seconds, and nobody reads what it was before."""


class OwnEtcd(NamedTuple):
    """Where it listens, and where the certificates are."""

    url: str
    peer_url: str
    certs: Path

    def settings(self) -> list[str]:
        """What replicas are told, to reach it."""
        return [
            f"coordination.etcd.urls={self.url}",
            f"coordination.etcd.tls_ca={self.certs / 'ca.pem'}",
            f"coordination.etcd.tls_cert={self.certs / 'replica.pem'}",
            f"coordination.etcd.tls_key={self.certs / 'replica-key.pem'}",
        ]


def etcd_program(given: Path | None) -> Path:
    """Return an etcd that is new enough: `given`, or of PATH, or built in a checkout; blocking.

    Raises StartupError, which says how to get one.
    """
    refused = []
    for program in _candidates(given):
        version = _version_of(program)
        if version is not None and version >= OLDEST:
            return program
        what = "is no etcd that runs" if version is None else f"is {'.'.join(map(str, version))}"
        refused.append(f"{program} {what}")
    raise StartupError(
        f"holdmq up --replicas needs an etcd of {'.'.join(map(str, OLDEST))} or newer "
        f"({'; '.join(refused) or 'none was found'}): install one (etcd-server of Debian 13 is new enough; "
        "in a checkout with Go, .ci/setup test builds one), name it with --etcd PATH, or name one that runs: "
        "--set coordination.etcd.urls=URL"
    )


def _candidates(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given.absolute()
        return
    found = shutil.which("etcd")
    if found is not None:
        yield Path(found).absolute()
    if CHECKOUT_PROGRAM.is_file():
        yield CHECKOUT_PROGRAM


def _version_of(program: Path) -> tuple[int, ...] | None:
    try:
        done = subprocess.run(  # noqa: S603 # what whoever starts this names
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stdout)
    return None if found is None else tuple(map(int, found.groups()))


def own_etcd(directory: Path, taken: Collection[int]) -> OwnEtcd:
    """Return where the etcd of `directory` is, at the last one's ports while they are free; blocking.

    Makes its certificates. `taken` are ports that others of this installation will listen on. Raises
    StartupError when the directory cannot be written, ConfigError when others can read its file.
    """
    try:
        make_private(directory, CONF_FILE)
        urls = _kept_urls(directory / URLS_FILE, taken)
        if urls is None:
            first = free_port(taken)
            urls = tuple(f"https://{HOST}:{port}" for port in (first, free_port({*taken, first})))
            write_private(directory / URLS_FILE, f"{urls[0]}\n{urls[1]}\n".encode())
        certs = (directory / "certs").absolute()
        _certify(certs)
    except OSError as error:
        raise StartupError(
            f"the data directory {directory} cannot be written: {error.strerror}; "
            "give it to this user, or choose another with --data DIR"
        ) from error
    return OwnEtcd(urls[0], urls[1], certs)


def _kept_urls(path: Path, taken: Collection[int]) -> tuple[str, ...] | None:
    """The URLs of the last start, if its ports are free."""
    if not path.exists():
        return None
    urls = tuple(read_private(path, "the address of holdmq up's etcd", _URLS_MAX_BYTES).decode().split())
    ports = {urlsplit(url).port or 0 for url in urls}
    return urls if len(ports) == 2 and not ports & {*taken} and all(map(is_free, ports)) else None


def _certify(certs: Path) -> None:
    try:
        from holdmq.credentials import certificates
    except ModuleNotFoundError as error:
        raise StartupError(
            f"holdmq up --replicas needs the package {error.name} for its etcd; install it: "
            "pip install 'holdmq[etcd,tls]', or name an etcd of yours: --set coordination.etcd.urls=URL"
        ) from error
    certs.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (certs / "ca-key.pem").exists() or not (certs / "ca.pem").exists():
        (certs / "ca.pem").unlink(missing_ok=True)
        (certs / "ca-key.pem").unlink(missing_ok=True)
        certificates.make_authority(certs)
    lifetime = dt.timedelta(days=_CERTIFICATE_DAYS)
    certificates.issue(certs, "etcd", [HOST], lifetime)
    certificates.issue(certs, "replica", (), lifetime)


def etcd_command(directory: Path, own: OwnEtcd, program: Path, stop_limit_s: float) -> ServiceCommand:
    """Write etcd's configuration (blocking), and return how to run it."""
    security = {
        "cert-file": str(own.certs / "etcd.pem"),
        "key-file": str(own.certs / "etcd-key.pem"),
        "trusted-ca-file": str(own.certs / "ca.pem"),
        "client-cert-auth": True,
    }
    conf = {
        "name": _MEMBER,
        "data-dir": "data",
        "listen-client-urls": own.url,
        "advertise-client-urls": own.url,
        "listen-peer-urls": own.peer_url,
        "initial-advertise-peer-urls": own.peer_url,
        "initial-cluster": f"{_MEMBER}={own.peer_url}",
        "client-transport-security": security,
        "peer-transport-security": security,
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": _COMPACTED_AFTER,
        "logger": "zap",
        # Why it does not start. Its errors are three at each stop in good order, with their stacks.
        "log-level": "fatal",
    }
    try:
        write_private(directory / CONF_FILE, json.dumps(conf, indent=1).encode())
    except OSError as error:
        raise StartupError(f"{directory / CONF_FILE} cannot be written: {error.strerror}") from error
    tls = ssl.create_default_context(cafile=str(own.certs / "ca.pem"))
    tls.load_cert_chain(own.certs / "replica.pem", own.certs / "replica-key.pem")
    argv = [sys.executable, "-P", "-m", "holdmq.cli.own_etcd", str(directory), str(program)]
    return ServiceCommand(NAME, argv, partial(ask_health, own.url, tls), stop_limit_s)


async def ask_health(url: str, tls: ssl.SSLContext) -> tuple[bool, str]:
    """Ask the etcd at `url` once whether it takes writes. Raises OSError."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
    try:
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        answer = await reader.read(LINE_MAX_BYTES)
        while more := await reader.read(LINE_MAX_BYTES):
            answer += more
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return b" 200 " in head.split(b"\r\n", 1)[0], body.decode(errors="replace").strip()


def become_etcd(directory: Path, program: Path) -> None:
    """Lock `directory` and replace this process with `program`; returns never, raises StartupError."""
    for name in [name for name in os.environ if name.startswith("ETCD_")]:
        del os.environ[name]  # of another etcd of whoever runs this
    become(directory, "etcd", program, ["--config-file", f"./{CONF_FILE}"])


if __name__ == "__main__":
    try:
        become_etcd(Path(sys.argv[1]), Path(sys.argv[2]))
    except StartupError as refused:
        sys.stderr.write(f"{refused}\n")
        sys.exit(EXIT_FAILED)
