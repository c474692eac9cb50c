"""Rolling counts against a list of everything that happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kernel.core.windows import COLUMNS, DAY, HOUR, LASTING, MINUTE, NOTHING, ROW_BYTES, Windows

Tick = tuple[float, list[tuple[str, int]]]


def deltas(*messages_in: int) -> np.ndarray:
    """Rows of counts: as many messages in as given, and as much of every other column in its unit."""
    return np.array([[n * (column + 1) for column in range(COLUMNS)] for n in messages_in], np.int64)


def tick(windows: Windows[Any], keys: Sequence[Any], counted: np.ndarray, now: float) -> None:
    windows.begin(now)
    middle = len(keys) // 2
    for part in (slice(middle), slice(middle, None)):
        windows.add(keys[part], counted[part])


def expected(ticks: list[Tick], key: str, layout: tuple[float, int]) -> int:
    """What a window shows at the last tick: ticks in the newest slot and the slots before it."""
    slot_s, slots = layout
    newest = int(ticks[-1][0] // slot_s)
    return sum(
        count
        for at, counted in ticks
        for name, count in counted
        if name == key and newest - slots < int(at // slot_s) <= newest
    )


gaps = st.sampled_from([0.9, 1.0, 1.1, 4.0, 59.0, 61.0, 299.0, 3_000.0, 3_600.0, 80_000.0, 90_000.0])
ticks_of = st.lists(
    st.tuples(gaps, st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 1000)), max_size=4)),
    min_size=1,
    max_size=60,
)


@given(ticks_of, st.floats(0, 1e6))
def test_windows_hold_what_happened_in_them_and_nothing_else(
    steps: list[tuple[float, list[tuple[str, int]]]], began_at: float
) -> None:
    windows: Windows[str] = Windows(10, began_at)
    ticks: list[Tick] = []
    now = began_at
    for gap, counted in steps:
        now += gap
        ticks.append((now, counted))
        tick(
            windows, [name for name, _ in counted], deltas(*(n for _, n in counted)).reshape(-1, COLUMNS), now
        )
        for key in ("a", "b", "c"):
            recent = windows.recent(key)
            assert recent.total[0] == sum(n for _, c in ticks for name, n in c if name == key)
            assert recent.second[0] == sum(n for name, n in counted if name == key)
            for found, layout in ((recent.minute, MINUTE), (recent.hour, HOUR), (recent.day, DAY)):
                columns = range(COLUMNS) if layout is MINUTE else LASTING
                assert found == [expected(ticks, key, layout) * (i + 1) for i in columns]
        second, minute, hour, day = windows.covered_ms()
        assert second == pytest.approx(gap * 1e3, abs=2)
        for covered, (slot_s, slots) in ((minute, MINUTE), (hour, HOUR), (day, DAY)):
            assert covered <= slot_s * slots * 1e3
            assert covered >= min(now - began_at, slot_s * (slots - 1)) * 1e3 - 1
            assert covered <= (now - began_at) * 1e3 + 1


def test_what_nobody_counted_is_nothing() -> None:
    windows: Windows[str] = Windows(10, 0.0)
    assert windows.recent("a") == NOTHING
    assert windows.total("a") == [0] * COLUMNS
    assert len(windows.recent("a").day) == len(LASTING)


def test_keys_beyond_the_bound_are_counted_as_unnamed_and_take_nobodys_row() -> None:
    windows: Windows[int] = Windows(100, 0.0)
    tick(windows, range(103), deltas(*range(103)), 1.0)
    assert (len(windows), windows.unnamed) == (100, 3)
    assert [windows.total(key)[0] for key in range(103)] == [*range(100), 0, 0, 0]
    windows.forget(7)
    tick(windows, [102], deltas(5), 2.0)
    assert windows.recent(102).day == [5, 10, 15, 20, 45, 50]
    assert windows.total(7)[0] == 0


def test_when_all_rows_are_taken_those_without_counts_for_a_day_make_room() -> None:
    windows: Windows[str] = Windows(3, 0.0)
    tick(windows, ["a", "b", "c"], deltas(1, 1, 1), 1.0)
    tick(windows, ["b"], deltas(1), 86_000.0)
    tick(windows, ["d"], deltas(4), 86_400.0 + 3_600.0)
    assert [windows.total(key)[0] for key in "abcd"] == [0, 2, 0, 4]
    tick(windows, ["e"], deltas(5), 86_400.0 + 3_601.0)
    tick(windows, ["f"], deltas(6), 86_400.0 + 3_602.0)
    assert (windows.total("e")[0], windows.total("f")[0], windows.unnamed) == (5, 0, 1)


def test_the_busiest_are_those_of_the_last_minute_then_of_the_day() -> None:
    windows: Windows[str] = Windows(100, 0.0)
    tick(windows, ["old", "older"], deltas(900, 1000), 10.0)
    tick(windows, ["a", "b", "c"], deltas(1, 3, 1), 600.0)
    assert windows.busiest(10) == ["b", "a", "c", "older", "old"]
    assert windows.busiest(2) == ["b", "a"] or windows.busiest(2) == ["b", "c"]
    assert windows.busiest(4)[3] == "older"


def test_a_row_takes_as_much_memory_as_is_said() -> None:
    windows: Windows[int] = Windows(1024, 0.0)
    tick(windows, range(1024), deltas(*range(1024)), 1.0)
    matrices = [windows._totals, windows._second]
    for ring in (windows._minute, windows._hour, windows._day):
        matrices += [ring.table, ring.sums]
    assert sum(matrix.nbytes for matrix in matrices) == 1024 * ROW_BYTES
