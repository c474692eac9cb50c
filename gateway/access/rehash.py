"""Makes weak hashes of the password file anew, when their users show that they know the password.

::

    right password, weak hash ──offer()──► waiting ──every REHASH_INTERVAL_S, on a thread──► hashes, one file

The file is somebody else's as well: `holdmq passwd`, other workers and gateways write it. So it is read again
under their lock, and only lines that still have the old hash are changed; many at once, as each change has
every worker read the file again.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from argon2.exceptions import Argon2Error

from gateway.access.passwords import WHAT, is_weaker
from gateway.access.user_file import replace_secrets
from gateway.ground.counters import Counters
from holdmq.credentials.password_hash import hash_password
from holdmq.errors import ConfigError
from holdmq.service import telemetry

REHASH_INTERVAL_S: Final = 30.0
"""How often a worker replaces the file at most; so long the passwords of who waits are kept in memory."""
WAITING_MAX: Final = 128
"""Users that wait: at 40 ms each a sixth of a core for as long as there are any. Who finds no place is taken
when he comes again."""
TRIED_MAX: Final = 100_000
"""Users of whom a worker remembers that it was tried, 0.1 KiB each; past it nothing more is made anew."""

log = telemetry.get_logger()


class _Offer(NamedTuple):
    """A password that is right, and the hash that says so."""

    user: str
    hash_text: str
    password: bytes


class Rehash:
    """The weak hashes of one worker's users. Once per user, whether it succeeds or not."""

    def __init__(self, path: Path, counters: Counters, interval_s: float) -> None:
        self._path = path
        self._counters = counters
        self._interval_s = interval_s
        self._waiting: list[_Offer] = []
        self._tried: set[str] = set()
        self._wake = asyncio.Event()
        self._is_closed = False
        self._has_said = False

    def offer(self, user: str, hash_text: str, password: bytes) -> None:
        """Take a password that was right, to make its hash anew if that is weak; a look into a set else."""
        if user in self._tried or not is_weaker(hash_text):
            return
        if len(self._waiting) >= WAITING_MAX or len(self._tried) >= TRIED_MAX:
            self._counters.access_rehashes_left_total += 1
            return
        self._tried.add(user)
        self._waiting.append(_Offer(user, hash_text, password))
        self._wake.set()

    async def run(self) -> None:
        """Replace the file at intervals when there is something to change, until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._interval_s)
            self._wake.clear()
            offers, self._waiting = self._waiting, []
            made = await asyncio.to_thread(self._write, offers)
            self._counters.access_rehashed_total += made
            self._counters.access_rehashes_left_total += len(offers) - made

    def close(self) -> None:
        """Begin no hash any more; what waits is lost, and made at a later login."""
        self._is_closed = True
        self._waiting.clear()

    def _write(self, offers: list[_Offer]) -> int:
        """Hash and write (blocking); how many lines were changed."""
        reason = why_not_written(self._path)
        changes: dict[str, tuple[str, str]] = {}
        for offer in offers:
            if reason or self._is_closed:
                break
            try:
                changes[offer.user] = (offer.hash_text, hash_password(offer.password))
            except (Argon2Error, MemoryError) as error:
                reason = f"no hash can be made: {error}"
        made = 0
        if changes:
            try:
                made = replace_secrets(self._path, changes, WHAT)
            except (ConfigError, OSError) as error:
                reason = str(error)
        if reason and not self._has_said:
            log.warning(
                "weak hashes of the password file stay; if this is meant, say so with access.rehash = false",
                file=str(self._path), reason=reason,
            )  # fmt: skip
        self._has_said = bool(reason)
        return made


def why_not_written(path: Path) -> str:
    """Why a gateway leaves this file alone (blocking); "" = it may replace it.

    What is not its own it does not make its own, whatever the directory would allow.
    """
    path = Path(os.path.realpath(path))
    try:
        status = path.stat()
    except OSError as error:
        return error.strerror or str(error)
    if os.geteuid() not in (0, status.st_uid):
        return "the file is another user's"
    if not status.st_mode & stat.S_IWUSR:
        return "its mode is that of a file that nobody writes"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"the directory {path.parent} cannot be written"
    return ""
