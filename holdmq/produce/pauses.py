"""How long who was refused, or not answered, waits before the next attempt."""

from __future__ import annotations

from typing import Final

BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 1.0
_ATTEMPTS_MAX: Final = 16
"""More would double what is far above the bound."""


def pause_s(attempts: int, retry_after_ms: int, phase: float) -> float:
    """The pause after so many `attempts` before this one: doubled each time, up to BACKOFF_MAX_S.

    Never shorter than `retry_after_ms`, what the broker asked for. `phase` (0 to 1) keeps those who were
    refused together from coming again together.
    """
    backoff_s = min(BACKOFF_MIN_S * 2.0 ** min(attempts, _ATTEMPTS_MAX), BACKOFF_MAX_S)
    return max(backoff_s * (1 - phase / 2), retry_after_ms / 1000 * (1 + phase / 2))
