"""Files put in place as a whole; secret ones are for their owner alone, and refused if others can read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdmq.errors import ConfigError
from holdmq.files.disk import RealDisk, create_anew

LOCK_WAIT_S: Final = 30.0
"""How long who writes a file waits for who writes it already: one replaces it in milliseconds."""
_LOOK_S: Final = 0.02


def open_to_others(mode: int, owner: int) -> bool:
    """Whether somebody but the owner of a file may read or change it, by its mode and its owner's number.

    The group may read what is root's: so Kubernetes gives secrets to a pod (root, fsGroup, 0440), and an
    administrator one key to a service (0640), as PostgreSQL has it. Another owner's group is nobody's choice.
    """
    allowed = stat.S_IRWXU | (stat.S_IRGRP if owner == 0 else 0)
    return bool(stat.S_IMODE(mode) & (stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO) & ~allowed)


def refuse_if_open_to_others(path: Path, what: str) -> None:
    """Raise ConfigError, which says what to do, when others can read a secret file, or change it."""
    try:
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be read: {os.strerror(error.errno or 0)}") from error
    _refuse(status, path, what)


def read_private(path: Path, what: str, max_bytes: int) -> bytes:
    """Read a secret file of at most `max_bytes` (blocking). ConfigError when others can read it as well.

    What is looked at is what is read: a file put in its place meanwhile is another one.
    """
    try:
        with path.open("rb") as file:
            _refuse(os.fstat(file.fileno()), path, what)
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be read: {os.strerror(error.errno or 0)}") from error
    if len(raw) > max_bytes:
        raise ConfigError(f"{what}: {path} has more than {max_bytes} bytes")
    return raw


def _refuse(status: os.stat_result, path: Path, what: str) -> None:
    # A device or a pipe (/dev/stdin, a shell's <(…)) has no mode that says who can read what comes out of it.
    if not stat.S_ISREG(status.st_mode) or not open_to_others(status.st_mode, status.st_uid):
        return
    mode = stat.S_IMODE(status.st_mode)
    hint = f"chmod 600 {path}"
    if not open_to_others(mode, 0):
        hint += f", or chown root {path}: what is root's may be read by its group"
    raise ConfigError(f"{what}: {path} has mode {mode:04o}, so that others can read or change it; {hint}")


def write_private(path: Path, content: bytes) -> None:
    """Put `content` in place of the file, which only its owner can read; whole or not at all, and durable.

    A file that was there keeps its owner and group, as far as who writes may give it to them; one of root's
    keeps that its group may read it. What a link points to is replaced, and not the link. OSError.
    """
    path = Path(os.path.realpath(path))
    _replace(path, content, 0o600, takes_over=True)


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Put `content` in place of the file, with `mode` but for the umask; whole or not at all. OSError."""
    _replace(path, content, mode, takes_over=False)


def _replace(path: Path, content: bytes, mode: int, *, takes_over: bool) -> None:
    # A name that nobody can guess, and never what is there already: else a link laid out in a directory that
    # others can write would get the secrets.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = create_anew(draft, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if takes_over:
                _take_over(path, file.fileno())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot; the file itself is written
        RealDisk().sync_directory(path.parent)


def _take_over(path: Path, descriptor: int) -> None:
    """Give a draft the owner of the file that it replaces: who reads it must be able to go on."""
    try:
        before = path.stat()
    except OSError:
        return
    with contextlib.suppress(OSError):  # it stays who writes it, and 0600, where that may not be given away
        os.fchown(descriptor, before.st_uid, before.st_gid)
        if before.st_mode & stat.S_IRGRP and not open_to_others(before.st_mode, before.st_uid):
            os.fchmod(descriptor, 0o640)


@contextlib.contextmanager
def locked(path: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Be the only one who reads, changes and replaces the file; it is made if it is not there (blocking).

    The lock is the file's own, which nobody can take who cannot read it, and ends with the process. Raises
    TimeoutError when another one keeps it for longer than `wait_s`, and other OSErrors.
    """
    path = Path(os.path.realpath(path))
    until = time.monotonic() + wait_s
    while True:
        descriptor = _open_to_lock(path)
        try:
            while not _try_lock(descriptor):
                if time.monotonic() >= until:
                    raise TimeoutError(0, f"another process has been writing it for {wait_s:g} s")
                time.sleep(_LOOK_S)
            if not _is_in_place(path, descriptor):
                continue  # it was replaced while we waited: what is locked is nobody's file any more
            yield
            return
        finally:
            os.close(descriptor)


def _open_to_lock(path: Path) -> int:
    flags = os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_RDWR, 0o600)
    except PermissionError:
        return os.open(path, flags | os.O_RDONLY, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_in_place(path: Path, descriptor: int) -> bool:
    mine = os.fstat(descriptor)
    try:
        there = path.stat()
    except OSError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
