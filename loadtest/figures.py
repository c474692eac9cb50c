"""Figures of many measurements."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """Return what `share` (0 to 1) of values that are in order do not exceed; NaN for none."""
    if not sorted_values:
        return float("nan")
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def show_ms(times_s: Sequence[float], *shares: float) -> str:
    """Return quantiles and the maximum of times, in ms, as a text."""
    ordered = sorted(times_s)
    shown = [f"p{share * 100:g} {quantile(ordered, share) * 1e3:.2f}" for share in shares]
    return f"{', '.join(shown)}, max {quantile(ordered, 1) * 1e3:.2f} ms"
