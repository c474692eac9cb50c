"""The clock of one worker: its sessions' deadlines, what is looked at each tick, and what once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from gateway.brokers.turn import Turn
from gateway.ground.wheel import TICK_S, Wheel
from gateway.session.session import CLOSED, Session

SECOND_S: Final = 1.0
"""How often the parent gets this worker's numbers, among other things."""


class WorkerClock:
    """Ticks from `begin` to `end`, and settles the turn behind each tick.

    `on_late` are told how late a tick is, the others the loop's time, in the order that they have here.
    """

    def __init__(
        self,
        wheel: Wheel[Session],
        turn: Turn,
        on_late: Sequence[Callable[[float], None]],
        on_tick: Sequence[Callable[[float], None]],
        on_second: Sequence[Callable[[float], None]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._wheel = wheel
        self._turn = turn
        self._on_late = on_late
        self._on_tick = on_tick
        self._on_second = on_second
        self._next_second = 0.0
        self._next_tick: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Tick from now on."""
        self._tick_after(self._loop.time())

    def end(self) -> None:
        """Stop: nothing ticks any more."""
        if self._next_tick is not None:
            self._next_tick.cancel()

    def _tick_after(self, now: float) -> None:
        self._next_tick = self._loop.call_later(TICK_S, self._tick, now + TICK_S)

    def _tick(self, due: float) -> None:
        now = self._loop.time()
        for late in self._on_late:
            late(now - due)
        for tick in self._on_tick:
            tick(now)
        self._meet_deadlines(now)
        if now >= self._next_second:
            self._next_second = now + SECOND_S
            for second in self._on_second:
                second(now)
        self._turn.settle()
        self._tick_after(now)

    def _meet_deadlines(self, now: float) -> None:
        for session in self._wheel.advance(now):
            if session.connection is not None:
                session.connection.handle(session.handle_deadline(now))
            if session.state != CLOSED:
                self._wheel.put(session)
