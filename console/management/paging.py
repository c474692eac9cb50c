"""Parts of a list: filtered, sorted and cut here, so that a page never gets thousands of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from console.api.endpoint import ListQuery
from console.api.refusals import RefusedRequest

AFTER_MAX: Final = 10_000_000


class Part(NamedTuple):
    """Rows of a list; `total` that matched; `following`: the `next` of the answer."""

    rows: list[dict[str, Any]]
    total: int
    following: str | None


def part_of(
    found: Sequence[dict[str, Any]], page: ListQuery, named: Sequence[str], sorted_by: Sequence[str]
) -> Part:
    """Return the part that `page` asks for.

    `named`: columns that `q` is looked for in. `sorted_by`: columns that a page may sort by; the first is the
    order without a wish, and decides between equal ones.
    """
    text = page.q.lower()
    rows = [row for row in found if not text or any(text in str(row[column]).lower() for column in named)]
    first, wanted = next(iter(sorted_by)), sort_of(page, sorted_by)
    column = wanted.removeprefix("-")
    rows.sort(key=lambda row: str(row[first]))
    if wanted != first:
        rows.sort(key=lambda row: _comparable(row[column]), reverse=wanted.startswith("-"))
    at = offset_of(page.after)
    return Part(rows[at : at + page.limit], len(rows), following(page, len(rows)))


def sort_of(page: ListQuery, sorted_by: Sequence[str]) -> str:
    """Return what a page is sorted by, - before it for the largest first. Raises RefusedRequest."""
    wanted = page.sort or sorted_by[0]
    if wanted.removeprefix("-") not in sorted_by:
        raise RefusedRequest(
            400, "INVALID_ARGUMENT", f"sort: one of {', '.join(sorted_by)} is possible", "sort"
        )
    return wanted


def following(page: ListQuery, total: int) -> str | None:
    """Return the `next` of a page of so many rows in all: where the next one begins."""
    end = offset_of(page.after) + page.limit
    return str(end) if end < total else None


def offset_of(after: str) -> int:
    """Return how many rows a page passes over. Raises RefusedRequest."""
    if not after:
        return 0
    if not after.isascii() or not after.isdigit() or len(after) > 8 or int(after) > AFTER_MAX:
        raise wrong_cursor()
    return int(after)


def wrong_cursor() -> RefusedRequest:
    """Return how an `after` that no answer gave is refused."""
    return RefusedRequest(400, "INVALID_ARGUMENT", "after: only what the page before gave as next", "after")


def _comparable(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if isinstance(value, int | float) else str(value))
