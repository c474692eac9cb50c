"""What may be in the log of a shard whose replicas run different releases: a table of levels.

A release that writes something that older ones cannot read (a kind of record, a field of a row, a message
between replicas) adds a level, and writes it only while S of the shard has that level or a higher one. S
rises when every member can read it, and never falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class FormatLevel(NamedTuple):
    """One level: the first release that can read it, and what it adds to the levels below."""

    level: int
    release: str
    adds: str


LEVELS: Final = (FormatLevel(1, "0.1.0", "records, rows and messages of the first release"),)
"""Ascending; the last one is the highest that this release can."""


def release_of(levels: Sequence[FormatLevel], level: int) -> str:
    """The first release that can read a level; "" = these levels do not say."""
    return next((known.release for known in levels if known.level >= level), "")
