"""What is kept about dead letters beside the log: which were sent again, when and for whom; what was
purged. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from holdmq.errors import StoreFormatError

RANGES_MAX: Final = 10_000
"""Ranges of re-sent offsets per group (about 100 bytes each); past it single ones are refused."""
STAMPS_MAX: Final = 10_000
"""Moments of sending again per group (up to 200 bytes each); past it the oldest letters' are forgotten."""


_END: Final = 1 << 63
"""Past every offset."""


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

    def between(self, first: int, end: int) -> list[tuple[int, int]]:
        """The ranges of what is in the set from `first` to below `end`."""
        begin = bisect_right(self._ends, first)
        behind = bisect_left(self._firsts, end)
        pairs = zip(self._firsts[begin:behind], self._ends[begin:behind], strict=True)
        return [(max(first, a), min(end, b)) for a, b in pairs]

    def count_from(self, first: int) -> int:
        """How many are at or past `first`."""
        pairs = zip(self._firsts, self._ends, strict=True)
        return sum(end - max(begin, first) for begin, end in pairs if end > first)


class ResendStamp(NamedTuple):
    """When the letters from `first` to below `end` were sent again, and for whom.

    `at_ms` -1: that is not known any more; `by` "": nobody said so.
    """

    first: int
    end: int
    at_ms: int
    by: str


class ResendStamps:
    """When letters were sent again, one stamp for neighbours of the same request; at most STAMPS_MAX."""

    __slots__ = ("_stamps",)

    def __init__(self, stamps: Iterable[ResendStamp] = ()) -> None:
        self._stamps = list(stamps)

    def __len__(self) -> int:
        return len(self._stamps)

    def add(self, offset: int, at_ms: int, by: str) -> None:
        """Note a letter; the first note of it stands."""
        stamps = self._stamps
        at = bisect_right(stamps, offset, key=_first_of)
        if at and offset < stamps[at - 1].end:
            return
        first, end = offset, offset + 1
        if at < len(stamps) and stamps[at] == (end, stamps[at].end, at_ms, by):
            end = stamps.pop(at).end
        if at and stamps[at - 1] == (stamps[at - 1].first, first, at_ms, by):
            at -= 1
            first = stamps.pop(at).first
        stamps.insert(at, ResendStamp(first, end, at_ms, by))
        if len(stamps) > STAMPS_MAX:
            del stamps[0]

    def drop_below(self, first: int) -> None:
        """Forget letters below `first`."""
        self._stamps = self.between(first, self._stamps[-1].end if self._stamps else first)

    def drop_from(self, end: int) -> None:
        """Forget letters at or past `end`."""
        self._stamps = self.between(0, end)

    def between(self, first: int, end: int) -> list[ResendStamp]:
        """The stamps of letters from `first` to below `end`, in order."""
        begin = bisect_right(self._stamps, first, key=_end_of)
        behind = bisect_left(self._stamps, end, key=_first_of)
        return [
            stamp._replace(first=max(first, stamp.first), end=min(end, stamp.end))
            for stamp in self._stamps[begin:behind]
        ]


