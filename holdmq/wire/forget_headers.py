"""Typed headers of brokers that are given up for good: what is lost with one, and who remembers it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final, NamedTuple

from holdmq.wire.header import Header, header

FORGOTTEN_MAX: Final = 200
"""Brokers remembered as forgotten, the newest: some 20 KiB in each registration and route."""
TIME_MAX_MS: Final = 1 << 42
"""In the year 2109: what is later is no time."""
UNKNOWN: Final = -1
"""A number that nobody knows any more."""


class ForgottenRow(NamedTuple):
    """A broker that was given up, at a time in ms since the epoch.

    `is_back`: one with a newer store has registered the name since. Who hears two rows of a name keeps
    the newer, of two of one time the one that is back.
    """

    broker: str
    forgotten_ms: int
    is_back: bool = False


def is_newer(row: ForgottenRow, known: ForgottenRow | None) -> bool:
    """Whether a row says more than the one that is known of its broker."""
    return known is None or (row.forgotten_ms, row.is_back) > (known.forgotten_ms, known.is_back)


def newest_of(found: Iterable[ForgottenRow]) -> dict[str, ForgottenRow]:
    """Of each broker the row that counts."""
    newest: dict[str, ForgottenRow] = {}
    for row in found:
        if is_newer(row, newest.get(row.broker)):
            newest[row.broker] = row
    return newest


class LostTopicRow(NamedTuple):
    """A topic that a broker kept queues of, and the other brokers that have it.

    `is_ordered`: keys are spread over its brokers, absent ones too.
    """

    topic: str
    queues: int
    is_ordered: bool
    others: int


@header
class BrokerForgetRequest(Header):
    """What would be lost with an absent broker; with `accept_loss` it is forgotten, durably.

    A broker that is registered, or has copies, is refused (NOT_PERMITTED). `at_ms`: when another registry
    was told, 0 = now. Forgetting one again changes nothing.
    """

    broker: str
    accept_loss: bool = False
    at_ms: int = 0


@header
class BrokerForgetResponse(Header):
    """What this registry knows of a broker. `is_known`: it has rows of it, saw it, or has forgotten it.

    `forgotten_ms`: since when it is forgotten, 0 = it is not. `silent_ms`, `sessions` and `retained` are of
    its last registration, UNKNOWN if the registry was started after it. `topics` are LostTopicRow, ordered
    ones first, as many as fit; `topics_total` and `queues_total` count all.
    """

    broker: str
    is_known: bool
    forgotten_ms: int
    cluster: str = ""
    silent_ms: int = UNKNOWN
    sessions: int = UNKNOWN
    retained: int = UNKNOWN
    topics_total: int = 0
    queues_total: int = 0
    topics: list[LostTopicRow] = field(default_factory=list)
