"""A server of somebody else's that ``holdmq up`` brings: a free port, one at a time in its directory, and
gone with whoever started it.

What becomes the server holds its directory's `lock` and the kernel's promise of a SIGTERM when its parent
ends; both are kept through exec.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from holdmq.errors import StartupError
from holdmq.service.process import ENV_PARENT_PID, die_with_parent

HOST: Final = "127.0.0.1"
LOCK_FILE: Final = "lock"

LOCK_WAIT_S: Final = 30.0
"""For a server that was left behind to end: it gets SIGTERM when its supervisor is gone, and then syncs."""
_LOOK_S: Final = 0.1


def is_free(port: int) -> bool:
    """Whether nobody listens on `port` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return port > 0


def free_port(taken: Collection[int]) -> int:
    """Return a port that nobody listens on, and none of `taken`."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port


def become(directory: Path, name: str, program: Path, arguments: Sequence[str]) -> None:
    """Lock `directory` and replace this process with `program`; returns never, raises StartupError.

    `name` is the server's, for people.
    """
    parent = os.environ.get(ENV_PARENT_PID)
    if parent is not None:
        die_with_parent(int(parent))  # the kernel keeps this bond through exec
    try:
        lock = os.open(directory / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        _wait_for(lock, directory, name)
        os.set_inheritable(lock, True)  # held until the server has ended
        os.chdir(directory)
        os.execv(program, [str(program), *arguments])  # noqa: S606 # no shell is wanted
    except OSError as error:
        raise StartupError(f"the {name} in {directory} cannot be started: {error.strerror}") from error


def _wait_for(lock: int, directory: Path, name: str) -> None:
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise StartupError(
                    f"another {name} has had {directory} for {LOCK_WAIT_S:g} s: "
                    f"`fuser {directory / LOCK_FILE}` names its process; stop it"
                ) from None
            time.sleep(_LOOK_S)
        else:
            return
