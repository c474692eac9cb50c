"""Runs child processes: starts them by readiness, restarts what crashes, stops all in reverse order.

A child is a session of its own, so Ctrl-C reaches only the supervisor, which then drains the children in
good order. Each child ends by itself when the supervisor is gone, however that went
(``process.die_with_parent``). What children print becomes one stream on standard error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdmq.errors import ConfigError, StartupError
from holdmq.service.process import ENV_PARENT_PID, EXIT_FAILED, EXIT_USAGE

POLL_INTERVAL_S: Final = 0.1
"""Between two questions whether a child is ready: a tenth of what a person notices."""

POLL_TIMEOUT_S: Final = 2.0
"""For one answer; a process that is busy starting may take a moment."""

WAITING_NOTE_S: Final = 15.0
"""After this long the reason why a child is not ready is said, and again as often."""

RESTART_DELAY_MIN_S: Final = 0.5
RESTART_DELAY_MAX_S: Final = 30.0
"""Backoff between restarts: at once for an accident, no load from a child that cannot run."""

STEADY_S: Final = 60.0
"""A child that ran this long starts with the shortest delay again."""

LINE_MAX_BYTES: Final = 65_536
"""Most that is kept of a line that has not ended; a longer one is passed on in parts."""

OUTPUT_LIMIT_S: Final = 1.0
"""For the last lines of a child that has ended; what it left behind may hold its pipe for ever."""


AskReady = Callable[[], Awaitable[tuple[bool, str]]]
"""Asks a child once whether it is ready, and if not, why; OSError = it does not listen."""


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """What to run, and how to know that it works.

    `essential`: the others make no sense without it, so a refusal to start ends everything. `awaited`: what
    follows is started when it is ready. `stop_limit_s` is the time to drain before SIGKILL; `environ` are
    variables that only this child gets.
    """

    name: str
    argv: Sequence[str]
    ask_ready: AskReady
    stop_limit_s: float
    essential: bool = True
    awaited: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Running:
    child: ServiceCommand
    process: asyncio.subprocess.Process | None = None
    was_ready: bool = False
    restarts: int = 0
    failures_in_row: int = 0
    task: asyncio.Task[None] | None = None


Say = Callable[[str, str], None]
"""Called with a child's name ("up" for the supervisor itself) and one line, without its newline."""


