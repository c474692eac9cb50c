"""Names found by their beginning, or by a pattern with ``*`` and ``?``; in time that grows with their length.

``*`` stands for any characters, also none, ``?`` for one. A backslash before any of the three takes its
meaning away. Without ``*`` and ``?`` what is given is the beginning of a name.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Final, NamedTuple

STARS_MAX: Final = 16
"""Stars of one pattern: more say nothing that a person means."""

_PART: Final = re.compile(r"\\([*?\\])|([*?])|([^*?])", re.DOTALL)


class Pattern(NamedTuple):
    """A pattern, read: the text before its first wildcard, and whether a wildcard is in it at all."""

    text: str
    beginning: str
    has_wildcards: bool

    def matcher(self) -> Callable[[str], object]:
        """Return what is true of the names that fit."""
        if not self.has_wildcards:
            return lambda name: name.startswith(self.beginning)
        # The module's expressions use atomic groups: a name that does not fit is never tried twice.
        written = "".join(_escaped(literal) if literal else wild for literal, wild in _parts(self.text))
        return re.compile(fnmatch.translate(written)).match


def pattern_of(text: str) -> Pattern:
    """Read a pattern. Raises ValueError with a sentence for one of too many stars."""
    parts = _parts(text)
    if sum(wild == "*" for _, wild in parts) > STARS_MAX:
        raise ValueError(f"a pattern has at most {STARS_MAX} stars")
    beginning = ""
    for literal, wild in parts:
        if wild:
            return Pattern(text, beginning, True)
        beginning += literal
    return Pattern(text, beginning, False)


def _parts(text: str) -> list[tuple[str, str]]:
    """Each character as (literal, "") or ("", wildcard)."""
    return [(escaped or plain, wild) for escaped, wild, plain in _PART.findall(text)]


def _escaped(literal: str) -> str:
    """A character as fnmatch takes it for itself."""
    return f"[{literal}]" if literal in "*?[" else literal