class LetterMarks:
    """The marks of one group: offsets below `purged` are given up, those in `resent` were sent again.

    `stamps` says of these when and for whom, as far as that is known.

    `forgotten`: topics in which the group began anew ("" = in all), each with the ends of the timer's and of
    the dead letters' queue at that time: what was moved before is no reason not to move it again.
    """

    __slots__ = ("forgotten", "purged", "resent", "stamps")

    def __init__(
        self,
        purged: int = 0,
        resent: OffsetRanges | None = None,
        forgotten: dict[str, list[int]] | None = None,
        stamps: ResendStamps | None = None,
    ) -> None:
        self.purged = purged
        self.resent = OffsetRanges() if resent is None else resent
        self.forgotten = {} if forgotten is None else forgotten
        self.stamps = ResendStamps() if stamps is None else stamps

    def note_resent(self, offset: int, at_ms: int, by: str) -> None:
        """Mark a letter that was sent again at this moment, for `by`."""
        if offset not in self.resent:
            self.resent.add(offset)
            self.stamps.add(offset, at_ms, by)

    def resends_between(self, first: int, end: int) -> list[ResendStamp]:
        """What was sent again from `first` to below `end`, in order, as few stamps as can be."""
        found: list[ResendStamp] = []
        for at, behind in self.resent.between(first, end):
            for stamp in self.stamps.between(at, behind):
                if at < stamp.first:
                    found.append(ResendStamp(at, stamp.first, -1, ""))
                found.append(stamp)
                at = stamp.end
            if at < behind:
                found.append(ResendStamp(at, behind, -1, ""))
        return found

    def drop_below(self, first: int) -> None:
        """Forget what was sent again of letters below `first`, which are gone."""
        self.resent.drop_below(first)
        self.stamps.drop_below(first)

    def purge(self, end: int) -> None:
        """Give up what is below `end`."""
        self.purged = max(self.purged, end)
        self.drop_below(self.purged)

    def cut(self, timer_end: int, end: int) -> None:
        """What lay at or past `end`, and in the timer's queue past `timer_end`, is lost."""
        self.purged = min(self.purged, end)
        self.resent.drop_from(end)
        self.stamps.drop_from(end)
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
        """Forget what says nothing any more: of what retention took, and groups without a mark.

        `firsts` gives, for a group, the first offsets of the timer's queue and of its dead letters.
        """
        for group, marks in list(self._groups.items()):
            timer, letters = firsts(group)
            marks.forgotten = {
                topic: ends for topic, ends in marks.forgotten.items() if ends[0] > timer or ends[1] > letters
            }
            marks.drop_below(letters)
            if not (marks.purged or len(marks.resent) or marks.forgotten):
                del self._groups[group]

    def content(self, purging: dict[str, int]) -> dict[str, Any]:
        """What the file says, with `purging` (group to end offset) as if it were done."""
        content: dict[str, Any] = {}
        for group in sorted(self._groups.keys() | purging.keys()):
            marks = self._groups.get(group, LetterMarks())
            stamps = ResendStamps(marks.stamps.between(0, _END))
            after = LetterMarks(marks.purged, OffsetRanges(marks.resent.ranges), stamps=stamps)
            after.purge(purging.get(group, 0))
            content[group] = {
                "purged": after.purged,
                "resent": after.resent.ranges,
                "stamps": [list(stamp) for stamp in after.stamps.between(0, _END)],
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
                # An earlier build wrote no stamps.
                stamps = [ResendStamp(*stamp) for stamp in entry.get("stamps", [])]
                places = [number for stamp in stamps for number in stamp[:2]]
                numbers = [purged, *pairs, *ends, *(number for stamp in stamps for number in stamp[:3])]
                is_whole = all(type(number) is int and number >= 0 for number in numbers)
                if (
                    not is_whole
                    or any(len(pair) != 2 for pair in [*ranges, *forgotten.values()])
                    or pairs != sorted(set(pairs))
                    or places != sorted(places)
                    or any(stamp.first == stamp.end or type(stamp.by) is not str for stamp in stamps)
                ):
                    raise TypeError("its numbers are no rising ranges")
            except (AttributeError, KeyError, TypeError) as error:
                raise StoreFormatError(
                    f"the entry {group!r} says nothing of dead letters: {error}",
                    operation="read",
                    path=path,
                    hint="restore the file, or start once with its .bak (--accept-backup)",
                ) from error
            self._groups[group] = LetterMarks(purged, OffsetRanges(ranges), forgotten, ResendStamps(stamps))


def _first_of(stamp: ResendStamp) -> int:
    return stamp.first


def _end_of(stamp: ResendStamp) -> int:
    return stamp.end
