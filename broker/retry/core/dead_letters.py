"""What is kept about dead letters beside the log: which were sent again, and what was purged. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final

from holdmq.errors import StoreFormatError

RANGES_MAX: Final = 10_000
"""Ranges of re-sent offsets per group (about 100 bytes each); past it single ones are refused."""


class OffsetRanges:
    """A set of offsets as ranges that neither touch nor overlap: [first, behind the last]."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, ranges: list[list[int]] | None = None) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges or []:
            self._firsts.append(first)
            self._ends.append(end)

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    @property
    def ranges(self) -> list[list[int]]:
        """The ranges in order."""
        return [[first, end] for first, end in zip(self._firsts, self._ends, strict=True)]

    def add(self, offset: int) -> None:
        """Take an offset in."""
        at = bisect_right(self._firsts, offset)
        if at and offset < self._ends[at - 1]:
            return
        joins_before = at > 0 and self._ends[at - 1] == offset
        joins_after = at < len(self._firsts) and self._firsts[at] == offset + 1
        if joins_before and joins_after:
            self._ends[at - 1] = self._ends.pop(at)
            self._firsts.pop(at)
        elif joins_before:
            self._ends[at - 1] += 1
        elif joins_after:
            self._firsts[at] = offset
        else:
            self._firsts.insert(at, offset)
            self._ends.insert(at, offset + 1)

    def drop_below(self, first: int) -> None:
        """Forget offsets below `first`."""
        gone = bisect_right(self._ends, first)
        del self._firsts[:gone], self._ends[:gone]
        if self._firsts and self._firsts[0] < first:
            self._firsts[0] = first

    def drop_from(self, end: int) -> None:
        """Forget offsets at or past `end`."""
        kept = bisect_left(self._firsts, end)
        del self._firsts[kept:], self._ends[kept:]
        if self._ends and self._ends[-1] > end:
            self._ends[-1] = end

    def count_from(self, first: int) -> int:
        """How many are at or past `first`."""
        pairs = zip(self._firsts, self._ends, strict=True)
        return sum(end - max(begin, first) for begin, end in pairs if end > first)


class LetterMarks:
    """The marks of one group: offsets below `purged` are given up, those in `resent` were sent again.

    `forgotten`: topics in which the group began anew ("" = in all), each with the ends of the timer's and of
    the dead letters' queue at that time: what was moved before is no reason not to move it again.
    """

    __slots__ = ("forgotten", "purged", "resent")

    def __init__(
        self,
        purged: int = 0,
        resent: OffsetRanges | None = None,
        forgotten: dict[str, list[int]] | None = None,
    ) -> None:
        self.purged = purged
        self.resent = OffsetRanges() if resent is None else resent
        self.forgotten = {} if forgotten is None else forgotten

    def purge(self, end: int) -> None:
        """Give up what is below `end`."""
        self.purged = max(self.purged, end)
        self.resent.drop_below(self.purged)

    def cut(self, timer_end: int, end: int) -> None:
        """What lay at or past `end`, and in the timer's queue past `timer_end`, is lost."""
        self.purged = min(self.purged, end)
        self.resent.drop_from(end)
        for topic, (timer, letters) in self.forgotten.items():
            self.forgotten[topic] = [min(timer, timer_end), min(letters, end)]

    def is_forgotten(self, topic: str, place: int, offset: int) -> bool:
        """Whether a move of a message of `topic` is of a time before; `place` 0: at an offset of the timer's
        queue, 1: of the dead letters'.
        """
        found = (self.forgotten.get(name) for name in (topic, ""))
        return any(ends is not None and offset < ends[place] for ends in found)


class Marks:
    """All groups' marks, and deadLetters.json's content."""

    def __init__(self) -> None:
        self._groups: dict[str, LetterMarks] = {}

    def of(self, group: str) -> LetterMarks:
        """A group's marks, made at first use."""
        marks = self._groups.get(group)
        if marks is None:
            marks = self._groups[group] = LetterMarks()
        return marks

    def items(self) -> Iterable[tuple[str, LetterMarks]]:
        """All groups and their marks."""
        return self._groups.items()

    def prune(self, firsts: Callable[[str], tuple[int, int]]) -> None:
        """Forget what says nothing any more: moves whose copies retention took, groups without a mark.

        `firsts` gives, for a group, the first offsets of the timer's queue and of its dead letters.
        """
        for group, marks in list(self._groups.items()):
            timer, letters = firsts(group)
            marks.forgotten = {
                topic: ends for topic, ends in marks.forgotten.items() if ends[0] > timer or ends[1] > letters
            }
            if not (marks.purged or len(marks.resent) or marks.forgotten):
                del self._groups[group]

    def content(self, purging: dict[str, int]) -> dict[str, Any]:
        """What the file says, with `purging` (group to end offset) as if it were done."""
        content: dict[str, Any] = {}
        for group in sorted(self._groups.keys() | purging.keys()):
            marks = self._groups.get(group, LetterMarks())
            after = LetterMarks(marks.purged, OffsetRanges(marks.resent.ranges))
            after.purge(purging.get(group, 0))
            content[group] = {
                "purged": after.purged,
                "resent": after.resent.ranges,
                "forgotten": {topic: list(ends) for topic, ends in marks.forgotten.items()},
            }
        return content

    def load(self, content: dict[str, Any], path: str) -> None:
        """Take what the file says; StoreFormatError names the group whose entry is none."""
        for group, entry in content.items():
            try:
                purged, ranges, forgotten = entry["purged"], entry["resent"], entry["forgotten"]
                pairs = [number for pair in ranges for number in pair]
                ends = [number for pair in forgotten.values() for number in pair]
                numbers = [purged, *pairs, *ends]
                is_whole = all(type(number) is int and number >= 0 for number in numbers)
                if (
                    not is_whole
                    or any(len(pair) != 2 for pair in [*ranges, *forgotten.values()])
                    or pairs != sorted(set(pairs))
                ):
                    raise TypeError("its numbers are no rising ranges")
            except (AttributeError, KeyError, TypeError) as error:
                raise StoreFormatError(
                    f"the entry {group!r} says nothing of dead letters: {error}",
                    operation="read",
                    path=path,
                    hint="restore the file, or start once with its .bak (--accept-backup)",
                ) from error
            self._groups[group] = LetterMarks(purged, OffsetRanges(ranges), forgotten)
