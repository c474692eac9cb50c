"""Messages that leave a shared group's queues: at their last attempt, or given back for long.

A message is copied to the group's retry topic or dead letters first, and then done in its queue: so it
never holds the floor for long, and is never lost between the two.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import structlog

from broker.shared_groups.core.members import Moving
from broker.shared_groups.core.shared import Shared
from broker.shared_groups.journal import SharedJournal
from broker.shared_groups.starts import is_volatile
from holdmq.errors import Code, HoldMQError, StorageError
from holdmq.wire.move_headers import TO_DEAD_LETTERS

MOVES_OUT_MAX: Final = 1_000
"""Moves asked for and not yet told as done; the others wait with a few words each."""
MOVE_RETRY_S: Final = 1.0
_LOST: Final = frozenset((Code.MESSAGE_UNKNOWN, Code.CORRUPT, Code.KIND_UNFIT, Code.QUEUE_UNKNOWN))
"""Why a message can never be moved: it is gone, damaged, or of a temporary topic or group."""

log = structlog.get_logger("holdmq.broker")


class Move(Protocol):
    """Copies a message to its group's retry topic or dead letters (broker.retry.moves)."""

    def __call__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        attempts: int,
        delay_ms: int | None,
        done: Callable[[Any], None],
        *,
        level: int = 0,
    ) -> None:
        """`done` gets what became of it once the copy is in the log, or an error: nothing was moved then."""


class SharedMoves:
    """Moves of all shared groups. `move` makes the copies; `settle` does what a step led to."""

    def __init__(self, core: Shared, journal: SharedJournal, move: Move, settle: Callable[[], None]) -> None:
        self.is_draining = False
        self.lost = 0
        self._core = core
        self._journal = journal
        self._move = move
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Moving] = deque()
        self._out = 0

    def __len__(self) -> int:
        """Messages that are on their way."""
        return len(self._waiting) + self._out

    def start(self, moving: list[Moving]) -> None:
        """Move these, MOVES_OUT_MAX at a time."""
        self._waiting.extend(moving)
        self.start_more()

    def start_more(self) -> None:
        """Begin as many as there is room for."""
        while self._waiting and self._out < MOVES_OUT_MAX and not self.is_draining:
            moving = self._waiting.popleft()
            if moving.is_over:
                continue
            key = moving.queue.key
            self._out += 1
            self._move(
                *key, moving.offset, moving.attempts, moving.delay_ms or None, partial(self._moved, moving),
                level=0 if moving.delay_ms else TO_DEAD_LETTERS,
            )  # fmt: skip

    def _moved(self, moving: Moving, outcome: object) -> None:
        """The copy is in the log, or there is none."""
        self._out -= 1
        queue = moving.queue
        if isinstance(outcome, HoldMQError):
            if outcome.code not in _LOST:
                self._core.move_failed(moving, self._loop.time() + MOVE_RETRY_S)
                self._settle()
                return
            self.lost += 1
            log.error(
                "a message of a shared group cannot be moved, and is given up",
                group=queue.key.group,
                topic=queue.key.topic,
                queue_id=queue.key.queue_id,
                offset=moving.offset,
                reason=str(outcome),
            )
        if queue.is_gone or is_volatile(queue):
            self._core.moved(moving)
        else:
            self._journal.news.acknowledged(queue, moving.offset, 1)
            self._journal.write(partial(self._written, moving))
        self._settle()

    def _written(self, moving: Moving, error: StorageError | None) -> None:
        if error is None:
            self._core.moved(moving)
        else:
            # The copy is known to whoever made it: asked again, it says so.
            self._core.move_failed(moving, self._loop.time() + MOVE_RETRY_S)
        self._settle()
