"""The process that runs queries: ``python -m console.sql.process``, started by `console.sql.box`.

A query can take all memory that its process may have, or loop inside DuckDB where no interruption reaches
it: so it has a process of its own, whose memory is limited, which cannot write a file, and which the kernel
ends at the deadline. It has none of the console's credentials. It ends when its standard input does, and by
itself when nothing was asked for `IDLE_S`.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Final

from console.sql.engine import BODIES, LINES, Engine, QueryError, StatementBounds
from console.sql.questions import LENGTH, READY, SqlQuestion, SqlReply, frame, question_of
from console.sql.reports import REPORTS

IDLE_S: Final = 300.0
"""A process that nobody asks gives its memory back (some 150 MB); the next question starts another."""

GRACE_S: Final = 1.0
"""From the interruption to the kill: what DuckDB does between two looks at the interruption takes ms."""

HEAP_BESIDE: Final = 2
"""So many times DuckDB's memory: results, files being read, what DuckDB does not count."""


def main() -> int:
    """Answer questions until the console ends; arguments: the tables' directory, bytes of memory."""
    engine = Engine(Path(sys.argv[1]), int(sys.argv[2]))
    _limit(int(sys.argv[2]))
    os.nice(5)
    _write(LENGTH.pack(len(READY)) + READY)
    while True:
        if not select.select([0], [], [], IDLE_S)[0]:
            return 0
        head = _read(LENGTH.size)
        if len(head) < LENGTH.size:
            return 0
        reply = answer(engine, question_of(_read(LENGTH.unpack(head)[0])))
        _write(frame(reply))
        if reply.outcome == "memory":
            # What is left of the heap after that is anybody's guess.
            return 0


def answer(engine: Engine, question: SqlQuestion) -> SqlReply:
    """Return what comes of a question; ends the process when that takes longer than it may."""
    signal.setitimer(signal.ITIMER_REAL, question.seconds + GRACE_S)
    try:
        bounds = StatementBounds(question.seconds, question.rows_max, question.bytes_max)
        if question.kind == "sql":
            result = engine.select(str(question.arguments["sql"]), bounds, LINES[question.form])
            return SqlReply("ok", BODIES[question.form](result), result.notice)
        body, notice = REPORTS[question.kind](engine, bounds, question.form, **question.arguments)
    except QueryError as error:
        return SqlReply(error.outcome, b"", str(error))
    except MemoryError:
        return SqlReply(
            "memory", b"", "the query needs more memory than it may have (console.sql_memory_bytes)"
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return SqlReply("ok", body, notice)


def _limit(memory_bytes: int) -> None:
    """Bound what this process may have from now on: memory, files written, traces of a crash."""
    held = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            held = int(line.split()[1]) << 10
    heap = held + HEAP_BESIDE * memory_bytes + (256 << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (heap, heap))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(size: int) -> bytes:
    """Read `size` bytes of the standard input; fewer at its end."""
    parts = []
    while size and (part := os.read(0, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(raw: bytes) -> None:
    view = memoryview(raw)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(0)
