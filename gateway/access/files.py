"""The files of access: read at the start, and again when they change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from gateway.access.core.acl import AclError, AclRules
from gateway.access.core.tenants import TenantFileError, UserTenants
from gateway.access.passwords import PasswordFile
from gateway.access.scram_file import ScramFile
from gateway.access.user_file import read_text
from gateway.ground.counters import Counters
from gateway.session.scram import Verifier
from holdmq.config.access import AccessSection
from holdmq.errors import ConfigError, HoldMQError
from holdmq.files.file_signature import Signature, changed, signature_of
from holdmq.service import telemetry

ACL_WHAT = "access.acl_file"
TENANTS_WHAT = "access.tenants_file"

log = telemetry.get_logger()

AccessFile = AclRules | PasswordFile | ScramFile | UserTenants


def read_acl(path: Path) -> AclRules:
    """Read a file of permissions (blocking). Raises ConfigError naming file and line."""
    try:
        return AclRules.parse(read_text(path, ACL_WHAT))
    except AclError as error:
        raise ConfigError(f"{path} ({ACL_WHAT}), {error}") from error


def read_tenants(path: Path) -> UserTenants:
    """Read a file of whose users are (blocking). Raises ConfigError naming file and line."""
    try:
        return UserTenants.parse(read_text(path, TENANTS_WHAT))
    except TenantFileError as error:
        raise ConfigError(f"{path} ({TENANTS_WHAT}), {error}") from error


def files_of(section: AccessSection) -> list[tuple[Path, Callable[[Path], AccessFile]]]:
    """The files that are configured, each with what reads it (blocking, raises ConfigError)."""
    kinds: list[tuple[str, Callable[[Path], AccessFile]]] = [
        (section.acl_file, read_acl),
        (section.tenants_file, read_tenants),
        (section.password_file, PasswordFile.read),
        (section.scram_file, ScramFile.read),
    ]
    return [(Path(name), read) for name, read in kinds if name]


class AccessFiles:
    """What the files say; None for one that is not configured. The constructor reads them (blocking).

    Raises ConfigError naming file, and line or user. `acl_version` rises each time that the ACL is read, or
    whose users are.
    """

    def __init__(self, section: AccessSection, counters: Counters, worker: int) -> None:
        self._section = section
        self._counters = counters
        self._worker = worker
        self._wake = asyncio.Event()
        self._files = files_of(section)
        self._seen: dict[Path, Signature] = {}
        self.acl: AclRules | None = None
        self.tenants: UserTenants | None = None
        self.passwords: PasswordFile | None = None
        self.scram: ScramFile | None = None
        self.acl_version = 0
        for path, read in self._files:
            self._seen[path] = signature_of((path,))
            self._set(read(path))

    def _set(self, file: AccessFile) -> None:
        if isinstance(file, AclRules):
            self.acl = file
            self.acl_version += 1
        elif isinstance(file, UserTenants):
            self.tenants = file
            self.acl_version += 1
        elif isinstance(file, PasswordFile):
            self.passwords = file
        else:
            self.scram = file
        if isinstance(file, PasswordFile | ScramFile) and file.warning and not self._worker:
            what = "access.password_file" if isinstance(file, PasswordFile) else "access.scram_file"
            log.warning("a file of users is not as it should be", file=what, reason=file.warning)

    def verifier_of(self, user: str) -> Verifier | None:
        """A user's SCRAM verifier, as the file has it now; None = there is no such user."""
        return None if self.scram is None else self.scram.verifier_of(user)

    def invented(self, user: str) -> Verifier:
        """What stands for a SCRAM user that there is not; the file must be configured."""
        assert self.scram is not None
        return self.scram.invented(user)

    def reload_soon(self) -> None:
        """Look at the files now (SIGHUP)."""
        self._wake.set()

    async def run(self) -> None:
        """Look at the files at intervals until cancelled; returns at once when there are none."""
        while self._files:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._section.reload_interval_s):
                    await self._wake.wait()
            self._wake.clear()
            for path, read in self._files:
                signature = await asyncio.to_thread(changed, (path,), self._seen[path])
                if signature is None:
                    continue
                self._seen[path] = signature
                try:
                    file = await asyncio.to_thread(read, path)
                except HoldMQError as error:
                    self._counters.access_reloads_failed_total += 1
                    log.error(
                        "a changed file of access is of no use; what was read before stays in force",
                        file=str(path), worker=self._worker, reason=str(error),
                    )  # fmt: skip
                else:
                    self._set(file)
                    if not self._worker:
                        log.info("a file of access was read again", file=str(path))
