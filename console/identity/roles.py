"""Roles of the console, each of which may all that the ones before it may."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

RoleName = Literal["viewer", "operator", "admin"]


class Rank(IntEnum):
    """What somebody may: `OPEN` is everybody, signed in or not."""

    OPEN = 0
    VIEWER = 1
    """See everything but accounts, and ask for it by SQL."""
    OPERATOR = 2
    """Change what can be changed back: topics, groups, sessions, dead letters sent again."""
    ADMIN = 3
    """Delete what is not there afterwards, and say who may what."""

    @classmethod
    def of(cls, name: RoleName) -> Rank:
        """Return the role of this name."""
        return cls[name.upper()]
