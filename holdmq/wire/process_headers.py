"""Typed headers of the processes of a cluster: who is here, who leaves, what registries know of them."""

from __future__ import annotations

from typing import NamedTuple

from holdmq.wire.header import Header, header


class ProcessRow(NamedTuple):
    """A process: `kind` is broker, gateway, spark or registry; `name` is its own among these."""

    kind: str
    name: str


class ToldRow(NamedTuple):
    """An alarm that a registry has told: since when, in ms since the epoch, and its text."""

    kind: str
    name: str
    since_ms: int
    text: str


@header
class ProcessHereRequest(Header):
    """Says over a connection, at intervals, that a process is here; to be watched from then on.

    A process may say so over several connections, as the workers of a gateway do.
    """

    kind: str
    name: str


@header
class ProcessLeaveRequest(Header):
    """Says goodbye over a connection: that it ends soon is in order."""

    kind: str
    name: str


@header
class RegistryViewResponse(Header):
    """Answers REGISTRY_VIEW. `present` are ProcessRow, `told` ToldRow.

    `started_ms`: since when the registry runs; `registry_id`: random, of this start. `on_duty`: it tells of
    lost processes; `told` is what it has, or a copy.
    """

    registry_id: bytes
    started_ms: int
    on_duty: bool
    present: list[ProcessRow]
    told: list[ToldRow]
