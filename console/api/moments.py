"""Times as they stand in an address: RFC 3339 with a zone, or a whole number since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

SCHEMA: Final = {
    "type": "string",
    "maxLength": 64,
    "description": "RFC 3339 with a zone, as 2026-01-31T23:59:59Z, or a whole number since 1970.",
}
MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def _second(value: Any) -> Any:
    return _moment(value, 1) if isinstance(value, str) else value


def _millisecond(value: Any) -> Any:
    return _moment(value, 1000) if isinstance(value, str) else value


def _moment(text: str, a_second: int) -> int:
    """Return a time in units of which `a_second` are a second. Raises ValueError."""
    try:
        if text.isascii() and text.isdigit() and len(text) < 18:
            moment = datetime.fromtimestamp(int(text) / a_second, UTC)
        else:
            moment = datetime.fromisoformat(text)
        # Before 1970 there were no messages; and a moment without a zone is a different one to everybody.
        if moment.tzinfo is not None and moment.astimezone(UTC).year >= 1970:
            return int(moment.timestamp() * a_second)
    except (ValueError, OverflowError, OSError):
        pass
    unit = "seconds" if a_second == 1 else "milliseconds"
    raise ValueError(
        f"{text[:40]!r} must be a time with its zone, as 2026-01-31T23:59:59Z, or whole {unit} since 1970"
    )


Second = Annotated[int, BeforeValidator(_second), WithJsonSchema(SCHEMA)]
Millisecond = Annotated[int, BeforeValidator(_millisecond), WithJsonSchema(SCHEMA)]
