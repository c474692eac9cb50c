"""Reads the wall clock for all rooms."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
