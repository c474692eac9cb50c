"""Services as processes that are forked from one that has imported them, and waits for that.

What a service imports takes it half a second of CPU, and the tests start hundreds; a fork takes some ms. From
there on it is `holdmq <service>` in a process of its own. `holdmq up`, the console, the Spark job and what is
started under a tool begin with nothing, as every service does for a user.

Run as a program, this module is the process that forks.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

SERVICES: Final = ("registry", "broker", "gateway")
ORDER_MAX_BYTES: Final = 128 << 10
_LOOK_S: Final = 0.05


class Forked:
    """A process that was forked, with what `subprocess.Popen` has of it; `args` would start it anew."""

    def __init__(self, parent: _Parent, pid: int, args: list[str]) -> None:
        self._parent = parent
        self.pid = pid
        self.args = args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, -n if it was signal n; None while the process runs."""
        if self.returncode is None:
            self.returncode = self._parent.code_of(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._parent.code_of(self.pid, _LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class _Parent:
    """The process that forks, begun with the first service; it ends with this one, and all that it forked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a thread would not be forked
            )

    def start(self, args: list[str], directory: Path, log: Path) -> Forked:
        """Start `holdmq` with `args` in `directory`; what it prints is appended to `log`."""
        order = {"args": args, "directory": str(directory), "log": str(log), "environ": dict(os.environ)}
        with self._lock:
            self._control.send(json.dumps(order).encode())
            while "started" not in (said := self._hear()):
                self._codes[said["ended"]] = said["code"]
            self._codes.pop(said["started"], None)  # of who had this number before
        return Forked(self, said["started"], [sys.executable, "-m", "holdmq.cli", *args])

    def code_of(self, pid: int, timeout_s: float) -> int | None:
        """The exit code of a process; None if it does not come in time."""
        with self._lock, selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            while pid not in self._codes and selector.select(timeout_s):
                said = self._hear()
                self._codes[said["ended"]] = said["code"]
            return self._codes.get(pid)

    def end(self) -> None:
        """End the process, and what it forked and is still there."""
        self._control.close()
        self._process.wait()

    def _hear(self) -> dict[str, int]:
        data = self._control.recv(ORDER_MAX_BYTES)
        assert data, "the process that forks has ended"
        said: dict[str, int] = json.loads(data)
        return said


_parents: list[_Parent] = []
_first = threading.Lock()


def start(args: list[str], directory: Path, log: Path) -> Forked:
    """As `_Parent.start`, of this process's one parent."""
    with _first:
        if not _parents:
            _parents.append(_Parent())
            atexit.register(_parents[0].end)
    return _parents[0].start(args, directory, log)


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for and tell how it ended; returns an order in each child, None at the end."""
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    descriptor = key.fd
                    selector.unregister(descriptor)
                    os.close(descriptor)
                    pid, status = os.waitpid(running.pop(descriptor), 0)
                    tell(control, ended=pid, code=os.waitstatus_to_exitcode(status))
                    continue
                try:
                    data = control.recv(ORDER_MAX_BYTES)
                except ConnectionResetError:  # it ended without having heard everything
                    data = b""
                if not data:
                    for pid in running.values():
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
                    return None
                pid = os.fork()
                if not pid:
                    for descriptor in running:
                        os.close(descriptor)
                    order: dict[str, Any] = json.loads(data)
                    return order
                descriptor = os.pidfd_open(pid)
                running[descriptor] = pid
                selector.register(descriptor, selectors.EVENT_READ)
                tell(control, started=pid)


def tell(control: socket.socket, **what: int) -> None:
    with suppress(BrokenPipeError):  # then the end is what comes next
        control.send(json.dumps(what).encode())


def become(order: dict[str, Any]) -> None:
    """Take on arguments, streams, directory, environment, and Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["holdmq", *order["args"]]
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environ"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)


def main() -> None:
    # A terminal's Ctrl-C is for the tests and for the services: this process ends after both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import importlib

    from holdmq.cli.loading import uncollected

    with uncollected():
        from holdmq.cli import services

        for name in SERVICES:
            importlib.import_module(services.MODULES[name])
        from holdmq.cli.app import main as run
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        order = serve(control)
    if order is not None:
        become(order)
        run()


if __name__ == "__main__":
    main()
