"""What Spark's progress reports say about a source's offsets."""

from __future__ import annotations

import json


def backlog_of(end: str | None, latest: str | None) -> int:
    """Return the records between a source's end and latest offsets, as a progress report has them."""
    read, held = _offsets(end), _offsets(latest)
    return sum(max(0, offset - read.get(key, 0)) for key, offset in held.items() if "/" in key)


def _offsets(text: str | None) -> dict[str, int]:
    found = json.loads(text) if text else None
    return found if isinstance(found, dict) else {}
