"""What the parent of the workers can be asked for and told: traces of clients, bans, logins that failed.

::

    holdmq trace ──HTTP, admin port──► Controls ──command──► worker        one socket pair for each worker,
                 ◄──── lines ─────────          ◄── lines ──               the one that carries its reports

Paths are called on threads of the admin server; what workers say comes on the supervisor's thread.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

from gateway.access.logins import take
from gateway.ground.addresses import shown_key
from gateway.protect.core.flapping import Bans, ban_of, ban_row
from holdmq.credentials.login_failures import LoginFailures
from holdmq.mqtt import MqttError, check_filter
from holdmq.service.admin import Control, ControlAnswer

TRACES_MAX: Final = 4
"""Traces at a time: each has a thread of the admin server, which probes need as well."""
TRACE_S_MAX: Final = 600.0
"""How long a trace may run: who has forgotten it must not pay for it."""
TRACE_S: Final = 30.0
TRACE_BYTES_MAX: Final = 8 << 20
"""What one trace may show."""
LINES_WAITING_MAX: Final = 2_000
"""Lines that its reader has not taken; more are left out, and counted."""
HEARTBEAT_S: Final = 1.0
"""How often a trace without news writes an empty line: so a reader that is gone is noticed."""

Command = dict[str, object]


class _Trace:
    """One trace: its lines on their way from the workers to its reader. None ends it."""

    __slots__ = ("left_out", "lines")

    def __init__(self) -> None:
        self.lines: queue.Queue[Any] = queue.Queue(LINES_WAITING_MAX)
        self.left_out = 0

    def add(self, line: Any) -> None:
        try:
            self.lines.put_nowait(line)
        except queue.Full:
            self.left_out += 1


class Controls:
    """`wake` makes the supervisor call `take` soon. Workers inherit `login_failures` when they are forked."""

    def __init__(
        self, workers: int, wake: Callable[[], None], login_failures: LoginFailures | None = None
    ) -> None:
        self.paths: dict[str, Control] = {"/trace": self.trace, "/bans": self.bans}
        self._wake = wake
        self._workers = workers
        self._numbers = itertools.count(1)
        self._traces: dict[int, _Trace] = {}
        self._bans = Bans()
        self.login_failures = login_failures
        self._lock = threading.Lock()
        self._commands: deque[tuple[Command, int]] = deque()

    # On the supervisor's thread

    def take(self) -> list[tuple[Command, int]]:
        """Take the commands for all workers but the one named, −1 = none."""
        commands: list[tuple[Command, int]] = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    def in_force(self) -> list[Command]:
        """What a worker that starts must be told."""
        now = time.monotonic()
        with self._lock:
            self._bans.expire(now)
            return [{"ban": ban_row(ban, now)} for ban in self._bans.all()]

    def received(self, worker: int, message: dict[str, Any]) -> None:
        """A worker said something that is no report."""
        if "ban" in message:
            with self._lock:
                self._bans.expire(time.monotonic())
                self._bans.add(ban_of(message["ban"], time.monotonic()))
            self._commands.append((message, worker))
        elif "login_failed" in message or "logins_known" in message:
            if self.login_failures is not None:
                with self._lock:
                    now = time.monotonic()
                    self.login_failures.expire(now)
                    take(self.login_failures, message, now)
            self._commands.append((message, worker))
        elif "trace" in message:
            trace = self._traces.get(message["trace"])
            if trace is not None:
                trace.left_out += message.get("left_out", 0)
                for line in message["lines"]:
                    trace.add(line)

    def end_traces(self) -> None:
        """End every trace: a fork must not meet their threads at work."""
        for trace in list(self._traces.values()):
            trace.left_out += trace.lines.qsize()
            with trace.lines.mutex:
                trace.lines.queue.clear()
            trace.add(None)

    # On threads of the admin server

    def bans(self, method: str, query: dict[str, str]) -> ControlAnswer:
        """GET: the bans in force, a line each. POST: lift those of `principal`, or with `all` all, and have
        them log in at once again, however many logins have failed."""
        now = time.monotonic()
        if method == "GET":
            with self._lock:
                self._bans.expire(now)
                rows = [ban_row(ban, now) for ban in self._bans.all()]
            for row in rows:
                row["address"] = shown_key(bytes.fromhex(row["address"]))
            return ControlAnswer(HTTPStatus.OK, [_line(row) for row in rows])
        principal = query.get("principal")
        if (principal is None) == ("all" not in query):
            return _mistake("say whose bans to lift, or all")
        with self._lock:
            lifted = self._bans.lift(principal)
            if self.login_failures is not None:
                lifted += self.login_failures.forget(principal)
        self._command({"unban": principal})
        return ControlAnswer(HTTPStatus.OK, [_line({"lifted": lifted})])

    def trace(self, method: str, query: dict[str, str]) -> ControlAnswer:
        """GET: the packets of `client` as they come, for `seconds`; of PUBLISH only those on `topic`."""
        client_id, topic = query.get("client", ""), query.get("topic")
        try:
            seconds = float(query.get("seconds", TRACE_S))
            if topic is not None:
                check_filter(topic)
        except (ValueError, MqttError) as error:
            return _mistake(str(error))
        if method != "GET" or not client_id:
            return _mistake("name the client to trace")
        if not 0 < seconds <= TRACE_S_MAX:
            return _mistake(f"a trace runs for up to {TRACE_S_MAX:.0f} s")
        with self._lock:
            if len(self._traces) >= TRACES_MAX:
                return _mistake(f"{TRACES_MAX} traces run already; wait until one of them ends")
            number, trace = next(self._numbers), _Trace()
            self._traces[number] = trace
        self._command({"trace": number, "client": client_id, "topic": topic, "seconds": seconds})
        lines = self._lines(number, trace, client_id, seconds)
        next(lines)  # one that was not begun would not end either: who asked may be gone by now
        return ControlAnswer(HTTPStatus.OK, lines)

    def _lines(self, number: int, trace: _Trace, client_id: str, seconds: float) -> Iterator[bytes]:
        left_bytes = TRACE_BYTES_MAX
        why = "its time is over"
        until = time.monotonic() + seconds
        try:
            yield b""
            yield _line(
                {"event": "traced", "client": client_id, "seconds": seconds, "workers": self._workers}
            )
            while (left_s := until - time.monotonic()) > 0:
                try:
                    line = trace.lines.get(timeout=min(HEARTBEAT_S, left_s))
                except queue.Empty:
                    yield b"\n"
                    continue
                if line is None:
                    why = "a worker is started again"
                    break
                piece = _line(line)
                left_bytes -= len(piece)
                if left_bytes < 0:
                    why = f"it has shown {TRACE_BYTES_MAX >> 20} MiB"
                    break
                yield piece
            yield _line({"event": "ended", "why": why, "left_out": trace.left_out})
        finally:
            del self._traces[number]
            self._command({"untrace": number})

    def _command(self, command: Command) -> None:
        self._commands.append((command, -1))
        self._wake()


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def _mistake(sentence: str) -> ControlAnswer:
    return ControlAnswer(HTTPStatus.BAD_REQUEST, [_line({"error": sentence})])
