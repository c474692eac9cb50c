"""What is asked of lists of clients, read: whom, in which order; and how lists of several become one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from holdmq.errors import Code, WireError
from holdmq.names.networks import network_of
from holdmq.names.patterns import pattern_of
from holdmq.wire.client_headers import ClientListResponse, ClientRow, ClientSelection
from holdmq.wire.header import rows

TEXT_SORTS: Final = frozenset(("client_id", "user", "address"))
NUMBER_SORTS: Final = frozenset(
    ("connected", "keep_alive", "subscriptions", "in_flight", "messages_in", "messages_out", "version")
)
SORTS: Final = (*sorted(TEXT_SORTS), *sorted(NUMBER_SORTS))
"""What a list may be sorted by, with "-" before it for the largest first."""


def selection_of(wanted: Sequence[Any]) -> ClientSelection:
    """Read a row of ClientSelection. Raises WireError with a sentence for what no client can be."""
    (selection,) = rows(ClientSelection, [wanted])
    try:
        for text in (selection.client_id, selection.user, selection.gateway):
            pattern_of(text)
        if selection.address:
            network_of(selection.address)
    except ValueError as error:
        raise WireError(str(error), Code.LIMIT_EXCEEDED) from error
    return selection


class SortedBy(NamedTuple):
    """What a list is sorted by; `is_descending`: the largest first."""

    column: str
    is_descending: bool


def sorted_by(text: str) -> SortedBy:
    """Read the `sort` of a request. Raises WireError for what nothing can be sorted by."""
    column = text.removeprefix("-")
    if column not in TEXT_SORTS and column not in NUMBER_SORTS:
        raise WireError(f"clients can be sorted by {', '.join(SORTS)}, not by {column[:40]!r}",
                        Code.LIMIT_EXCEEDED)  # fmt: skip
    return SortedBy(column, text.startswith("-"))


def check_place(place: Sequence[Any], sort: SortedBy) -> tuple[Any, str] | None:
    """Read a place of a list; None = its beginning. Raises WireError for what is none."""
    if not place:
        return None
    kind = str if sort.column in TEXT_SORTS else int
    if len(place) != 2 or not isinstance(place[0], kind) or not isinstance(place[1], str):
        raise WireError("a place in a list of clients is what it is sorted by, and a client id",
                        Code.MISSING_FIELD)  # fmt: skip
    return place[0], place[1]


class ClientsPart(NamedTuple):
    """The first of the clients of several workers, and where to go on (None = that was all)."""

    clients: list[ClientRow]
    total: int
    end: tuple[Any, str] | None


def merged(parts: Iterable[ClientsPart], sort: SortedBy, count: int) -> ClientsPart:
    """Put parts together: the first `count` of all. Behind a part's end there may be more of it."""
    found: list[ClientRow] = []
    total = 0
    ends: list[tuple[Any, str]] = []
    for part in parts:
        found += part.clients
        total += part.total
        if part.end is not None:
            ends.append(part.end)
    found.sort(key=lambda row: (row.order[0], row.order[1]), reverse=sort.is_descending)
    end = None
    if ends:
        end = max(ends) if sort.is_descending else min(ends)
        found = [row for row in found if not is_behind(_place(row), end, sort)]
    if len(found) > count:
        found = found[:count]
        end = _place(found[-1])
    return ClientsPart(found, total, end)


def is_behind(place: tuple[Any, str], other: tuple[Any, str], sort: SortedBy) -> bool:
    """Whether a place comes after another one."""
    return bool(place < other if sort.is_descending else place > other)


def part_of(response: ClientListResponse, sort: SortedBy) -> ClientsPart:
    """Read an answer. Raises WireError."""
    found = rows(ClientRow, response.clients)
    for row in found:
        if check_place(row.order, sort) is None:
            raise WireError("a client without a place in the list", Code.MISSING_FIELD)
    return ClientsPart(found, response.total, check_place(response.end, sort))


def _place(row: ClientRow) -> tuple[Any, str]:
    return row.order[0], row.order[1]
