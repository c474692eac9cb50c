"""The one shell around every service process: logs, signals, admin HTTP, exit codes.

A service is ``<service>/main.py`` with one coroutine::

    async def main(config: Config, service: Service) -> None:
        server = await start(...)                       # raise listen_error(...) when a port is busy
        service.ready(lambda: (server.registered, "not registered with a registry yet"))
        service.log.info("broker serves", port=server.port)
        await service.stopping.wait()                   # SIGTERM or SIGINT
        await server.drain()                            # then return: exit code 0

and ``holdmq <service>`` is ``run_service("<service>", config, main)``. Conventions:

- ``main`` parses nothing and logs nothing but its own life; it returns when it has drained, at the
  latest ``STOP_LIMIT_S`` after the signal, or the process ends itself with exit code 1. A background
  task that must not die silently lives in a TaskGroup of ``main``: its exception ends the process.
- Errors that an operator can mend are raised as a HoldMQError: one sentence on standard error and
  exit code 1 (ConfigError: 2). Anything else is logged with its traceback, exit code 1.
- A section ``[<service>]`` with ``admin_bind`` and ``admin_port`` is where ``/startz`` (there are readiness
  checks), ``/readyz`` (all of them hold), ``/healthz`` (the event loop turns) and ``/metrics``
  (``telemetry.METRICS``) answer.
  Readiness checks and metrics are called from the admin thread: they read plain attributes, never wait.
- A process that forks workers (the gateway) is ``def run(config) -> int`` over the parts: ``guard``
  around everything; ``start_admin`` in the parent *after* the forks (threads do not survive a fork);
  in each worker ``die_with_parent(parent_pid)`` and ``run_until_stopped(worker_main)``.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

import uvloop

from holdmq.config.model import Config
from holdmq.errors import ConfigError, HoldMQError, StartupError
from holdmq.service import telemetry
from holdmq.service.admin import AdminServer, Control, ReadyCheck
from holdmq.service.host_rule import AllowedHosts

STOP_LIMIT_S: Final = 60.0
"""Longest a process may take from the signal to its end: several times any default drain."""

LOOP_STALL_LIMIT_S: Final = 30.0
"""Longest turn of an event loop before /healthz says that the process hangs: far past any disk stall."""

ENV_PARENT_PID: Final = "HOLDMQ_PARENT_PID"
"""Set by a supervisor: the child ends (SIGTERM) when the process with this id is gone."""

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_PR_SET_PDEATHSIG: Final = 1
_BEAT_INTERVAL_S: Final = 1.0


class Service:
    """What a service's ``main`` gets from its process."""

    __slots__ = ("_beat", "_checks", "admin_port", "config", "controls", "log", "name", "stopping")

    def __init__(self, name: str, config: Config, log: telemetry.Logger, stopping: asyncio.Event) -> None:
        self.name = name
        self.config = config
        self.log = log
        self.stopping = stopping
        """Set by SIGTERM or SIGINT: drain, then return."""
        self.admin_port = 0
        """The admin server's port as bound."""
        self.controls: dict[str, Control] = {}
        """What the admin server answers by path, beside health and metrics."""
        self._checks: list[ReadyCheck] = []
        self._beat = time.monotonic()

    def ready(self, check: ReadyCheck) -> None:
        """Add a readiness check; the process is ready while every check returns ``(True, …)``.

        Call it once everything it reads exists: before the first call the process is "starting". The
        check runs on the admin thread and must neither wait nor raise; its text is the reason when
        it returns False.
        """
        self._checks.append(check)

    def no_longer_ready(self, *checks: ReadyCheck) -> None:
        """Take readiness checks back: what they read has ended. Without any the process is "starting"."""
        self._checks = [check for check in self._checks if check not in checks]

    def start(self) -> tuple[bool, str]:
        """Return whether the service has started: what is missing from then on is others' affair."""
        return bool(self._checks), "started" if self._checks else "starting"

    def readiness(self) -> tuple[bool, str]:
        """Return whether the service takes work, and why not."""
        if self.stopping.is_set():
            return False, "draining"
        if not self._checks:
            return False, "starting"
        for check in self._checks:
            holds, reason = check()
            if not holds:
                return False, reason
        return True, "ready"

    def liveness(self) -> tuple[bool, str]:
        """Return whether the event loop turns."""
        late = time.monotonic() - self._beat
        if late > LOOP_STALL_LIMIT_S:
            return False, f"the event loop has not turned for {late:.0f} s"
        return True, "ok"

    async def beat(self) -> None:
        """Note every second that the loop turns; runs until it is cancelled."""
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(_BEAT_INTERVAL_S)


ServiceMain = Callable[[Config, Service], Awaitable[None]]


