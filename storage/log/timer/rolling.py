"""Before a segment goes, the timers that wait in it are appended again, keeping origin and times.

Which ones those are is read from the bucket files, here, on a thread of its own that lives as long
as that takes; whether they still wait is the timer's thread to say, which also appends them. Source:
storage.md, Retention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread
from time import monotonic, sleep
from typing import Final

import numpy as np
import structlog

from holdmq.errors import StorageError
from storage.log.segments import Segment
from storage.log.timer.core.timer import NO_ROWS, Rows, pending_of
from storage.log.timer.files import BucketFiles

RECORDS: Final = 512
SIZE_BYTES: Final = 512 << 10
"""A batch of rolling: small beside a segment, so that it fits whatever is left."""
TIMEOUT_S: Final = 60.0
"""How long one answer may take: a disk that takes longer has other troubles."""
POLL_S: Final = 0.02
"""Between looks at timers that are just being released, and at what is being fsynced."""

log = structlog.get_logger("holdmq.storage")


class Roll:
    """A question to the timer's thread. `rows` None: write a checkpoint; the answer is its position.

    With rows: append again what still waits of them; the answer is the log position behind them, 0
    when none did, -1 when some are just being released: ask again.
    """

    __slots__ = ("answer", "rows")

    def __init__(self, rows: Rows | None) -> None:
        self.rows = rows
        self.answer: Future[int] = Future()


class Rolling:
    """`ask` puts a question to the timer; it raises StorageError when the timer has ended.

    `is_idle`: nothing waits, and the log below a position is known and of no more interest. Without a
    thread (`has_thread` False) each call of `before_delete` goes a step on, if the timer was stepped.
    """

    def __init__(
        self,
        files: BucketFiles,
        ask: Callable[[Roll], None],
        is_idle: Callable[[int], bool],
    ) -> None:
        self.failures = 0
        self.has_thread = True
        self._files = files
        self._ask = ask
        self._is_idle = is_idle
        self._thread: Thread | None = None
        self._free_end = -1
        self._steps: Iterator[Future[int] | None] | None = None
        self._awaited: Future[int] | None = None

    def before_delete(self, segment: Segment) -> bool:
        """Whether no timer needs this segment; False = not yet, and somebody sees to it. Never waits."""
        if segment.end <= self._free_end or self._is_idle(segment.end):
            return True
        if not self.has_thread:
            self._step(segment)
        elif self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._free, args=(segment,), name="timer-roll", daemon=True)
            self._thread.start()
        return segment.end <= self._free_end

    def _free(self, segment: Segment) -> None:
        try:
            self.roll(segment.start, segment.end)
        except (StorageError, OSError, TimeoutError) as error:
            self._note_failure(segment, error)
        else:
            self._free_end = segment.end

    def _step(self, segment: Segment) -> None:
        """Go on as far as the answers that are there allow."""
        if self._steps is None:
            self._steps = self._roll(segment.start, segment.end)
            self._awaited = None
        try:
            while self._awaited is None or self._awaited.done():
                self._awaited = next(self._steps)
                if self._awaited is None:
                    return
        except StopIteration:
            self._steps = None
            self._free_end = segment.end
        except (StorageError, OSError) as error:
            self._steps = None
            self._note_failure(segment, error)

    def _note_failure(self, segment: Segment, error: Exception) -> None:
        self.failures += 1
        log.warning("timers could not be appended again", segment=segment.start, reason=str(error))

    def pending_in(self, start: int, end: int) -> int:
        """How many timers wait in the log from `start` to `end`. Blocking.

        Raises StorageError when the timer has not come so far.
        """
        position = self._question(None).result(TIMEOUT_S)
        return sum(len(rows) for rows in self._waiting_in(start, end, position))

    def roll(self, start: int, end: int) -> None:
        """Append every timer that waits in the log from `start` to `end` again.

        Blocking; afterwards, and durably, none waits there. Raises StorageError when that cannot be.
        """
        deadline = monotonic() + TIMEOUT_S
        for awaited in self._roll(start, end):
            if awaited is not None:
                awaited.exception(TIMEOUT_S)
            elif monotonic() > deadline:
                raise StorageError("it takes too long", operation="roll", offset=start)
            else:
                sleep(POLL_S)

    def _roll(self, start: int, end: int) -> Iterator[Future[int] | None]:
        """The steps of `roll`: each gives the answer to wait for first, or None: a moment."""
        needed = 0
        while True:
            checkpoint = self._question(None)
            yield checkpoint
            position = checkpoint.result(0)
            if end <= position < needed:
                # The files, which say what waits, do not know yet what was rolled.
                yield None
                continue
            waiting = self._waiting_in(start, end, position)
            if not waiting:
                break
            for rows in waiting:
                for part in _parts(rows):
                    answer = self._question(part)
                    yield answer
                    needed = max(needed, answer.result(0))
            # What is just being released is known soon.
            yield None

    def _waiting_in(self, start: int, end: int, position: int) -> list[Rows]:
        """What the files say, bucket by bucket, after a checkpoint at `position`."""
        if position < end:
            raise StorageError(
                f"the timer knows the log up to {position} only, not to {end}", operation="roll", offset=start
            )
        found: list[Rows] = []
        for minute in self._files.minutes.tolist():
            parts = list(self._files.read(minute))
            rows = pending_of(np.concatenate(parts)) if parts else NO_ROWS
            rows = rows[(rows["position"] >= start) & (rows["position"] < end)]
            if len(rows):
                found.append(rows)
        return found

    def _question(self, rows: Rows | None) -> Future[int]:
        question = Roll(rows)
        self._ask(question)
        return question.answer


def _parts(rows: Rows) -> list[Rows]:
    """Rows in parts of one batch each."""
    parts: list[Rows] = []
    first = size = 0
    for index, row_size in enumerate(rows["size"].tolist()):
        if index > first and (index - first >= RECORDS or size + row_size > SIZE_BYTES):
            parts.append(rows[first:index])
            first, size = index, 0
        size += row_size
    if first < len(rows):
        parts.append(rows[first:])
    return parts
