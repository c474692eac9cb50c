"""Points in time as people write them on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from holdmq.errors import UsageError

TIME_HELP: Final = "as 2026-03-01T12:00 (local time, or with Z or +02:00), 15m, 2h, 3d ago, or ms since 1970"
_AGO: Final = re.compile(r"(\d{1,9})(s|m|h|d)\Z")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_MS_DIGITS_MIN: Final = 11
"""Digits from which a number is ms since the epoch: fewer would be before March 1973, or a year."""


def parse_time(text: str, now_ms: int) -> int:
    """Return a time in ms since the epoch: an ISO 8601 date or time, `15m` before now, or ms themselves.

    A time without a zone is local time. Raises UsageError.
    """
    ago = _AGO.match(text)
    if ago is not None:
        return max(0, now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    if text.isascii() and text.isdigit() and _MS_DIGITS_MIN <= len(text) <= 15:
        return int(text)
    try:
        return max(0, (datetime.fromisoformat(text).astimezone() - _EPOCH) // _MS)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{text!r} is no time; give it {TIME_HELP}") from None


def show_time(time_ms: int) -> str:
    """Return a time as text, in UTC, that `parse_time` reads."""
    return (_EPOCH + time_ms * _MS).isoformat(timespec="milliseconds").replace("+00:00", "Z")
