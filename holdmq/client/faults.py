"""Which brokers a producer avoids for a while: those that are slow, refuse, or do not answer.

After each answer a broker rests as long as its latency says, as in RocketMQ's MQFaultStrategy::

    latency of an answer ≥   50 ms   100 ms   550 ms   1.8 s   3 s   5 s   15 s
    rest                     0       0        2 s      5 s     6 s   10 s  30 s

A refusal or a lost connection counts as FAILED_LATENCY_MS, BUSY as BUSY_LATENCY_MS, and silence as a
latency that grows. Messages without a key go to brokers that do not rest, as long as there is one.
Pure: time is an argument, in seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

LATENCIES_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15000)
RESTS_MS: Final = (0, 0, 2000, 5000, 6000, 10000, 30000)
FAILED_LATENCY_MS: Final = 10_000
BUSY_LATENCY_MS: Final = 550
SILENT_MIN_S: Final = LATENCIES_MS[2] / 1000
"""From this silence on a broker rests, though it may still answer."""


def rest_ms(latency_ms: float) -> int:
    """How long a broker of this latency rests."""
    index = bisect_right(LATENCIES_MS, latency_ms)
    return RESTS_MS[index - 1] if index else 0


class BrokerState:
    """One broker as a producer sees it."""

    __slots__ = ("is_away", "latency_ms", "rest_until", "silent_since", "unanswered")

    def __init__(self) -> None:
        self.latency_ms = 0.0
        self.rest_until = 0.0
        self.unanswered = 0
        self.silent_since: float | None = None
        """Since when a request waits and nothing came; None while nothing waits."""
        self.is_away = False
        """Its keys go to the next in rank: given and taken back by the sender, with its lanes."""


class Faults:
    """The states of all brokers. `rests` counts how often one began to rest."""

    def __init__(self) -> None:
        self.rests = 0
        self._brokers: dict[str, BrokerState] = {}

    def of(self, broker: str) -> BrokerState:
        """The state of a broker; a new one is a good one."""
        state = self._brokers.get(broker)
        if state is None:
            state = self._brokers[broker] = BrokerState()
        return state

    def items(self) -> list[tuple[str, BrokerState]]:
        """All states by name."""
        return list(self._brokers.items())

    def sent(self, broker: str, now: float) -> None:
        """A request is on its way."""
        state = self.of(broker)
        state.unanswered += 1
        if state.silent_since is None:
            state.silent_since = now

    def answered(self, broker: str, latency_s: float, now: float) -> None:
        """Note that a broker answered, whatever it said."""
        state = self.of(broker)
        state.unanswered -= 1
        state.silent_since = now if state.unanswered > 0 else None
        self.observe(broker, latency_s * 1000, now)

    def unheard(self, broker: str) -> None:
        """Note that a request was given up without an answer; the broker stays silent."""
        self.of(broker).unanswered -= 1

    def observe(self, broker: str, latency_ms: float, now: float) -> None:
        """The broker showed this latency: it rests from now on as the table says, or not any more."""
        state = self.of(broker)
        state.latency_ms = latency_ms
        pause_ms = rest_ms(latency_ms)
        if pause_ms and state.rest_until <= now:
            self.rests += 1
        state.rest_until = now + pause_ms / 1000 if pause_ms else 0.0

    def connected(self, broker: str) -> None:
        """The broker answered a new connection's HELLO: it is there."""
        state = self.of(broker)
        state.silent_since = None
        state.is_away = False
        state.rest_until = 0.0

    def silence_s(self, broker: str, now: float) -> float:
        """How long a request has been waiting without any answer from this broker."""
        since = self.of(broker).silent_since
        return 0.0 if since is None else now - since

    def slept(self, pause_s: float) -> None:
        """This process itself did not run for so long: nobody else is to blame for it."""
        for state in self._brokers.values():
            if state.silent_since is not None:
                state.silent_since += pause_s

    def is_resting(self, broker: str, now: float) -> bool:
        """Whether to avoid a broker now."""
        state = self._brokers.get(broker)
        return state is not None and (state.is_away or state.rest_until > now)

    def is_away(self, broker: str) -> bool:
        """Whether a broker's keys go elsewhere."""
        state = self._brokers.get(broker)
        return state is not None and state.is_away
