"""Which topics of a sorted table a filter can match: what is looked at, and where to look next. Pure.

Topics are in the order of their bytes, so all below a level lie together, and what cannot match is
passed over with one seek::

    a/+/b     a/1/b  match     a/1/c …  on to a/10 ('/' + 1 = '0'): the sibling behind a/1
              a/2/a  on to a/2/b
              a/2    on to the next: a/2! lies between a/2 and a/2/b

A *run* is a stretch of literal levels: what begins behind the last `+` before a level. Source: mqtt.md,
Retained; MQTT 5.0, 4.7.
"""

from __future__ import annotations

import re
from typing import Final

from storage.api.tables import END_OF_WALK, TAKE, Judged

NEXT: Final = b""
"""As a place to go on: the next topic."""
COMPILED_FROM: Final = 64
"""Topics looked at from which on a compiled pattern is worth its 0.1 ms: most filters meet a few."""
_BEHIND_DOLLAR: Final = b"%"
"""The first topic that does not begin with `$`, behind those that do."""


class RetainedScan:
    """A filter, valid and without `$share/…/`. `begin`: no topic below can match."""

    __slots__ = ("_is_multi", "_judged", "_levels", "_pattern", "begin")

    def __init__(self, topic_filter: str) -> None:
        levels = topic_filter.encode().split(b"/")
        self._is_multi = levels[-1] == b"#"
        if self._is_multi:
            levels.pop()
        self._levels = levels
        self._judged = 0
        self._pattern: re.Pattern[bytes] | None = None
        self.begin: bytes = self._run(0)[0]

    @property
    def is_exact(self) -> bool:
        """Whether it can match one topic only."""
        return not self._is_multi and b"+" not in self._levels

    def judge(self, topic: bytes) -> Judged:
        """TAKE if it matches; else the first topic that can, as bytes to seek (NEXT: look at the next one).

        END_OF_WALK: none behind this one can.
        """
        pattern = self._pattern
        if pattern is not None:
            if pattern.fullmatch(topic) is not None:
                return TAKE
        else:
            self._judged += 1
            if self._judged >= COMPILED_FROM:
                self._pattern = _compiled(self._levels, self._is_multi)
        levels = self._levels
        if topic[:1] == b"$" and (not levels or levels[0] == b"+"):
            return _BEHIND_DOLLAR  # [MQTT-4.7.2-1]
        parts = topic.split(b"/")
        plus = -1
        for at, wanted in enumerate(levels):
            if at == len(parts):
                # It ends where the filter goes on. Behind a literal only what is below it can match.
                return NEXT if plus == at - 1 else b"%b/%b" % (topic, self._run(at)[0])
            if wanted == b"+":
                plus = at
            elif wanted != parts[at]:
                return self._within(topic, parts, at, plus)
        if self._is_multi or len(parts) == len(levels):
            return TAKE
        return _behind(parts, plus)  # deeper than the filter: nothing below can match

    def _within(self, topic: bytes, parts: list[bytes], at: int, plus: int) -> Judged:
        """Level `at` is another literal than the filter's: what can match below the levels before it."""
        above = b"".join(part + b"/" for part in parts[:at])
        run, is_open = self._run(at)
        first = above + run
        if topic < first:
            return first
        if is_open and topic < first + b"/":
            # Behind `a/b` come `a/b!` …, and then what is below `a/b/`.
            return first + b"/"
        return _behind(parts, plus)

    def _run(self, at: int) -> tuple[bytes, bool]:
        """The literals from level `at` on, with what must follow them; whether `#` may follow, too."""
        levels = self._levels
        end = at
        while end < len(levels) and levels[end] != b"+":
            end += 1
        run = b"/".join(levels[at:end])
        if end < len(levels):
            return run + b"/" if end > at else b"", False
        return run, self._is_multi and end > at


def _behind(parts: list[bytes], plus: int) -> Judged:
    """The first topic behind all that is below the level that stands for the last `+`."""
    if plus < 0:
        return END_OF_WALK
    return b"/".join(parts[: plus + 1]) + b"0"  # '/' + 1


def _compiled(levels: list[bytes], is_multi: bool) -> re.Pattern[bytes]:
    parts = [b"[^/]*" if level == b"+" else re.escape(level) for level in levels]
    text = b"/".join(parts)
    if is_multi:
        text = text + b"(?:/.*)?" if levels else b".*"
    if not levels or levels[0] == b"+":
        text = rb"(?!\$)" + text
    return re.compile(text, re.DOTALL)
