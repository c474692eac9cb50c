"""When the oldest segment is due, and who still needs it."""

from __future__ import annotations

import pytest

from storage.api.retention import LogNeed, QueueNeed
from storage.log.retention.core.retention import (
    Oldest,
    Reason,
    RetentionLimits,
    percent_used,
    reasons_to_delete,
    who_needs,
)

LIMITS = RetentionLimits(1000, 0, 0, 75, 85, 90, False, 500)


@pytest.mark.parametrize(
    ("oldest", "used", "limits", "reasons"),
    [
        (Oldest(9_001, 100, 3), 50, LIMITS, []),
        (Oldest(9_000, 100, 3), 50, LIMITS, [Reason.AGE]),
        (Oldest(9_900, 101, 3), 0, LIMITS._replace(size_bytes=100), [Reason.BYTES]),
        (Oldest(9_900, 100, 3), 0, LIMITS._replace(size_bytes=100), []),
        (Oldest(9_900, 100, 3), 0, LIMITS._replace(segments=2), [Reason.COUNT]),
        (Oldest(9_900, 100, 3), 0, LIMITS._replace(segments=3), []),
        (Oldest(9_900, 100, 3), 75, LIMITS, [Reason.EARLY]),
        (Oldest(9_900, 100, 3), 85, LIMITS, [Reason.EARLY, Reason.FORCED]),
        (Oldest(9_900, 100, 3), 100, LIMITS._replace(forced_percent=100), [Reason.EARLY]),
        (Oldest(9_900, 100, 3), 100, LIMITS._replace(early_percent=100, forced_percent=100), []),
        (
            Oldest(0, 101, 3),
            99,
            LIMITS._replace(size_bytes=100, segments=1),
            [Reason.AGE, Reason.BYTES, Reason.COUNT, Reason.EARLY, Reason.FORCED],
        ),
    ],
)
def test_each_limit_makes_the_oldest_segment_due(
    oldest: Oldest, used: float, limits: RetentionLimits, reasons: list[Reason]
) -> None:
    assert reasons_to_delete(oldest, 10_000, used, limits) == reasons


def test_a_reader_needs_what_lies_behind_its_offset_or_position() -> None:
    firsts = {("devices", 0): 10}
    at = QueueNeed("group", 9_800, "devices", 0, 9)
    assert who_needs([at], 400, firsts, 10_000, 500) == "group"
    assert who_needs([at._replace(offset=10)], 400, firsts, 10_000, 500) is None
    assert who_needs([at._replace(queue_id=1, offset=0)], 400, firsts, 10_000, 500) is None
    session = LogNeed("session", 10_000, 399)
    assert who_needs([at._replace(offset=10), session], 400, firsts, 10_000, 500) == "session"
    assert who_needs([session._replace(position=400)], 400, firsts, 10_000, 500) is None


def test_a_reader_that_stayed_away_for_the_expiry_needs_nothing() -> None:
    need = QueueNeed("group", 9_500, "devices", 0, 0)
    assert who_needs([need], 400, {("devices", 0): 10}, 10_000, 500) is None
    assert who_needs([need._replace(seen_ms=9_501)], 400, {("devices", 0): 10}, 10_000, 500) == "group"


def test_a_file_system_that_does_not_say_its_size_is_never_full() -> None:
    assert percent_used(0, 0) == 0
    assert percent_used(200, 50) == 75
