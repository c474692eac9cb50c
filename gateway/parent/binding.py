"""The gateway's listening sockets: made by the parent, inherited by the workers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.ground.limits import LISTEN_BACKLOG
from holdmq.config.listeners import DEFAULT_LISTENER, ListenerSettings
from holdmq.errors import StartupError
from holdmq.service.process import listen_error

PROBE_AFTER_S: Final = 600
"""Silence after which the kernel asks whether a client is there: rarely enough for devices on batteries."""
PROBE_EVERY_S: Final = 60
PROBES_MAX: Final = 5
"""Probes without an answer, then the connection is over: 15 minutes after its last byte."""


class BoundListener:
    """The listening sockets of one listener.

    TCP: one per worker on one port (SO_REUSEPORT): the kernel spreads connections over them, and what it
    holds for a worker that crashed waits for its successor. A UNIX socket: one, which all workers share.
    """

    def __init__(self, settings: ListenerSettings, sockets: list[socket.socket]) -> None:
        self.settings = settings
        self._sockets = sockets
        self._file = _identity(settings.path) if settings.kind == "unix" else None

    @property
    def where(self) -> str:
        """The address or path that clients connect to."""
        if self.settings.kind == "unix":
            return self.settings.path
        host, port = self._sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def of_worker(self, index: int) -> socket.socket:
        """The socket of one worker."""
        return self._sockets[index % len(self._sockets)]

    def keep_only(self, index: int) -> socket.socket:
        """In a worker: close the other workers' sockets and return its own."""
        own = self.of_worker(index)
        for other in self._sockets:
            if other is not own:
                other.close()
        return own

    def close(self) -> None:
        """In the parent: stop listening; a UNIX socket's file goes, if it is still ours."""
        for listening in self._sockets:
            listening.close()
        if self._file is not None and _identity(self.settings.path) == self._file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.settings.path)
        self._file = None


def bind(settings: ListenerSettings, workers: int) -> BoundListener:
    """Listen; StartupError naming listener, place and what to do."""
    if settings.kind == "unix":
        return BoundListener(settings, [_bind_unix(settings)])
    return BoundListener(settings, _bind_tcp(settings, workers))


# TCP


def _bind_tcp(settings: ListenerSettings, workers: int) -> list[socket.socket]:
    bind_to, port = settings.bind, settings.port
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            bind_to, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartupError(f"{bind_to} ({_key(settings, 'bind')}) is no address: {error}") from error
    sockets: list[socket.socket] = []
    try:
        if port:
            # With SO_REUSEPORT a second gateway would silently share the port.
            with socket.socket(family, kind, proto) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        for _ in range(workers):
            listening = socket.socket(family, kind, proto)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _probe_silent(listening)
            listening.bind(address)
            # With port 0 the first one chooses for all.
            address = listening.getsockname()
            listening.listen(LISTEN_BACKLOG)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise _tcp_error(error, settings) from error
    return sockets


def _probe_silent(listening: socket.socket) -> None:
    """Have the kernel notice clients that are gone: what it accepts inherits it (tcp(7)).

    MQTT 3 clients may have no keep alive, and nobody can make them have one.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX)


def _key(settings: ListenerSettings, key: str) -> str:
    if settings.name == DEFAULT_LISTENER:
        return f"gateway.{key}"
    return f"{key} of the listener {settings.name!r}"


def _tcp_error(error: OSError, settings: ListenerSettings) -> StartupError:
    if settings.name == DEFAULT_LISTENER:
        return listen_error(error, "gateway.port", settings.bind, settings.port or 0)
    what = f"the listener {settings.name!r} cannot listen at {settings.where}"
    if error.errno == errno.EADDRINUSE:
        return StartupError(f"{what}: the port is in use by another process; stop it, or choose another port")
    if error.errno == errno.EADDRNOTAVAIL:
        return StartupError(f"{what}: that is no address of this machine; choose one with bind")
    if error.errno == errno.EACCES:
        return StartupError(f"{what}: this user may not; choose a port above 1023")
    return StartupError(f"{what}: {error.strerror or error}")


# UNIX sockets


def _bind_unix(settings: ListenerSettings) -> socket.socket:
    path = settings.path
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked_directory(Path(path).parent):
            _remove_stale(settings)
            listening.bind(path)
            # Nobody can connect before listen(): the permissions are right from the first moment.
            os.chmod(path, int(settings.mode, 8))
            listening.listen(LISTEN_BACKLOG)
    except OSError as error:
        listening.close()
        raise StartupError(
            f"the listener {settings.name!r} cannot listen at {path}: {_advice(error)}"
        ) from error
    except StartupError:
        listening.close()
        raise
    return listening


def _advice(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "its directory does not exist; create it"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.strerror}; let this user write to its directory, or choose another path"
    return error.strerror or str(error)


@contextlib.contextmanager
def _locked_directory(directory: Path) -> Iterator[None]:
    """Keep two gateways that start at once from both taking the same file for stale."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove_stale(settings: ListenerSettings) -> None:
    """Remove the file of a socket where nobody listens; StartupError for anything else that is there."""
    path = settings.path
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(
            f"{path} (path of the listener {settings.name!r}) exists and is no socket; remove it, or choose "
            "another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # a queue that is full is somebody's
    raise StartupError(
        f"another process listens at {path} (path of the listener {settings.name!r}); stop it, or choose "
        "another path"
    )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
