"""Parts of lists: every row once, in the wanted order, and what is no cursor or column is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from console.api.endpoint import ListQuery
from console.api.refusals import RefusedRequest
from console.management.paging import part_of

ROWS: list[dict[str, Any]] = [{"name": f"row-{n:04}", "count": n % 7} for n in range(5000)]
SORTS = ("name", "count")


def test_all_parts_together_are_every_row_once() -> None:
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        part = part_of(ROWS, ListQuery(sort="-count", limit=999, after=after), ("name",), SORTS)
        seen += [row["name"] for row in part.rows]
        after = part.following
        assert part.total == 5000
    assert len(seen) == len(set(seen)) == 5000
    assert seen[0] == "row-0006"


def test_a_part_is_searched_without_case() -> None:
    part = part_of(ROWS, ListQuery(q="ROW-000"), ("name",), SORTS)
    assert [row["name"] for row in part.rows] == [f"row-{n:04}" for n in range(10)]
    assert part.following is None


@pytest.mark.parametrize("wrong", [{"sort": "size"}, {"after": "x"}, {"after": "-1"}, {"after": "99999999"}])
def test_what_is_no_column_or_cursor_is_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(RefusedRequest) as refused:
        part_of(ROWS, ListQuery(**wrong), ("name",), SORTS)
    assert refused.value.field == next(iter(wrong))
