"""How often each of many may do something, sans-IO: a bucket for each name."""

from __future__ import annotations

from typing import Final

from holdmq.quotas.buckets import Bucket

ALLOWANCES_MAX: Final = 10_000
"""Names that an Allowances remembers, some 200 bytes each."""


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
