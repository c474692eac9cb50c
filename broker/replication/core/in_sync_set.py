"""What S may be now: as it was read, and every proposal whose outcome is not known.

A compare-and-set that timed out may have been taken, and may yet be taken until the version has moved. So a
leader that removes a member goes on counting it until the removal is known to be done, and one that adds a
member counts it before: a position is confirmed only when it is in each state that S may be in.
"""

from __future__ import annotations

from holdmq.coordination.api import ShardState


class InSyncSet:
    """S of the shard that this replica leads, as far as it knows it. One proposal is under way at a time."""

    __slots__ = ("_is_under_way", "_may_be", "state", "version")

    def __init__(self, state: ShardState, version: int) -> None:
        self.state = state
        self.version = version
        self._may_be: list[ShardState] = []
        self._is_under_way = False

    @property
    def is_settled(self) -> bool:
        """Whether S is known for sure, and nothing is under way."""
        return not self._may_be

    @property
    def is_under_way(self) -> bool:
        """Whether the answer to a proposal is waited for."""
        return self._is_under_way

    def members(self) -> set[str]:
        """Every replica that is a member in a state that S may be in."""
        found = set(self.state.in_sync)
        for state in self._may_be:
            found.update(state.in_sync)
        return found

    def fewest(self) -> int:
        """How many members S has at least."""
        return min(len(state.in_sync) for state in (self.state, *self._may_be))

    def proposes(self, state: ShardState) -> None:
        """A compare-and-set of `state` against `version` is sent."""
        self._may_be.append(state)
        self._is_under_way = True

    def taken(self, state: ShardState, version: int) -> None:
        """The proposal was taken: no older one can be any more."""
        self.state = state
        self.version = version
        self._may_be.clear()
        self._is_under_way = False

    def unanswered(self) -> None:
        """The proposal may have been taken, or not, or may be taken later."""
        self._is_under_way = False

    def lost(self) -> None:
        """The proposal was not taken and never will be; earlier unanswered ones may still be."""
        self._is_under_way = False
        if self._may_be:
            self._may_be.pop()

    def was_read(self, state: ShardState, version: int) -> None:
        """S was read while nothing was under way. With a version that moved, older proposals are decided."""
        if version != self.version:
            self.state = state
            self.version = version
            self._may_be.clear()
