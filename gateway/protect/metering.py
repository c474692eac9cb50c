"""What clients send, measured while somebody asks: for their rates, and under overload for who is loudest.

A worker has a Meter only then; without one a read costs a test for None.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.ground.rates import Pace
from gateway.session.events import Event
from gateway.session.session import CLOSED
from holdmq.mqtt import PublishRun, ReasonCode

if TYPE_CHECKING:
    from gateway.edge.connection import Shell
    from gateway.worker.worker import Worker

OWED_MAX_S: Final = 10.0
"""How long a client may have to wait for its rate, else it is closed: as long as most wait for an answer."""


class Meter:
    """Counts messages and bytes of each read; whoever is over its rate is not read for the time owed."""

    def __init__(self, worker: Worker, messages_per_s: float, bytes_per_s: float) -> None:
        self._worker = worker
        self._rates = messages_per_s, bytes_per_s
        self._paces: dict[Shell, Pace] = {}
        """Those that have published."""
        self._owing: list[tuple[float, int, Shell]] = []
        self._order = itertools.count()
        self.noise: dict[Shell, int] | None = None
        """Bytes by client since somebody began to listen; None = nobody does."""

    @property
    def has_rates(self) -> bool:
        """Whether clients have a rate to keep."""
        return any(self._rates)

    def received(self, shell: Shell, size_bytes: int, events: Sequence[Event]) -> bool:
        """A read of so many bytes brought these events; whether they are to be handled."""
        if self.noise is not None:
            self.noise[shell] = self.noise.get(shell, 0) + size_bytes
        if not self.has_rates or shell.session.state == CLOSED:
            return True
        messages = 0
        for event in events:
            if type(event) is PublishRun:
                messages += len(event.messages)
        now = self._worker.now()
        pace = self._paces.get(shell)
        if pace is None:
            if not messages:
                return True
            pace = self._paces[shell] = Pace(*self._rates, now)
        owed_s = pace.take(messages, size_bytes, now)
        if owed_s > OWED_MAX_S:
            shell.close(
                ReasonCode.MESSAGE_RATE_TOO_HIGH,
                "message_rate",
                f"{messages} messages in {size_bytes} bytes are {owed_s:.0f} s of what this client may send",
            )
            return False
        if owed_s:
            shell.pause_for_rate()
            self._worker.counters.rate_paused_total += 1
            heapq.heappush(self._owing, (now + owed_s, next(self._order), shell))
        return True

    def tick(self, now: float) -> None:
        """Read those again that have waited long enough."""
        owing = self._owing
        while owing and owing[0][0] <= now:
            heapq.heappop(owing)[2].rate_is_kept()

    def forget(self, shell: Shell) -> None:
        """A connection is gone."""
        self._paces.pop(shell, None)
        if self.noise is not None:
            self.noise.pop(shell, None)
