"""What clients send, measured while somebody asks: for their rates, and under overload for who is loudest.

A worker has a Meter only then; without one a read costs a test for None.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.ground.counters import Counters
from gateway.session.events import Event
from gateway.session.session import CLOSED, Session
from holdmq.mqtt import PublishRun, ReasonCode
from holdmq.quotas.buckets import Pace

OWED_MAX_S: Final = 10.0
"""How long a client may have to wait for its rate, else it is closed: as long as most wait for an answer."""


class MeteredConnection(Protocol):
    """A connection whose reads are measured, and which may be asked to wait."""

    def __hash__(self) -> int:
        """Connections are told apart as objects."""

    @property
    def session(self) -> Session:
        """The session that it carries."""

    def close(self, reason_code: int, reason: str, sentence: str) -> None:
        """Close from this side."""

    def pause_for_rate(self) -> None:
        """Do not read until the client's rate is kept."""

    def rate_is_kept(self) -> None:
        """Read again: the client has waited for its rate."""

    def pause_for_quota(self) -> None:
        """Do not read: the quota of its user is used up."""

    def quota_has_room(self) -> None:
        """Read again: what its user may send has come back."""

    def quota_is_other(self) -> None:
        """Read again as if nothing had been: its user may send another amount now."""

    def pause_for_overload(self) -> None:
        """Do not read: others are to be served."""

    def overload_is_over(self) -> None:
        """Read again: others have been served."""


class SharedRates(Protocol):
    """Rates that many clients share, as they are of one user or tenant."""

    @property
    def has_rates(self) -> bool:
        """Whether anybody has a rate to keep."""

    def concern(self, connection: MeteredConnection) -> bool:
        """Whether this client has a rate to keep with others."""

    def took(self, connection: MeteredConnection, messages: int, size_bytes: int, now: float) -> None:
        """Count what a client has published; it is paused if that was too much."""

    def forget(self, connection: MeteredConnection) -> None:
        """A connection is gone."""

    def tick(self, now: float) -> None:
        """Read those again for whom there is room."""


class Meter:
    """Counts messages and bytes of each read; whoever is over its rate is not read for the time owed."""

    def __init__(
        self,
        counters: Counters,
        now: Callable[[], float],
        messages_per_s: float,
        bytes_per_s: float,
        quotas: SharedRates,
    ) -> None:
        self._quotas = quotas
        self._counters = counters
        self._now = now
        self._rates = messages_per_s, bytes_per_s
        self._paces: dict[MeteredConnection, Pace] = {}
        """Those that have published."""
        self._owing: list[tuple[float, int, MeteredConnection]] = []
        self._order = itertools.count()
        self.noise: dict[MeteredConnection, int] | None = None
        """Bytes by client since somebody began to listen; None = nobody does."""

    @property
    def has_rates(self) -> bool:
        """Whether clients have a rate to keep."""
        return any(self._rates)

    def measures(self, connection: MeteredConnection) -> bool:
        """Whether what this client sends is to be measured: nobody pays for a quota of another one."""
        return self.noise is not None or self.has_rates or self._quotas.concern(connection)

    def received(self, connection: MeteredConnection, size_bytes: int, events: Sequence[Event]) -> bool:
        """A read of so many bytes brought these events; whether they are to be handled."""
        if self.noise is not None:
            self.noise[connection] = self.noise.get(connection, 0) + size_bytes
        has_quotas = self._quotas.has_rates
        if not (self.has_rates or has_quotas) or connection.session.state == CLOSED:
            return True
        messages = 0
        for event in events:
            if type(event) is PublishRun:
                messages += len(event.messages)
        now = self._now()
        if has_quotas and messages:
            self._quotas.took(connection, messages, size_bytes, now)
        if not self.has_rates:
            return True
        pace = self._paces.get(connection)
        if pace is None:
            if not messages:
                return True
            pace = self._paces[connection] = Pace(*self._rates, now)
        owed_s = pace.take(messages, size_bytes, now)
        if owed_s > OWED_MAX_S:
            connection.close(
                ReasonCode.MESSAGE_RATE_TOO_HIGH,
                "message_rate",
                f"{messages} messages in {size_bytes} bytes are {owed_s:.0f} s of what this client may send",
            )
            return False
        if owed_s:
            connection.pause_for_rate()
            self._counters.rate_paused_total += 1
            heapq.heappush(self._owing, (now + owed_s, next(self._order), connection))
        return True

    def tick(self, now: float) -> None:
        """Read those again that have waited long enough."""
        owing = self._owing
        while owing and owing[0][0] <= now:
            heapq.heappop(owing)[2].rate_is_kept()

    def forget(self, connection: MeteredConnection) -> None:
        """A connection is gone."""
        self._paces.pop(connection, None)
        if self.noise is not None:
            self.noise.pop(connection, None)


class Metering:
    """Has a `meter` while clients have rates to keep, or somebody listens to who is loudest; else None.

    `quotas` are rates that clients share.
    """

    def __init__(
        self,
        counters: Counters,
        now: Callable[[], float],
        messages_per_s: float,
        bytes_per_s: float,
        quotas: SharedRates,
    ) -> None:
        self._counters = counters
        self._now = now
        self._quotas = quotas
        self.meter: Meter | None = None
        self.reconfigure(messages_per_s, bytes_per_s)

    def reconfigure(self, messages_per_s: float, bytes_per_s: float) -> None:
        """Take other rates: who waits for the old ones is read again, and everybody begins anew."""
        before = self.meter
        noise = None if before is None else before.noise
        self.meter = None
        if messages_per_s or bytes_per_s or noise is not None or self._quotas.has_rates:
            self.meter = self._made(messages_per_s, bytes_per_s)
            self.meter.noise = noise
        if before is not None:
            before.tick(float("inf"))

    def listen_for_noise(self, is_wanted: bool) -> None:
        """Measure what each client sends, or not any more."""
        if is_wanted and self.meter is None:
            self.meter = self._made(0, 0)
        if self.meter is not None:
            self.meter.noise = {} if is_wanted else None
            self._drop_idle()

    def forget(self, connection: MeteredConnection) -> None:
        """A connection is gone."""
        if self.meter is not None:
            self.meter.forget(connection)
        self._quotas.forget(connection)

    def tick(self, now: float) -> None:
        """Read those again that have waited long enough, if there are any."""
        self._quotas.tick(now)
        if self._quotas.has_rates:
            if self.meter is None:
                self.meter = self._made(0, 0)
        elif self.meter is not None:
            self._drop_idle()
        if self.meter is not None:
            self.meter.tick(now)

    def _made(self, messages_per_s: float, bytes_per_s: float) -> Meter:
        return Meter(self._counters, self._now, messages_per_s, bytes_per_s, self._quotas)

    def _drop_idle(self) -> None:
        """Have no meter any more if it measures for nobody."""
        meter = self.meter
        if meter is not None and not meter.has_rates and meter.noise is None and not self._quotas.has_rates:
            self.meter = None