class ServiceSupervisor:
    """Owns the children between ``start`` and ``stop``; all on one event loop.

    `say` gets every line to show. `stopping` is set by the caller (a signal) or, when an essential
    child refuses to start, by the supervisor, which then keeps the reason in `refusal`.
    """

    __slots__ = ("_environ", "_running", "_say", "refusal", "stopping")

    def __init__(self, say: Say, stopping: asyncio.Event) -> None:
        self._say = say
        self._running: dict[str, _Running] = {}
        self._environ = {**os.environ, ENV_PARENT_PID: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        self.stopping = stopping
        self.refusal: ConfigError | StartupError | None = None

    def start(self, child: ServiceCommand) -> None:
        """Start `child` and keep it running until ``stop``."""
        running = _Running(child)
        self._running[child.name] = running
        running.task = asyncio.create_task(self._keep(running), name=f"keep {child.name}")

    async def wait_ready(self, *names: str) -> bool:
        """Wait until all of `names` are ready; False when ``stopping`` was set before."""
        for name in names:
            running = self._running[name]
            begun = time.monotonic()
            noted = begun
            while not running.was_ready:
                if self.stopping.is_set():
                    return False
                running.was_ready, reason = await _readiness(running.child.ask_ready)
                if running.was_ready:
                    break
                if time.monotonic() - noted >= WAITING_NOTE_S:
                    noted = time.monotonic()
                    self._say("up", f"{name} is not ready after {noted - begun:.0f} s: {reason}")
                await _either(self.stopping, POLL_INTERVAL_S)
        return not self.stopping.is_set()

    async def stop(self) -> None:
        """Drain the children, last started first; kill one that takes longer than its limit, and say so."""
        self.stopping.set()
        for running in reversed(self._running.values()):
            await self._stop_one(running)

    def kill(self) -> None:
        """Kill every child at once (a second Ctrl-C)."""
        for running in self._running.values():
            if running.process is not None and running.process.returncode is None:
                self._say("up", f"{running.child.name} is killed before it has drained")
                _kill_group(running.process.pid)

    async def _stop_one(self, running: _Running) -> None:
        child = running.child
        # A child that is just being started has no process yet; its turn comes a moment later.
        while running.task is not None and not running.task.done():
            process = running.process
            if process is not None and process.returncode is None:
                _signal(process, signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), child.stop_limit_s)
                except TimeoutError:
                    self._say(
                        "up", f"{child.name} has not drained within {child.stop_limit_s:g} s and is killed"
                    )
                    _kill_group(process.pid)
            await asyncio.wait([running.task], timeout=POLL_INTERVAL_S)
        if running.task is not None:
            await running.task

    async def _keep(self, running: _Running) -> None:
        """Run the child, again and again, until the supervisor stops."""
        child = running.child
        while not self.stopping.is_set():
            begun = time.monotonic()
            code = await self._run_once(running)
            if self.stopping.is_set():
                return
            what = f"{child.name} {describe_exit(code)}"
            if not running.was_ready and (code == EXIT_USAGE or (child.essential and code > 0)):
                sentence = f"{what} at its start; its line above says why"
                self.refusal = ConfigError(sentence) if code == EXIT_USAGE else StartupError(sentence)
                self.stopping.set()
                return
            steady = time.monotonic() - begun >= STEADY_S
            running.failures_in_row = 0 if steady else running.failures_in_row + 1
            running.restarts += 1
            delay = restart_delay_s(running.failures_in_row)
            self._say("up", f"{what}; restart {running.restarts} in {delay:g} s")
            await _either(self.stopping, delay)

    async def _run_once(self, running: _Running) -> int:
        """Run the child to its end and return its exit code, negative for a signal."""
        child = running.child
        # A pipe of our own: asyncio's would make wait() last until everything the child forked has closed it.
        output, inherited = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *child.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=inherited,
                stderr=inherited,
                env={**self._environ, **child.environ},
                start_new_session=True,
            )
        except OSError as error:
            os.close(output)
            self._say("up", f"{child.name} cannot be started: {error.strerror}: {child.argv[0]}")
            return EXIT_FAILED
        finally:
            os.close(inherited)
        running.process = process
        passing = asyncio.create_task(self._pass_on(child.name, output))
        code = await process.wait()
        # What it forked (workers, a JVM) may still hold its ports.
        _kill_group(process.pid)
        done, _ = await asyncio.wait([passing], timeout=OUTPUT_LIMIT_S)
        if not done:
            passing.cancel()
        return code

    async def _pass_on(self, name: str, output: int) -> None:
        """Say each line that comes out of the pipe `output`, and close it at its end."""
        stream = asyncio.StreamReader(LINE_MAX_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb", 0)
        )
        unfinished = b""
        try:
            while chunk := await stream.read(LINE_MAX_BYTES):
                *lines, unfinished = (unfinished + chunk).split(b"\n")
                for line in lines:
                    self._say(name, line.decode(errors="replace").rstrip("\r"))
                if len(unfinished) >= LINE_MAX_BYTES:
                    self._say(name, unfinished.decode(errors="replace"))
                    unfinished = b""
            if unfinished:
                self._say(name, unfinished.decode(errors="replace"))
        finally:
            transport.close()


def restart_delay_s(failures_in_row: int) -> float:
    """Return the pause before the next start after `failures_in_row` (from 0) short lives."""
    return float(min(RESTART_DELAY_MAX_S, RESTART_DELAY_MIN_S * 2 ** min(max(failures_in_row - 1, 0), 16)))


def describe_exit(code: int) -> str:
    """Return how a process ended, for a sentence: its exit code, or the signal that killed it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


async def ask_readyz(host: str, port: int) -> tuple[bool, str]:
    """Ask ``/readyz`` of an admin server once; return whether it answered 200, and its text."""
    return await ask_admin(host, port, "/readyz")


async def ask_admin(host: str, port: int, path: str) -> tuple[bool, str]:
    """Ask `path` of an admin server once; return whether it answered 200, and its text. Raises OSError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = await reader.read(LINE_MAX_BYTES)
        while more := await reader.read(LINE_MAX_BYTES):
            answer += more
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return b" 200 " in head.split(b"\r\n", 1)[0], body.decode(errors="replace").strip()


async def _readiness(ask_ready: AskReady) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(POLL_TIMEOUT_S):
            return await ask_ready()
    except TimeoutError:
        return False, f"it does not answer within {POLL_TIMEOUT_S:g} s"
    except OSError:
        return False, "it does not listen yet"


async def _either(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for `event`, at most `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return


def _kill_group(pid: int) -> None:
    """Kill what is left of the process group that child `pid` leads; nothing left is fine."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
