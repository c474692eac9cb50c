"""Parts of a list: filtered, sorted and cut here, so that a page never gets thousands of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    found: Sequence[dict[str, Any]], page: ListQuery, named: Sequence[str], sorted_by: Mapping[str, str]
) -> Part:
    """Return the part that `page` asks for.

    `named`: columns that `q` is looked for in. `sorted_by`: names that a page may sort by → the column; the
    first is the order without a wish, and decides between equal ones.
    """
    text = page.q.lower()
    rows = [row for row in found if not text or any(text in str(row[column]).lower() for column in named)]
    first = next(iter(sorted_by.values()))
    wanted = page.sort.removeprefix("-") or next(iter(sorted_by))
    if wanted not in sorted_by:
        raise RefusedRequest(
            400, "INVALID_ARGUMENT", f"sort: one of {', '.join(sorted_by)} is possible", "sort"
        )
    rows.sort(key=lambda row: str(row[first]))
    if sorted_by[wanted] != first or page.sort.startswith("-"):
        rows.sort(key=lambda row: _comparable(row[sorted_by[wanted]]), reverse=page.sort.startswith("-"))
    at = offset_of(page.after)
    return Part(
        rows[at : at + page.limit], len(rows), str(at + page.limit) if at + page.limit < len(rows) else None
    )


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
