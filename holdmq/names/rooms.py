"""Names of machine rooms, which brokers and members of groups say of themselves. Pure."""

from __future__ import annotations

import re
from typing import Final

ROOM_PATTERN: Final = r"^[A-Za-z0-9_.-]{0,64}$"
"""What a setting takes; "" = none is said. A cloud's zones are such names."""

_ROOM: Final = re.compile(r"[A-Za-z0-9_.-]{0,64}\Z")


def room_fault(room: str) -> str | None:
    """Why this can be no machine room, as a sentence; None = it can, or is "", none."""
    if _ROOM.match(room):
        return None
    return f"machine room {room[:70]!r} must be 1 to 64 letters, digits, _, . and -"
