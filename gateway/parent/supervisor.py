"""The parent of the workers: forks them, keeps them, passes signals on, and adds up their numbers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from gateway.access.logins import failures_of
from gateway.edge.listeners import Listener, listeners_of
from gateway.parent.binding import BoundListener, bind
from gateway.parent.control import Controls
from gateway.parent.metrics import GatewayCollector, Reports
from gateway.parent.settings import GatewaySettings
from gateway.worker.parent_socket import MESSAGE_MAX_BYTES
from gateway.worker.serving import serve
from holdmq.config.changes import Reloaded
from holdmq.config.model import Config
from holdmq.errors import HoldMQError
from holdmq.service import telemetry
from holdmq.service.admin import AdminServer
from holdmq.service.build import running_build
from holdmq.service.host_rule import AllowedHosts
from holdmq.service.process import die_with_parent, run_until_stopped, start_admin
from holdmq.service.reloading import PATH
from holdmq.wire.config_headers import ERROR_MAX

GC_THRESHOLD: Final = 20_000
"""Container objects made between two young collections: a full batch of publishes makes about as many."""
RESTART_PAUSE_S: Final = 1.0
"""A worker that ends at once is not started in a tight circle."""
KILL_AFTER_S: Final = 5.0
"""How much longer than drain_s a worker may take before it is killed."""
SILENT_UNREADY_S: Final = 5.0
"""A worker that has not reported for so many of its seconds serves nobody: the gateway is not ready."""
SILENT_KILL_S: Final = 20.0
"""Then it hangs: its clients have waited long enough, and only a successor can help them."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = telemetry.get_logger()


@dataclass(slots=True)
class _WorkerProcess:
    index: int
    pid: int
    report: socket.socket
    started_at: float
    heard_at: float
    is_killed: bool = False


