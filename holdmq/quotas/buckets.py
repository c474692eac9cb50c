"""Token buckets, sans-IO: how often something may happen, with a burst of one second's worth."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""How much may come at once, in seconds of the rate: what a device saved up behind a slow link."""


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

    def left_s(self, now: float) -> float:
        """What is there, in seconds of the rate; below 0 = a debt."""
        return self._filled(now) / self.rate

    def empty_until(self, then: float) -> None:
        """Have nothing to give until `then`, and fill from then on; a debt stays."""
        self._level = min(self._level, 0.0)
        self._at = max(self._at, then)

    def _filled(self, now: float) -> float:
        if now > self._at:
            self._level = min(self._burst, self._level + (now - self._at) * self.rate)
            self._at = now
        return self._level


class Pace:
    """What somebody may send: messages and bytes per second, 0 = no limit."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages_per_s: float, bytes_per_s: float, now: float) -> None:
        self._messages = Bucket(messages_per_s, now) if messages_per_s else None
        self._bytes = Bucket(bytes_per_s, now) if bytes_per_s else None

    def take(self, messages: float, size_bytes: float, now: float) -> float:
        """Count what came; return for how many seconds its sender is not to be read."""
        owed = 0.0
        if self._messages is not None:
            owed = self._messages.take(messages, now)
        if self._bytes is not None:
            owed = max(owed, self._bytes.take(size_bytes, now))
        return owed

    def owed_s(self, now: float) -> float:
        """The seconds until what was taken is paid, 0 = nothing is owed."""
        return self.take(0, 0, now)

    def empty_until(self, then: float) -> None:
        """Have nothing to give until `then`, and fill from then on; a debt stays."""
        for bucket in (self._messages, self._bytes):
            if bucket is not None:
                bucket.empty_until(then)

    def left_s(self, now: float) -> float:
        """For how many seconds' worth there is room, by the scarcer of both; below 0 = a debt."""
        left = [bucket.left_s(now) for bucket in (self._messages, self._bytes) if bucket is not None]
        return min(left, default=BURST_S)

    def cost_s(self, messages: float, size_bytes: float) -> float:
        """How many seconds of what may be sent this is."""
        cost = 0.0
        if self._messages is not None:
            cost = messages / self._messages.rate
        if self._bytes is not None:
            cost = max(cost, size_bytes / self._bytes.rate)
        return cost
