"""Where a subscription begins that asks for what was published before: the user property `from` of SUBSCRIBE.

`earliest`, a moment as RFC 3339 has it, or seconds ago. Sans-IO.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

PROPERTY: Final = "from"

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,10}(\.\d{1,3})?", re.ASCII)
_SHOWN_MAX: Final = 40


class ReplayStart(NamedTuple):
    """A moment in ms since the epoch (0 = the log's beginning), or `ago_ms` before now."""

    at_ms: int
    ago_ms: int | None = None

    def store_ms(self, now_ms: int) -> int:
        """The moment by a broker whose clock says `now_ms`."""
        return self.at_ms if self.ago_ms is None else max(1, now_ms - self.ago_ms)


class ReplayError(ValueError):
    """A value that says no beginning; the text is for people."""


def replay_of(properties: tuple[tuple[str, str], ...]) -> ReplayStart | None:
    """What the user properties of a SUBSCRIBE ask for; None = nothing. Raises ReplayError."""
    values = [value for name, value in properties if name == PROPERTY]
    if not values:
        return None
    if len(values) > 1:
        raise ReplayError("the user property from is there more than once")
    value = values[0]
    if value == "earliest":
        return ReplayStart(0)
    if _SECONDS.fullmatch(value):
        return ReplayStart(0, round(float(value) * 1000))
    upper = value.upper()  # RFC 3339, 5.6: t and z are as good
    if _MOMENT.fullmatch(upper):
        try:
            return ReplayStart(max(0, int(datetime.fromisoformat(upper).timestamp() * 1000)))
        except ValueError:
            pass  # a 13th month
    shown = value if len(value) <= _SHOWN_MAX else value[:_SHOWN_MAX] + "..."
    raise ReplayError(f"from {shown!r}: earliest, a time like 2026-01-31T12:00:00Z, or seconds ago")
