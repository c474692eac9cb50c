"""Times as people write them."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdmq.cli.times import parse_time, show_time
from holdmq.errors import UsageError

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("15m", NOW_MS - 900_000),
        ("0s", NOW_MS),
        ("2h", NOW_MS - 7_200_000),
        ("3d", NOW_MS - 3 * 86_400_000),
        ("999999999d", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2026-03-01T12:00:00Z", 1_772_366_400_000),
        ("2026-03-01T12:00:00.250+02:00", 1_772_359_200_250),
        ("1970-01-01T00:00:00+14:00", 0),
    ],
)
def test_each_way_to_write_a_time_is_read(text: str, time_ms: int) -> None:
    assert parse_time(text, NOW_MS) == time_ms


def test_a_time_without_a_zone_is_local() -> None:
    assert parse_time("2026-03-01 12:00", NOW_MS) == datetime(2026, 3, 1, 12).astimezone().timestamp() * 1000
    assert parse_time("2026-03-01", NOW_MS) == datetime(2026, 3, 1).astimezone().timestamp() * 1000


@pytest.mark.parametrize(
    "text", ["", "yesterday", "15", "15 m", "-5m", "2026-13-01", "17e11", "１７００００００００００"]
)
def test_what_is_no_time_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match="is no time; give it as 2026-03-01T12:00"):
        parse_time(text, NOW_MS)


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_that_is_shown_is_read_as_the_same(time_ms: int) -> None:
    assert parse_time(show_time(time_ms), NOW_MS) == time_ms
