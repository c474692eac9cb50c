"""What the leader knows of each copy that follows it."""

from __future__ import annotations

from broker.replication.core.messages import CopyFetch


class HeldFetch:
    """A fetch that waits for something to answer."""

    __slots__ = ("deadline", "fetch", "number")

    def __init__(self, number: int, fetch: CopyFetch, deadline: float) -> None:
        self.number = number
        self.fetch = fetch
        self.deadline = deadline


class CopyProgress:
    """A copy in one session: what it acknowledged, and since when it has not been level with the log's end.

    `acknowledged` begins at what it had in common with the leader when it said hello, -1 before the
    first fetch: what it acknowledged in an earlier session counts for nothing, as its disk may have
    been emptied since. `read_address`: where clients may read from it, "" = nowhere.
    """

    __slots__ = (
        "_mark_at",
        "_mark_position",
        "acknowledged",
        "format_level",
        "held",
        "is_whole",
        "level_at",
        "peer",
        "read_address",
        "session",
    )

    def __init__(
        self,
        peer: str,
        session: int,
        is_whole: bool,
        format_level: int,
        level_at: float,
        end: int,
        now: float,
        read_address: str = "",
    ) -> None:
        self.peer = peer
        self.session = session
        self.acknowledged = -1
        self.is_whole = is_whole
        self.format_level = format_level
        self.held: HeldFetch | None = None
        self.level_at = level_at
        self.read_address = read_address
        # A session says nothing of what the copy has: one that begins again and again is no less behind.
        self._mark_position, self._mark_at = end, now

    def fetched(self, fetch: CopyFetch, end: int, now: float) -> None:
        """Take an acknowledgement; `end` is the end of the leader's log now."""
        self.acknowledged = max(self.acknowledged, fetch.acknowledged)
        if self.acknowledged >= end:
            self.level_at = now
            self._mark_position, self._mark_at = end, now
        elif self.acknowledged >= self._mark_position:
            # It has what was the end at the mark: it was level at that time, as far as anybody can tell.
            self.level_at = max(self.level_at, self._mark_at)
            self._mark_position, self._mark_at = end, now

    def is_behind(self, now: float, lag_s: float) -> bool:
        """Whether it has not been level with the log's end for `lag_s`, or silent for so long."""
        return now - self.level_at > lag_s
