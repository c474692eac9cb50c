"""Typed headers of what brokers say of access keys: whose they are, and no secret."""

from __future__ import annotations

from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

LIST_MAX: Final = 1_000
"""Keys of one answer."""


class KeyRow(NamedTuple):
    """An access key of a tenant, and what it is."""

    name: str
    tenant: str
    roles: list[str]


@header
class KeyListRequest(Header):
    """The keys that are of a tenant, by name, behind `after` ("" = from the first); `tenant` "" = of any."""

    tenant: str = ""
    after: str = ""
    max_count: int = LIST_MAX


@header
class KeyListResponse(Header):
    """Rows of KeyRow; `next_after` None = that was all."""

    keys: list[KeyRow]
    next_after: str | None
