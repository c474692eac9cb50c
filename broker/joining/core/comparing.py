"""Which brokers are asked in a turn, and which of their tables are gone through. Pure.

Tables are compared by digests. One that was gone through as a whole and differs all the same (the other
broker has a row that is not taken) is left alone until something changes at either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MARKS = "marks"
"""The table of marks, among the digests."""


class Compared(NamedTuple):
    """What a table was when it was gone through: there, here, and the marks here."""

    theirs: int
    own: int
    marks: int


class Comparison:
    """What one broker knows of the tables of its peers."""

    def __init__(self) -> None:
        self._through: dict[tuple[str, str], Compared] = {}
        self._last = ""

    def chosen(self, peers: Mapping[str, str], count: int) -> dict[str, str]:
        """The next `count` of these brokers, each in its turn."""
        names = sorted(peers)
        for peer, table in [key for key in self._through if key[0] not in peers]:
            del self._through[peer, table]
        first = next((index for index, name in enumerate(names) if name > self._last), 0)
        found = [*names[first:], *names[:first]][:count]
        if found:
            self._last = found[-1]
        return {name: peers[name] for name in found}

    def differs(self, peer: str, table: str, theirs: Mapping[str, int], own: Mapping[str, int]) -> bool:
        """Whether a table of a peer is to be gone through; one that it does not have is not."""
        if table not in theirs or theirs[table] == own[table]:
            return False
        return self._through.get((peer, table)) != Compared(theirs[table], own[table], own[MARKS])

    def gone_through(self, peer: str, table: str, theirs: Mapping[str, int], own: Mapping[str, int]) -> None:
        """All of a table was looked at, and what was wanted of it was taken; `own` is what is here now."""
        self._through[peer, table] = Compared(theirs[table], own[table], own[MARKS])
