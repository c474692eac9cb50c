"""Delayed messages: how a producer says when one appears in its queue.

By a delay, by a level of the brokers' table, or by a moment. Delays are counted from when the broker takes
the message, by the broker's clock; a moment is compared with that clock too. See docs/delay.md.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

from holdmq.errors import UsageError
from holdmq.wire.move_headers import DELAY_LEVELS_MS

DUE_MAX_MS: Final = 1 << 53
"""285,000 years: no horizon, but a number that every language can hold."""


def due_text(
    delay_ms: int | None = None, due: datetime | int | None = None, delay_level: int = 0
) -> str | None:
    """What the property DUE says for these arguments of a send; None = the message is not delayed.

    `delay_ms` from now, `due` a moment (ms since the epoch, or a datetime with a time zone), `delay_level`
    1 to 18 (0 = none). Raises UsageError for more than one of them, or for what is none.
    """
    if (delay_ms is not None) + (due is not None) + bool(delay_level) > 1:
        raise UsageError("a message is delayed by delay_ms, due or delay_level, not by two of them")
    if delay_level:
        if not 1 <= delay_level <= len(DELAY_LEVELS_MS):
            raise UsageError(f"delay_level {delay_level}: levels are 1 to {len(DELAY_LEVELS_MS)}")
        delay_ms = DELAY_LEVELS_MS[delay_level - 1]
    if delay_ms is not None:
        return f"+{_checked(delay_ms, 'delay_ms')}"
    if due is None:
        return None
    if isinstance(due, datetime):
        if due.tzinfo is None:
            raise UsageError(f"due {due.isoformat()} has no time zone: it could be any of 24 moments")
        due = math.ceil(due.timestamp() * 1000)
    return str(_checked(due, "due"))


def _checked(value_ms: int, name: str) -> int:
    if not 0 <= value_ms <= DUE_MAX_MS:
        raise UsageError(f"{name} {value_ms}: 0 to {DUE_MAX_MS} ms are possible")
    return value_ms
