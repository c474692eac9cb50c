"""What stands in the query of a request's address. A parameter that is wrong is refused by its name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, TypeVar

from starlette.requests import Request

from console.core.history import RANGE_MAX_S
from holdmq.errors import UsageError

FORMS: Final = ("json", "csv")
"""What an answer may come as."""

WIDTH_DEFAULT_S: Final = 3600

N = TypeVar("N", int, None)


def number(request: Request, name: str, default: N, largest: int) -> int | N:
    """Return a whole number from 1 to `largest`; `default` when it is absent. Raises UsageError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= largest:
        raise UsageError(f"{name}={text[:40]!r} must be a whole number from 1 to {largest}")
    return int(text)


def form(request: Request) -> str:
    """Return ``format``, one of FORMS. Raises UsageError."""
    text = request.query_params.get("format", FORMS[0])
    if text not in FORMS:
        raise UsageError(f"format={text[:40]!r} must be json or csv")
    return text


def ends(request: Request, now: int) -> tuple[int, int]:
    """Return ``from`` and ``to`` in seconds since 1970: the last hour unless told. Raises UsageError."""
    until = _moment(request, "to", now)
    first = _moment(request, "from", until - WIDTH_DEFAULT_S)
    if not 1 <= until - first <= RANGE_MAX_S:
        raise UsageError("from must lie before to, by ten years at most")
    return first, until


def _moment(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        if text.isascii() and text.isdigit():
            moment = datetime.fromtimestamp(int(text), UTC)
        else:
            moment = datetime.fromisoformat(text)
        # Before 1970 there were no messages; and a moment without a zone is a different one to everybody.
        if moment.tzinfo is not None and moment.astimezone(UTC).year >= 1970:
            return int(moment.timestamp())
    except (ValueError, OverflowError, OSError):
        pass
    raise UsageError(
        f"{name}={text[:40]!r} must be a time with its zone, as 2026-01-31T23:59:59Z, or whole seconds "
        "since 1970"
    )
