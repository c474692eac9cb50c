"""Typed headers of services that are told from afar to read their configuration again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any, Final, NamedTuple

from holdmq.wire.header import Header, header

ERROR_MAX: Final = 4_000
"""Characters of a sentence that says what is wrong: it names every wrong key."""


class ReloadedRow(NamedTuple):
    """What came of it in one process: keys that changed, and those that wait for its restart.

    `name` is a broker's name, a registry's address, a gateway's host. `error`: why nothing was changed.
    """

    service: str
    name: str
    changed: list[str]
    waiting: list[str]
    error: str


@header
class ConfigReloadRequest(Header):
    """Have the broker or registry that is asked read its own configuration again."""


@header
class ConfigReloadResponse(Header):
    """One ReloadedRow: a configuration that is wrong is an answer, too."""

    reloaded: list[Any]


@header
class GatewayReloadRequest(Header):
    """Have the gateways whose host fits `gateway` (a beginning, or a pattern) read theirs again.

    `besides`: workers that have answered already.
    """

    gateway: str
    besides: list[str] = field(default_factory=list)


@header
class GatewayReloadResponse(Header):
    """A ReloadedRow for each gateway; workers as in ClientListResponse."""

    reloaded: list[Any]
    workers: list[str]
    silent: list[str]


def merged_reloads(found: Iterable[ReloadedRow]) -> list[ReloadedRow]:
    """One row for each process: all workers of a gateway ask the same parent, and the first changes most."""
    merged: dict[tuple[str, str], ReloadedRow] = {}
    for row in found:
        known = merged.get((row.service, row.name))
        if known is not None:
            row = row._replace(
                changed=sorted({*known.changed, *row.changed}),
                waiting=sorted({*known.waiting, *row.waiting}),
                error=known.error or row.error,
            )
        merged[row.service, row.name] = row
    return [merged[key] for key in sorted(merged)]
