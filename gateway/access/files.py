"""The files of access: read at the start, and again when they change."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from gateway.access.passwords import PasswordFile
from gateway.access.scram_file import ScramFile
from gateway.access.user_file import read_text
from gateway.core.acl import AclError, AclRules
from gateway.core.counters import Counters
from holdmq import telemetry
from holdmq.config_access import AccessSection
from holdmq.errors import ConfigError, HoldMQError

ACL_WHAT = "access.acl_file"

log = telemetry.get_logger()

Signature = tuple[int, int, int]


def read_acl(path: Path) -> AclRules:
    """Read a file of permissions (blocking). Raises ConfigError naming file and line."""
    try:
        return AclRules.parse(read_text(path, ACL_WHAT))
    except AclError as error:
        raise ConfigError(f"{path} ({ACL_WHAT}), {error}") from error


class AccessFiles:
    """What the files say; None for one that is not configured. The constructor reads them (blocking).

    Raises ConfigError naming file, and line or user. `changes` rises with each that was read again.
    """

    def __init__(self, section: AccessSection, counters: Counters, worker: int) -> None:
        self._section = section
        self._counters = counters
        self._worker = worker
        self._wake = asyncio.Event()
        self._seen: dict[str, Signature] = {}
        self.acl: AclRules | None = None
        self.passwords: PasswordFile | None = None
        self.scram: ScramFile | None = None
        self.acl_version = 0
        for kind, path in self._paths():
            self._seen[kind] = _signature(path)
            self._set(kind, _read(kind, path))

    def _paths(self) -> list[tuple[str, Path]]:
        section = self._section
        named = {
            "acl": section.acl_file,
            "passwords": section.password_file,
            "scram": section.scram_file,
        }
        return [(kind, Path(name)) for kind, name in named.items() if name]

    def _set(self, kind: str, read: object) -> None:
        if isinstance(read, AclRules):
            self.acl = read
            self.acl_version += 1
        elif isinstance(read, PasswordFile):
            self.passwords = read
        elif isinstance(read, ScramFile):
            self.scram = read

    def reload_soon(self) -> None:
        """Look at the files now (SIGHUP)."""
        self._wake.set()

    async def run(self) -> None:
        """Look at the files at intervals until cancelled; returns at once when there are none."""
        loop = asyncio.get_running_loop()
        paths = self._paths()
        while paths:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._section.reload_interval_s):
                    await self._wake.wait()
            self._wake.clear()
            for kind, path in paths:
                signature = await loop.run_in_executor(None, _signature, path)
                if signature == self._seen.get(kind):
                    continue
                self._seen[kind] = signature
                try:
                    read = await loop.run_in_executor(None, _read, kind, path)
                except HoldMQError as error:
                    self._counters.access_reloads_failed_total += 1
                    log.error(
                        "a changed file of access is of no use; what was read before stays in force",
                        file=str(path), worker=self._worker, reason=str(error),
                    )  # fmt: skip
                else:
                    self._set(kind, read)
                    if not self._worker:
                        log.info("a file of access was read again", file=str(path))


def _read(kind: str, path: Path) -> object:
    if kind == "acl":
        return read_acl(path)
    return PasswordFile.read(path) if kind == "passwords" else ScramFile.read(path)


def _signature(path: Path) -> Signature:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_mtime_ns, status.st_size, status.st_ino
