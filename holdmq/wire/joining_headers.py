"""Typed headers of what brokers ask each other when one joins a cluster, or was away from it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdmq.wire.header import Header, header

PAGE_ROWS: Final = 500
"""Rows in one answer: with the longest names and settings some hundred KiB."""


@header
class KeptCountsResponse(Header):
    """What a broker has of what belongs to one broker each: open and stored sessions, retained messages.

    It answers KEPT_COUNTS, which has no fields. `is_keeper`: it has the tables, and gets more of both.
    """

    is_keeper: bool
    sessions: int
    retained: int


class SpreadRow(NamedTuple):
    """A row that every broker of a cluster is to have: its name, and its settings as its table has them."""

    name: str
    settings: dict[str, Any]


@header
class SpreadDigestResponse(Header):
    """A number for each table of such rows, the same at brokers that have the same; answers SPREAD_DIGEST."""

    digests: dict[str, int]


@header
class SpreadPageRequest(Header):
    """The rows of a table behind the name `after` ("" = from the first), in their order."""

    table: str
    after: str = ""
    max_count: int = PAGE_ROWS


@header
class SpreadPageResponse(Header):
    """Rows of SpreadRow; `next_after` None = that was all."""

    rows: list[Any]
    next_after: str | None
