"""Token buckets, sans-IO: how often something may happen, with a burst of one second's worth."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""How much may come at once, in seconds of the rate: what a device saved up behind a slow link."""

ALLOWANCES_MAX: Final = 10_000
"""Names that an Allowances remembers, some 200 bytes each."""


class Bucket:
    """Fills with `rate` per second up to `burst_s` seconds' worth, at least 1."""

    __slots__ = ("_at", "_burst", "_level", "rate")

    def __init__(self, rate: float, now: float, burst_s: float = BURST_S) -> None:
        self.rate = rate
        self._burst = max(1.0, rate * burst_s)
        self._level = self._burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take so much, whether it is there or not; return the seconds until the debt is paid, 0 = none."""
        level = self._level = self._filled(now) - amount
        return 0.0 if level >= 0 else -level / self.rate

    def try_take(self, now: float) -> bool:
        """Take 1 if it is there."""
        if self._filled(now) < 1:
            return False
        self._level -= 1
        return True

    def _filled(self, now: float) -> float:
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self.rate)
        self._at = now
        return self._level


class Allowances:
    """A Bucket of `per_minute` for each name, which may be used up at once.

    A name that was not seen has all of it. At most ALLOWANCES_MAX are remembered: past it who was seen first
    is new again.
    """

    __slots__ = ("_buckets", "_per_minute")

    def __init__(self, per_minute: float) -> None:
        self._per_minute = per_minute
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def try_take(self, name: str, now: float) -> bool:
        """Take 1 for this name if it is there."""
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= ALLOWANCES_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[name] = Bucket(self._per_minute / 60, now, 60.0)
        return bucket.try_take(now)


class Pace:
    """What one client may send: messages and bytes per second, 0 = no limit."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages_per_s: float, bytes_per_s: float, now: float) -> None:
        self._messages = Bucket(messages_per_s, now) if messages_per_s else None
        self._bytes = Bucket(bytes_per_s, now) if bytes_per_s else None

    def take(self, messages: int, size_bytes: int, now: float) -> float:
        """Count what came; return for how many seconds its sender is not to be read."""
        owed = 0.0
        if self._messages is not None:
            owed = self._messages.take(messages, now)
        if self._bytes is not None:
            owed = max(owed, self._bytes.take(size_bytes, now))
        return owed
