"""The live window: sums, settled seconds, bounds."""

from __future__ import annotations

import pytest

from console.live.core.window import IDLE_AFTER_S, WINDOW_S, Count, TpsWindow, busiest

NOW = 1_800_000_000


def test_parts_of_a_second_from_several_files_add_up() -> None:
    window = TpsWindow()
    window.add("a", [(NOW, "devices", 3, 30), (NOW, "meters", 1, 5)])
    window.add("b", [(NOW, "devices", 4, 40)])
    assert window.since(NOW) == [(NOW, {"devices": Count(7, 70), "meters": Count(1, 5)})]


def test_a_compaction_changes_nothing() -> None:
    window = TpsWindow()
    window.add("a", [(NOW, "devices", 3, 30)])
    window.add("b", [(NOW, "devices", 4, 40), (NOW + 1, "devices", 1, 10)])
    before = window.since(0)
    before = [(second, dict(topics)) for second, topics in before]
    window.remove("a")
    window.remove("b")
    assert window.since(0) == []
    assert window.cell_count == 0
    window.add("ab", [(NOW, "devices", 7, 70), (NOW + 1, "devices", 1, 10)])
    assert window.since(0) == before
    assert window.files == {"ab"}


def test_seconds_leave_the_window_when_they_are_too_old() -> None:
    window = TpsWindow()
    window.add("a", [(NOW - WINDOW_S - 1, "devices", 1, 1), (NOW, "devices", 2, 2)])
    window.forget_before(NOW)
    assert [second for second, _ in window.since(0)] == [NOW]
    window.add("late", [(NOW - WINDOW_S - 5, "devices", 9, 9)])
    assert [second for second, _ in window.since(0)] == [NOW]
    # What was trimmed must not be subtracted again when its file goes.
    window.forget_before(NOW + 120)
    window.remove("a")
    assert window.cell_count == 0


def test_too_many_topics_shorten_the_window_from_its_old_end() -> None:
    window = TpsWindow(cells_max=10)
    for second in range(5):
        window.add(f"f{second}", [(NOW + second, f"t{k}", 1, 1) for k in range(4)])
    assert window.cell_count <= 10
    assert [second for second, _ in window.since(0)] == [NOW + 3, NOW + 4]
    assert window.cut_seconds == 3


@pytest.mark.parametrize(
    ("ago", "second", "messages"),
    [
        (1.2, -1, 5),  # the newest second may still grow: the one before it counts
        (4.1, 0, 7),  # it ended 3.1 s ago: complete
        (IDLE_AFTER_S + 1, None, 0),  # nothing flows any more
    ],
)
def test_the_current_rate_is_that_of_the_newest_complete_second(
    ago: float, second: int | None, messages: int
) -> None:
    window = TpsWindow()
    window.add("a", [(NOW - 1, "devices", 5, 50), (NOW, "devices", 7, 70)])
    current = window.current(NOW + ago)
    assert current.second == (None if second is None else NOW + second)
    assert current.total.messages == messages


def test_the_busiest_topics_come_first_and_ties_by_name() -> None:
    window = TpsWindow()
    window.add("a", [(NOW, "b", 2, 0), (NOW, "a", 2, 0), (NOW, "c", 9, 0)])
    assert busiest(window.since(0), None) == ["c", "a", "b"]
    assert busiest(window.since(0), 2) == ["c", "a"]
