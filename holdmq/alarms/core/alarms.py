"""Which alarms are raised, and when somebody is told.

An alarm is raised when its value reaches the threshold, and over when the value has fallen below
RECOVER_SHARE of it, so that a value that swings around the threshold is one alarm. A notice is due when it is
raised and after every cool-down while it lasts; the cool-down outlives the alarm, so that one that comes and
goes is told once in it. Who was told that it is raised is told once that it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

RECOVER_SHARE: Final = 0.8
ALARMS_MAX: Final = 10_000
"""Alarms that are raised or in their cool-down; with more, nobody reads them. Others are counted."""
OVER_MAX: Final = 500
"""Alarms that are over and still listed, the newest: a night of them."""


class AlarmKey(NamedTuple):
    """What an alarm is about: `kind` as in holdmq.wire.statistics_headers, and the name of the thing."""

    kind: str
    name: str


class Reading(NamedTuple):
    """What was found: a value in the threshold's unit, and a sentence for people."""

    key: AlarmKey
    value: int
    threshold: int
    text: str


class State(Enum):
    """What a notice says of its alarm."""

    RAISED = "raised"
    LASTS = "lasts"
    OVER = "over"


class Notice(NamedTuple):
    """Something to tell people. Times are ms since the epoch."""

    state: State
    key: AlarmKey
    value: int
    threshold: int
    peak: int
    since_ms: int
    at_ms: int
    text: str


class Alarm:
    """One alarm that is raised."""

    __slots__ = ("is_told", "key", "peak", "reading", "since_ms")

    def __init__(self, reading: Reading, since_ms: int) -> None:
        self.key = reading.key
        self.reading = reading
        self.peak = reading.value
        self.since_ms = since_ms
        self.is_told = False

    def notice(self, state: State, value: int, at_ms: int) -> Notice:
        reading = self.reading
        return Notice(
            state, self.key, value, reading.threshold, self.peak, self.since_ms, at_ms, reading.text
        )


class Alarms:
    """All alarms of one process. `now` is a clock in seconds that never goes back, `now_ms` the wall clock.

    `is_repeated` False: one that lasts is told once, when it is raised.
    """

    def __init__(self, cooldown_s: float, alarms_max: int = ALARMS_MAX, *, is_repeated: bool = True) -> None:
        self.raised: dict[AlarmKey, Alarm] = {}
        self.over: deque[tuple[Alarm, int]] = deque(maxlen=OVER_MAX)
        """Alarms that were raised, and when each was over (ms since the epoch)."""
        self.raised_total = 0
        self.refused = 0
        self.cooldown_s = cooldown_s
        self._alarms_max = alarms_max
        self._is_repeated = is_repeated
        self._told_at: dict[AlarmKey, float] = {}

    def update(self, readings: Iterable[Reading], now: float, now_ms: int) -> list[Notice]:
        """Take a round of readings; what is not in it is as if its value were 0. Returns what to tell."""
        notices: list[Notice] = []
        found: dict[AlarmKey, Reading] = {}
        for reading in readings:
            found[reading.key] = reading
        for alarm in list(self.raised.values()):
            known = found.get(alarm.key)
            value = 0 if known is None else known.value
            threshold = alarm.reading.threshold if known is None else known.threshold
            if value < threshold * RECOVER_SHARE:
                del self.raised[alarm.key]
                self.over.append((alarm, now_ms))
                if alarm.is_told:
                    notices.append(alarm.notice(State.OVER, value, now_ms))
        self._told_at = {
            key: at for key, at in self._told_at.items() if key in self.raised or at + self.cooldown_s > now
        }
        known_keys = {*self.raised, *self._told_at}
        for reading in found.values():
            notices += self._take(reading, known_keys, now, now_ms)
        return notices

    def resume(self, reading: Reading, since_ms: int) -> None:
        """Hold an alarm that another process, or this one before its start, raised and told."""
        alarm = self.raised[reading.key] = Alarm(reading, since_ms)
        alarm.is_told = True

    def _take(self, reading: Reading, known_keys: set[AlarmKey], now: float, now_ms: int) -> list[Notice]:
        alarm = self.raised.get(reading.key)
        if alarm is None:
            if reading.value < reading.threshold:
                return []
            if reading.key not in known_keys and len(known_keys) >= self._alarms_max:
                self.refused += 1
                return []
            known_keys.add(reading.key)
            alarm = self.raised[reading.key] = Alarm(reading, now_ms)
            self.raised_total += 1
        alarm.reading = reading
        alarm.peak = max(alarm.peak, reading.value)
        if alarm.is_told and not self._is_repeated:
            return []
        if now - self._told_at.get(alarm.key, float("-inf")) < self.cooldown_s:
            return []
        state = State.LASTS if alarm.is_told else State.RAISED
        alarm.is_told = True
        self._told_at[alarm.key] = now
        return [alarm.notice(state, reading.value, now_ms)]
