"""The console's side of a query process: one question at a time, a bounded line of those that wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import Counter, Gauge, Histogram

from console.sql.questions import LENGTH, READY, REPLY_MAX, SqlQuestion, SqlReply, frame, reply_of
from holdmq.service import telemetry

log = structlog.get_logger("holdmq.console")

START_S: Final = 30.0
"""A process that is not ready by then never will be: it takes a second, and several on a busy machine."""

GRACE_S: Final = 4.0
"""The process ends by itself a second after the deadline; who is stopped or swapped out is killed."""

AT_DEADLINE: Final = -signal.SIGALRM
"""How a process ends that sees no interruption: its own timer's signal."""

PARTING_S: Final = 1.0

SAID_MAX: Final = 8192
"""Characters of a failed process' standard error that are logged, the last ones: a traceback."""

KEPT: Final = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "HOME")
"""Variables that the process inherits: not HOLDMQ_…, which may hold secrets."""

_NAMES: Final = ("box",)
QUERIES: Final = Counter(
    "holdmq_console_queries_total",
    "Queries by outcome: ok, cut, refused, error, time, memory, ended, full, left.",
    ("box", "outcome"),
    registry=telemetry.METRICS,
)
SECONDS: Final = Histogram(
    "holdmq_console_query_seconds",
    "Time of a query from its turn to its answer.",
    _NAMES,
    registry=telemetry.METRICS,
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
WAITING: Final = Gauge(
    "holdmq_console_queries_waiting",
    "Queries in hand: the one that runs, and those in line.",
    _NAMES,
    registry=telemetry.METRICS,
)
STARTS: Final = Counter(
    "holdmq_console_query_processes_total",
    "Query processes started.",
    _NAMES,
    registry=telemetry.METRICS,
)


class BoxFullError(Exception):
    """As many queries wait as may."""


class QueryBox:
    """Queries over the tables below `tables_dir`, each in `memory_bytes`; `waiting_max` may be in hand.

    `name` is ``sql`` or ``page``, and the label of its metrics. The process starts with the first question,
    or by `get_ready`.
    """

    def __init__(self, name: str, tables_dir: Path, memory_bytes: int, waiting_max: int) -> None:
        self._name = name
        self._arguments = ("-m", "console.sql.process", str(tables_dir), str(memory_bytes))
        self._waiting_max = waiting_max
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._closed = False
        self._starting: asyncio.Task[None] | None = None

    def get_ready(self) -> None:
        """Have the process start, if there is none: a question is about to come. Returns at once."""
        if self._starting is None and not self._waiting and not self._closed:
            self._starting = asyncio.get_running_loop().create_task(self._get_ready())

    async def _get_ready(self) -> None:
        try:
            async with self._turn:
                # Whoever asks next is told why there is none.
                with contextlib.suppress(OSError):
                    await self._started()
        finally:
            self._starting = None

    async def ask(self, question: SqlQuestion) -> SqlReply:
        """Ask, when it is this question's turn. Whoever is cancelled ends the query with it.

        Raises BoxFullError when `waiting_max` questions are in hand.
        """
        if self._waiting >= self._waiting_max:
            self._count("full")
            raise BoxFullError(
                f"{self._waiting_max} queries are in hand (console.sql_waiting_max); try again soon"
            )
        self._waiting += 1
        WAITING.labels(self._name).inc()
        try:
            async with self._turn:
                began = time.monotonic()
                reply = await self._ask(question)
                SECONDS.labels(self._name).observe(time.monotonic() - began)
        except asyncio.CancelledError:
            self._count("left")
            raise
        finally:
            self._waiting -= 1
            WAITING.labels(self._name).dec()
        self._count("cut" if reply.outcome == "ok" and reply.message else reply.outcome)
        return reply

    async def close(self) -> None:
        """End the process, once the query in hand has ended; questions that wait or come later are refused.

        Who asks is to be cancelled before, which ends the query at once.
        """
        self._closed = True
        if self._starting is not None:
            await self._starting
        async with self._turn:
            await self._end()

    async def _ask(self, question: SqlQuestion) -> SqlReply:
        for _ in range(2):
            process = await self._started()
            if isinstance(process, SqlReply):
                return process
            try:
                async with asyncio.timeout(question.seconds + GRACE_S):
                    return await _exchange(process, question)
            except TimeoutError:
                await self._end()
                return SqlReply(
                    "time", b"", f"the query did not end after {question.seconds:g} s, and was killed"
                )
            except (asyncio.IncompleteReadError, ConnectionError):
                code = await process.wait()
                self._process = None
                if code not in (0, AT_DEADLINE):
                    await self._log_end(process)
                if code != 0:
                    return _ended(code, question)
                # It had just ended because nobody asked: the next one answers.
            except BaseException:
                await self._end()
                raise
        return SqlReply(
            "ended", b"", "the process that runs queries ended twice, without a failure: try again"
        )

    async def _started(self) -> asyncio.subprocess.Process | SqlReply:
        if self._closed:
            return SqlReply("ended", b"", "the console is stopping")
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # For `_log_end`: it may not write to a file, which the console's own may be. One that writes more
            # than goes into the pipe stands still, and is killed at its deadline.
            stderr=asyncio.subprocess.PIPE,
            env={
                **{name: os.environ[name] for name in KEPT if name in os.environ},
                # The default one reserves much more than it uses, which a limit cannot tell from use.
                "ARROW_DEFAULT_MEMORY_POOL": "system",
            },
            # Ctrl-C in a terminal is for the console: this process ends with its standard input.
            start_new_session=True,
        )
        STARTS.labels(self._name).inc()
        try:
            async with asyncio.timeout(START_S):
                said = await _read(self._process)
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            said = b""
        except BaseException:
            await self._end()
            raise
        process = self._process
        if said == READY:
            return process
        await self._end()
        await self._log_end(process)
        return SqlReply(
            "ended", b"", "the process that runs queries does not start; the console's log has the cause"
        )

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        if not self._closed:
            # It is in the middle of something, or nobody would end it.
            process.kill()
        try:
            async with asyncio.timeout(PARTING_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _log_end(self, process: asyncio.subprocess.Process) -> None:
        """Log how a process ended, and what it wrote to its standard error."""
        assert process.stderr is not None
        said = (await process.stderr.read()).decode(errors="replace").strip()[-SAID_MAX:]
        log.warning("a query process failed", box=self._name, code=process.returncode, said=said)

    def _count(self, outcome: str) -> None:
        QUERIES.labels(self._name, outcome).inc()


async def _exchange(process: asyncio.subprocess.Process, question: SqlQuestion) -> SqlReply:
    assert process.stdin is not None
    process.stdin.write(frame(question))
    with contextlib.suppress(ConnectionError):
        # Who ended is found out by reading, and with an exit code.
        await process.stdin.drain()
    return reply_of(await _read(process))


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    if length > REPLY_MAX:
        raise OSError(f"a reply of {length} bytes is none of ours")
    return await process.stdout.readexactly(length)


def _ended(code: int, question: SqlQuestion) -> SqlReply:
    if code == AT_DEADLINE:
        said = f"the query was stopped after {question.seconds:g} s (console.sql_seconds_max)"
        return SqlReply("time", b"", f"{said}; it could only be ended with its process")
    if code > 0:
        return SqlReply(
            "ended", b"", "the process that ran the query failed; the console's log has the cause"
        )
    return SqlReply(
        "ended",
        b"",
        "the query ended the process that ran it: most likely it took more memory than it may have "
        "(console.sql_memory_bytes)",
    )
