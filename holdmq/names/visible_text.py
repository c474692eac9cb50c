"""Text of strangers as a terminal may show it: devices choose client ids, topics, tags and payloads.

Escape sequences move the cursor, retitle the window and, in some terminals, type for the user; line breaks
make lines up; marks of direction show a name in another order than it has (Unicode Technical Report 36, 3.4).
"""

from __future__ import annotations

import re
from typing import Final

_INVISIBLE: Final = (
    "\x7f-\x9f"  # DEL, and C1: one of them begins an escape sequence, too
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction, and the space of no width
    "\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff"  # halves of pairs: no encoder takes them
    "\U000e0000-\U000e007f"  # tags, which spell a text that nobody sees
)
_IN_LINE: Final = re.compile(f"[\x00-\x1f{_INVISIBLE}]")
_IN_TEXT: Final = re.compile(f"[\x00-\x08\x0b-\x1f{_INVISIBLE}]")


def visible(text: str) -> str:
    """Return the text with what moves, hides or reorders as an escape of Python's (``\\x1b``); one line."""
    return _IN_LINE.sub(_escape, text)


def visible_lines(text: str) -> str:
    """As `visible`, for a text that may have lines and tabs of its own: a payload, a traceback."""
    return _IN_TEXT.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode()