def run_service(name: str, config: Config, main: ServiceMain, stop_limit_s: float = STOP_LIMIT_S) -> int:
    """Run ``main`` as the service `name` until it has drained; return the exit code.

    Sets up telemetry, the admin server of the section `name`, uvloop and the signals. A drain that takes
    more than `stop_limit_s` ends the process with exit code 1.
    """

    async def shell(stopping: asyncio.Event) -> None:
        service = Service(name, config, telemetry.get_logger(), stopping)
        admin = start_admin(
            name, config, service.start, service.readiness, service.liveness, controls=service.controls
        )
        service.admin_port = admin.port
        beating = asyncio.create_task(service.beat())
        try:
            await main(config, service)
        finally:
            beating.cancel()
            admin.close()

    return guard(name, config, lambda: run_until_stopped(shell, stop_limit_s))


def guard(name: str, config: Config, run: Callable[[], None]) -> int:
    """Set up telemetry and the bond to a supervisor, call `run`, and turn what it raises into an exit code.

    0 returned, 1 failed, 2 wrong configuration. A HoldMQError is one sentence on standard error.
    """
    log = telemetry.setup(name, config.log, replica=config.replication.replica if name == "broker" else "")
    parent = os.environ.get(ENV_PARENT_PID)
    if parent is not None:
        die_with_parent(int(parent))
    try:
        run()
    except HoldMQError as error:
        _say(name, config, error)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    except BaseExceptionGroup as group:
        known, unknown = group.split(HoldMQError)
        if unknown is not None:
            log.critical("the process failed", exc_info=unknown)
        for leaf in _leaves(known):
            _say(name, config, leaf)
        return EXIT_FAILED
    except Exception:
        log.critical("the process failed", exc_info=True)
        return EXIT_FAILED
    return EXIT_OK


def run_until_stopped(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, None]], limit_s: float = STOP_LIMIT_S
) -> None:
    """Run ``main(stopping)`` on a fresh uvloop; SIGTERM and SIGINT set `stopping`.

    A main that has not returned `limit_s` after the signal, or a second SIGINT, ends the process
    at once with exit code 1. Raises what ``main`` raises.
    """

    async def shell() -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        log = telemetry.get_logger()

        def give_up(reason: str) -> None:
            log.critical("the process ends without having drained", reason=reason)
            os._exit(EXIT_FAILED)

        def stop(number: signal.Signals) -> None:
            if not stopping.is_set():
                stopping.set()
                log.info("draining", signal=number.name)
                loop.call_later(limit_s, give_up, f"not drained after {limit_s:.0f} s")
            elif number == signal.SIGINT:
                give_up("interrupted a second time")

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        await main(stopping)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(shell())


def start_admin(
    name: str,
    config: Config,
    started: ReadyCheck,
    ready: ReadyCheck,
    alive: ReadyCheck,
    collect: Callable[[], bytes] | None = None,
    controls: Mapping[str, Control] | None = None,
) -> AdminServer:
    """Start the admin server of section `name` on a thread and return it; the caller closes it.

    `collect` returns the text of ``/metrics``; None = ``telemetry.METRICS`` of this process (a parent of
    workers passes its own, which adds theirs). `controls` are more paths. Raises StartupError for a busy
    port.
    """
    section = getattr(config, name)
    try:
        return AdminServer(
            section.admin_bind,
            section.admin_port,
            started=started,
            ready=ready,
            alive=alive,
            hosts=AllowedHosts(config.host_names()),
            collect=collect,
            controls=controls,
        )
    except OSError as error:
        raise listen_error(error, f"{name}.admin_port", section.admin_bind, section.admin_port) from error


def listen_error(error: OSError, key: str, host: str, port: int) -> StartupError:
    """Return the sentence for a failed bind of configuration key `key` (``"broker.port"``)."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return StartupError(
            f"port {port} ({key}) on {host} is in use by another process; "
            f"stop it, or choose another with --set {key}=PORT"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return StartupError(
            f"{where} ({key}) is no address of this machine; choose one with the section's bind key"
        )
    if error.errno == errno.EACCES:
        return StartupError(f"{where} ({key}) may not be bound by this user; choose a port above 1023")
    return StartupError(f"{where} ({key}) cannot be bound: {error.strerror or error}")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel send this process SIGTERM when its parent, process `parent_pid`, ends in any way.

    Raises StartupError when that has already happened.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise StartupError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have ended before the request was made; then nothing would ever come.
    if os.getppid() != parent_pid:
        raise StartupError(f"the supervisor (process {parent_pid}) is gone")


def _leaves(group: BaseExceptionGroup[Any] | None) -> list[BaseException]:
    if group is None:
        return []
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _say(name: str, config: Config, error: BaseException) -> None:
    if telemetry.is_human(config.log, sys.stderr):
        sys.stderr.write(f"holdmq {name}: {error}\n")
    else:
        sys.stderr.write(json.dumps({"event": str(error), "level": "error", "service": name}) + "\n")
    sys.stderr.flush()
