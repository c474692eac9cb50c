"""Latencies in an HDR histogram: microseconds, 3 significant figures, up to a minute."""

from __future__ import annotations

from typing import Any, Final

from hdrh.histogram import HdrHistogram

MAX_US: Final = 60_000_000
PERCENTILES: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)


class Latencies:
    """Counts of latencies; what is above a minute counts as a minute."""

    __slots__ = ("_histogram",)

    def __init__(self) -> None:
        self._histogram: Any = HdrHistogram(1, MAX_US, 3)

    def record(self, seconds: float, count: int = 1) -> None:
        """Add `count` latencies of `seconds`."""
        us = int(seconds * 1e6)
        self._histogram.record_value(1 if us < 1 else min(us, MAX_US), count)

    def encode(self) -> bytes:
        """Return the counts in HDR's own format, for `add`."""
        encoded: bytes = self._histogram.encode()
        return encoded

    def add(self, encoded: bytes) -> None:
        """Add the counts of another histogram."""
        self._histogram.decode_and_add(encoded)

    @property
    def count(self) -> int:
        """How many were recorded."""
        return int(self._histogram.get_total_count())

    def at(self, percentile: float) -> int:
        """Return the latency in µs that `percentile` percent are not above; 0 when there is none."""
        return int(self._histogram.get_value_at_percentile(percentile)) if self.count else 0

    def summary(self) -> dict[str, int | float]:
        """Return count, mean, percentiles and maximum, in µs."""
        if not self.count:
            return {"count": 0}
        shown: dict[str, int | float] = {
            "count": self.count,
            "mean": round(self._histogram.get_mean_value(), 1),
        }
        for percentile in PERCENTILES:
            shown[f"p{percentile:g}"] = self.at(percentile)
        shown["max"] = int(self._histogram.get_max_value())
        return shown

    def curve(self) -> list[tuple[float, int]]:
        """Return (percentile, µs) from 0 to where the counts end, denser towards 100."""
        if not self.count:
            return []
        points = [float(p) for p in range(0, 90, 2)]
        share = 0.1
        while share * self.count >= 1 and share > 1e-6:
            points += [100 - 100 * share * step for step in (1, 0.8, 0.6, 0.4, 0.2)]
            share /= 10
        return [(round(p, 7), self.at(p)) for p in points]
