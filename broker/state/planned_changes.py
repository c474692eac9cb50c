"""Changes of a table that is kept in a file: planned on what is there, written, and only then made.

Those that are asked for while a write is under way go into the next one together, each planned on what the
one before it left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import structlog

from broker.state.state_file import Done, StateFile
from holdmq.errors import BusyError, HoldMQError

RETRY_AFTER_MS = 500

S = TypeVar("S")
log = structlog.get_logger("holdmq.broker")

Plan = Callable[[S], None]
"""Changes a stage; raises HoldMQError, and leaves it as it was, when it must not."""


class PlannedChanges(Generic[S]):
    """Runs plans on a stage, a copy of the table as it will be, and keeps the table's file.

    `content(stage)` is what the file is to hold and its version, None when nothing durable changed.
    `apply(stage)` makes the changes once they are durable. `changes_max` bounds those that wait.
    """

    def __init__(
        self,
        file: StateFile,
        stage: Callable[[], S],
        content: Callable[[S], tuple[dict[str, Any], int] | None],
        apply: Callable[[S], None],
        changes_max: int,
    ) -> None:
        self.file = file
        self._stage = stage
        self._content = content
        self._apply = apply
        self._changes_max = changes_max
        self._waiting: list[tuple[Plan[S], Done]] = []
        self._is_planning = False
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Changes that wait for the file."""
        return len(self._waiting)

    def submit(self, plan: Plan[S], done: Done, *, is_bounded: bool = True) -> None:
        """Make a change; `plan` may raise HoldMQError. `done` is called once, perhaps before this returns.

        Raises BusyError when `changes_max` wait; not for the broker's own changes (`is_bounded` False).
        """
        if is_bounded and len(self._waiting) >= self._changes_max:
            raise BusyError(
                f"{self._changes_max} changes wait to be written to {self.file.path.name}", RETRY_AFTER_MS
            )
        self._waiting.append((plan, done))
        self._go_on()

    def close(self) -> None:
        """Finish the write under way (blocking); what waits behind it is refused."""
        self._is_closed = True
        self.file.close()

    def _go_on(self) -> None:
        while self._waiting and not self.file.is_saving and not self._is_planning:
            waiting, self._waiting = self._waiting, []
            stage = self._stage()
            planned: list[Done] = []
            self._is_planning = True
            try:
                for plan, done in waiting:
                    try:
                        plan(stage)
                    except HoldMQError as error:
                        done(error)
                    else:
                        planned.append(done)
            finally:
                self._is_planning = False
            self._carry_out(stage, planned)

    def _carry_out(self, stage: S, planned: list[Done]) -> None:
        durable = self._content(stage)
        if durable is None:
            self._end(stage, planned, None)
        elif self._is_closed:
            self._end(stage, planned, BusyError("the broker is ending; ask again later", RETRY_AFTER_MS))
        else:

            def written(error: HoldMQError | None) -> None:
                self._end(stage, planned, error)
                self._go_on()

            self.file.save(*durable, written)

    def _end(self, stage: S, planned: list[Done], error: HoldMQError | None) -> None:
        if error is None:
            self._apply(stage)
        else:
            log.error(
                "changes are not made", file=self.file.path.name, changes=len(planned), reason=str(error)
            )
        for done in planned:
            done(error)
