"""Typed headers of the MQTT users and clients that sent and got most, behind whichever gateway.

They are asked for as lists of clients are (holdmq.wire.client_headers): a broker asks its gateway
workers, and an operator's tool the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from operator import attrgetter
from typing import Any, Final, NamedTuple

from holdmq.errors import Code, WireError
from holdmq.wire.header import Header, header

ROWS_MAX: Final = 1_000
"""Rows in one answer."""
BUSIEST_KINDS: Final = ("user", "client")
BUSIEST_SORTS: Final = ("messages_in", "messages_out", "bytes_in", "bytes_out")


class BusiestClientRow(NamedTuple):
    """What a user's, or a client's, connections carried since their gateway workers were started.

    `connections` have been, those that are among them. Bytes are those of sockets as the kernel counted them,
    0 where it does not. Up to `error` of the messages may be others': workers keep a bounded number of names.
    """

    name: str
    connections: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    error: int


@header
class ClientBusiestRequest(Header):
    """Ask who carried most. `by`: one of BUSIEST_KINDS; `sort`: one of BUSIEST_SORTS, the most of it first.

    `besides`: workers that have answered already.
    """

    by: str
    sort: str
    besides: list[str] = field(default_factory=list)


@header
class ClientBusiestResponse(Header):
    """Rows of BusiestClientRow, at most ROWS_MAX; workers as in ClientListResponse."""

    found: list[Any]
    workers: list[str]
    silent: list[str]


def check_busiest(by: str, sort: str) -> None:
    """Raise WireError for what nobody counts."""
    for said, known in ((by, BUSIEST_KINDS), (sort, BUSIEST_SORTS)):
        if said not in known:
            raise WireError(f"{', '.join(known)} are counted, not {said[:40]!r}", Code.LIMIT_EXCEEDED)


def order_of(sort: str) -> Callable[[BusiestClientRow], tuple[int, str]]:
    """By what rows are compared: the larger one carried more."""
    value = attrgetter(sort)
    return lambda row: (value(row), row.name)


def merged_busiest(rows: Iterable[BusiestClientRow], sort: str) -> list[BusiestClientRow]:
    """Add up the rows of several workers by their names; at most ROWS_MAX, those that carried most first."""
    found: dict[str, BusiestClientRow] = {}
    for row in rows:
        known = found.get(row.name)
        if known is not None:
            row = BusiestClientRow(row.name, *(a + b for a, b in zip(known[1:], row[1:], strict=True)))
        found[row.name] = row
    return sorted(found.values(), key=order_of(sort), reverse=True)[:ROWS_MAX]