class WorkerSupervisor:
    """Runs the workers until SIGTERM or SIGINT."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._section = config.gateway
        self._reports = Reports(self._section.worker_count(os.cpu_count() or 1))
        self._listeners: list[Listener] = []
        self._places: list[BoundListener] = []
        self._children: dict[int, _WorkerProcess] = {}
        self._restarts: list[tuple[float, int]] = []
        self._selector = selectors.DefaultSelector()
        self._signal = 0
        self._is_reload_asked = False
        self._is_stopping = False
        self._kill_at = 0.0
        self._admin: AdminServer | None = None
        self._beat = 0.0
        self._began_at = time.monotonic()
        # One key for all workers, which they inherit with what was counted so far.
        self._login_failures = failures_of(self._section, secrets.token_bytes(32))
        self._controls = Controls(self._reports.workers, self._wake_soon, self._login_failures)
        self._settings = GatewaySettings(config, self._wake_soon)
        self._controls.paths[PATH] = self._settings.control
        self._wake_write: socket.socket | None = None

    def _wake_soon(self) -> None:
        if self._wake_write is not None:
            _wake(self._wake_write)

    def run(self) -> None:
        """Serve until the signal; raises StartupError for a busy port, ConfigError for a bad certificate."""
        self._listeners = listeners_of(self._section, self._config.host_names())
        self._listen()
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno())
        self._wake_write = wake_write
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        signal.signal(signal.SIGHUP, self._asked_to_reload)
        self._selector.register(wake_read, selectors.EVENT_READ, None)
        collector = GatewayCollector(self._reports)
        telemetry.METRICS.register(collector)
        # What was imported lies in pages that workers share; a collection would copy them.
        gc.collect()
        gc.freeze()
        try:
            for index in range(self._reports.workers):
                self._fork(index)
            self._admin = start_admin(
                "gateway",
                self._config,
                self._reports.start,
                self._reports.readiness,
                self._liveness,
                controls=self._controls.paths,
            )
            log.info(
                "gateway serves",
                listeners={place.settings.name: place.where for place in self._places},
                workers=self._reports.workers,
                admin_port=self._admin.port,
                build=running_build(),
            )
            while self._children or self._restarts:
                self._turn(wake_read)
        finally:
            if self._admin is not None:
                self._admin.close()
            telemetry.METRICS.unregister(collector)
            signal.set_wakeup_fd(-1)
            self._close_places()
            wake_read.close()
            wake_write.close()
            self._selector.close()

    # Listening

    def _listen(self) -> None:
        try:
            for listener in self._listeners:
                self._places.append(bind(listener.settings, self._reports.workers))
        except HoldMQError:
            self._close_places()
            raise

    def _close_places(self) -> None:
        for place in self._places:
            place.close()

    # Workers

    def _fork(self, index: int) -> None:
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent_pid = os.getpid()
        # A signal that meets the child before it has handlers of its own waits until it has.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            parent_end.close()
            os._exit(self._be_worker(index, child_end, parent_pid))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        child_end.close()
        parent_end.setblocking(False)
        now = time.monotonic()
        child = self._children[pid] = _WorkerProcess(index, pid, parent_end, now, now)
        self._selector.register(parent_end, selectors.EVENT_READ, child)
        for command in [*self._controls.in_force(), *self._settings.in_force()]:
            _command(child, command)

    def _be_worker(self, index: int, report: socket.socket, parent_pid: int) -> int:
        """In the child: give up what is the parent's, and serve; the exit code."""
        try:
            signal.set_wakeup_fd(-1)
            die_with_parent(parent_pid)
            self._selector.close()
            for child in self._children.values():
                child.report.close()
            own = [place.keep_only(index) for place in self._places]
            report.setblocking(False)
            # Messages and batches hold no cycles: collecting less often saves pauses, not memory.
            gc.set_threshold(GC_THRESHOLD, 20, 20)
            config, places = self._config, list(zip(self._listeners, own, strict=True))
            failures = self._login_failures

            async def worker(stopping: asyncio.Event) -> None:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                await serve(config, index, places, report, stopping, failures)

            run_until_stopped(worker, config.gateway.drain_s + 2 * KILL_AFTER_S)
        except BaseException:
            # The child must never return into the parent's code.
            log.critical("a gateway worker failed", worker=index, exc_info=True)
            return 1
        finally:
            sys.stderr.flush()
        return 0

    def _turn(self, wake: socket.socket) -> None:
        began = time.monotonic()
        if began - self._beat > SILENT_UNREADY_S:
            # Nobody ran: who stopped this process or the machine stopped the workers too.
            for child in self._children.values():
                child.heard_at = began
        self._beat = began
        if self._signal and not self._is_stopping:
            self._stop()
        if self._is_reload_asked:
            self._is_reload_asked = False
            self._settings.ask()
            for child in self._children.values():
                os.kill(child.pid, signal.SIGHUP)
        for key, _ in self._selector.select(1.0):
            if key.data is None:
                wake.recv(4096)
            else:
                self._read_report(key.data)
        for command in self._settings.take():
            for child in self._children.values():
                _command(child, command)
        for command, sender in self._controls.take():
            for child in self._children.values():
                if child.index != sender:
                    _command(child, command)
        now = time.monotonic()
        if not self._is_stopping:
            self._end_silent(now)
        due = [index for at, index in self._restarts if at <= now]
        if due:
            self._restarts = [entry for entry in self._restarts if entry[0] > now]
            if not self._is_stopping:
                self._restart(due)
        if self._is_stopping:
            self._restarts.clear()
            if now > self._kill_at:
                for child in self._children.values():
                    log.error(
                        "a worker did not drain in time and is killed", worker=child.index, pid=child.pid
                    )
                    os.kill(child.pid, signal.SIGKILL)
                self._kill_at = now + KILL_AFTER_S

    def _end_silent(self, now: float) -> None:
        """A worker that does not report hangs: say so, and in the end kill it to have it started again."""
        silent = {c.index: now - c.heard_at for c in self._children.values()}
        self._reports.silent = {index for index, age in silent.items() if age > SILENT_UNREADY_S}
        for child in self._children.values():
            if now - child.heard_at > SILENT_KILL_S and not child.is_killed:
                child.is_killed = True
                log.error(
                    "a gateway worker hangs and is killed",
                    worker=child.index,
                    pid=child.pid,
                    silent_s=round(now - child.heard_at, 1),
                )
                os.kill(child.pid, signal.SIGKILL)

    def _read_report(self, child: _WorkerProcess) -> None:
        try:
            data = child.report.recv(MESSAGE_MAX_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if data:
            child.heard_at = time.monotonic()
            message = json.loads(data)
            if "numbers" in message:
                self._reports.received(child.index, message)
            elif "totals" in message:
                uptime_s = int(time.monotonic() - self._began_at)
                totals = {"numbers": self._reports.totals(), "workers": self._reports.workers}
                _command(child, {**totals, "uptime_s": uptime_s})
            elif "reload" in message:
                self._reload_for(child, message["reload"])
            else:
                self._controls.received(child.index, message)
            return
        self._selector.unregister(child.report)
        child.report.close()
        _, status = os.waitpid(child.pid, 0)
        del self._children[child.pid]
        self._reports.ended(child.index)
        code = os.waitstatus_to_exitcode(status)
        if self._is_stopping:
            if code:
                log.error("a worker ended badly while draining", worker=child.index, exit_code=code)
            return
        self._reports.restarts += 1
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        log.error("a gateway worker ended; starting it again", worker=child.index, pid=child.pid, how=how)
        self._restarts.append((max(time.monotonic(), child.started_at + RESTART_PAUSE_S), child.index))

    def _reload_for(self, child: _WorkerProcess, number: int) -> None:
        """A worker was asked from afar to have the configuration read: tell it what came of it."""

        def came_of(future: Future[Reloaded]) -> None:
            error = future.exception()
            changed, waiting = ([], []) if error is not None else future.result()
            said = "" if error is None else str(error)[:ERROR_MAX]
            _command(child, {"reloaded": number, "changed": changed, "waiting": waiting, "error": said})

        self._settings.ask().add_done_callback(came_of)

    def _restart(self, indices: list[int]) -> None:
        """Fork again without the admin threads: a lock that one holds would stay locked in the child."""
        admin = self._admin
        port = 0
        if admin is not None:
            port = admin.port
            admin.close()
            self._controls.end_traces()
        for index in indices:
            self._fork(index)
        if admin is not None:
            self._admin = AdminServer(
                self._section.admin_bind,
                port,
                started=self._reports.start,
                ready=self._reports.readiness,
                alive=self._liveness,
                hosts=AllowedHosts(self._config.host_names()),
                controls=self._controls.paths,
            )

    # Signals and health

    def _signalled(self, number: int, _frame: object) -> None:
        """Only note it: a handler runs in the middle of anything. The wake-up fd ends the wait."""
        self._signal = number

    def _asked_to_reload(self, _number: int, _frame: object) -> None:
        self._is_reload_asked = True

    def _stop(self) -> None:
        self._is_stopping = True
        self._reports.is_draining = True
        self._kill_at = time.monotonic() + self._section.drain_s + KILL_AFTER_S
        self._close_places()  # or the kernel would go on accepting for nobody
        for child in self._children.values():
            os.kill(child.pid, signal.SIGTERM)
        log.info("draining", signal=signal.Signals(self._signal).name)

    def _liveness(self) -> tuple[bool, str]:
        late = time.monotonic() - self._beat
        return (True, "ok") if late < 30 else (False, f"the supervisor has not turned for {late:.0f} s")


def _wake(wake: socket.socket) -> None:
    """End the supervisor's wait; a full buffer ends it as well."""
    with contextlib.suppress(BlockingIOError):
        wake.send(b"c")


def _command(child: _WorkerProcess, command: dict[str, object]) -> None:
    """Tell a worker; one that hangs, or is gone, does without."""
    data = json.dumps(command).encode()
    if len(data) > MESSAGE_MAX_BYTES:
        log.error("a command is too long for a worker", worker=child.index, bytes=len(data))
        return
    with contextlib.suppress(BlockingIOError, ConnectionError):
        child.report.send(data)
