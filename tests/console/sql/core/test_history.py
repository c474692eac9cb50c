"""Which table and step show a range, and the columns that are answered."""

from __future__ import annotations

import pytest

from console.sql.core.history import POINTS_MAX, RANGE_MAX_S, ReadPlan, answer, plan

NOW = 1_800_000_000
ALL = {"tps_1s", "tps_1m", "tps_1h"}
DAY = 86_400


@pytest.mark.parametrize(
    ("width", "table", "step"),
    [
        (1, "tps_1s", 1),
        (600, "tps_1s", 1),
        (3600, "tps_1s", 5),
        (7200, "tps_1s", 10),
        (7201, "tps_1m", 60),
        (DAY, "tps_1m", 120),
        (5 * DAY, "tps_1m", 600),
        (5 * DAY + 1, "tps_1h", 3600),
        (365 * DAY, "tps_1h", DAY),
        (RANGE_MAX_S, "tps_1h", 7 * DAY),
    ],
)
def test_the_width_of_a_range_decides_table_and_step(width: int, table: str, step: int) -> None:
    chosen = plan(NOW - width, NOW, ALL, {})
    assert chosen is not None
    assert (chosen.table.name, chosen.step_s) == (table, step)
    assert (chosen.until - chosen.first) // step <= POINTS_MAX + 2
    assert chosen.first % step == chosen.until % step == 0
    assert chosen.first <= NOW - width
    assert chosen.until >= NOW


def test_seconds_that_are_not_kept_so_long_are_read_by_the_minute() -> None:
    kept_from = {"tps_1s": NOW - 2 * DAY}
    old = plan(NOW - 3 * DAY, NOW - 3 * DAY + 600, ALL, kept_from)
    new = plan(NOW - DAY, NOW - DAY + 600, ALL, kept_from)
    assert old is not None
    assert new is not None
    assert (old.table.name, old.step_s) == ("tps_1m", 60)
    assert (new.table.name, new.step_s) == ("tps_1s", 1)


def test_a_finer_table_stands_in_for_those_that_are_not_there_yet() -> None:
    chosen = plan(NOW - 30 * DAY, NOW, {"tps_1s"}, {"tps_1s": NOW - 2 * DAY})
    assert chosen is not None
    assert (chosen.table.name, chosen.step_s) == ("tps_1s", 3600)
    assert plan(NOW - 60, NOW, {"backlog"}, {}) is None


def test_an_answer_has_a_number_for_every_step_and_the_busiest_topic_first() -> None:
    chosen = plan(NOW - 4, NOW, ALL, {})
    assert chosen is not None
    chosen = ReadPlan(chosen.table, NOW - 4, NOW, 2)
    rows = [(NOW - 4, "few", 1, 10, 3), (NOW - 2, "many", 9, 90, 4), (NOW - 4, None, 2, 20, 5)]
    found = answer(chosen, rows)
    assert [line["topic"] for line in found["topics"]] == ["many", "few"]
    assert found["topics"][0] == {
        "topic": "many",
        "messages": [0, 9],
        "bytes": [0, 90],
        "latency_max_ms": [0, 4],
    }
    assert found["others"] == {"messages": [2, 0], "bytes": [20, 0], "latency_max_ms": [5, 0]}
