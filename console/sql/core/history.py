"""A range of the past in a few hundred steps: which table to read, how wide a step is, what is answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

POINTS_MAX: Final = 720
"""Steps of one answer: a chart has hardly more pixels."""

RANGE_MAX_S: Final = 10 * 366 * 86_400
"""The widest range: ten years."""

STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400, 7 * 86_400),
)


class CountTable(NamedTuple):
    """A table of counts by time: `unit_s` seconds a row, told by `column`."""

    name: str
    column: str
    unit_s: int
    width_max_s: int
    """The widest range that is read from this table, so that an answer takes some million rows at most."""


TABLES: Final = (
    CountTable("tps_1s", "second", 1, 2 * 3600),
    CountTable("tps_1m", "minute", 60, 5 * 86_400),
    CountTable("tps_1h", "hour", 3600, RANGE_MAX_S + STEPS_S[-1]),
)


class ReadPlan(NamedTuple):
    """Read `table` from `first` to before `until` (seconds since the epoch) in steps of `step_s`."""

    table: CountTable
    first: int
    until: int
    step_s: int


def plan(first: int, until: int, present: Collection[str], kept_from: Mapping[str, int]) -> ReadPlan | None:
    """Decide how to show `first` to `until`; None when no table is `present`.

    The finest table that is meant for such a width and goes back so far (`kept_from`: its oldest second by
    its retention); else the next coarser one; else the coarsest of those that are finer. The ends are moved
    outwards to whole steps.
    """
    width = until - first
    there = [table for table in TABLES if table.name in present]
    if not there:
        return None
    fit = [t for t in there if width <= t.width_max_s and kept_from.get(t.name, 0) <= first]
    table = fit[0] if fit else there[-1]
    step = step_of(width, table.unit_s)
    return ReadPlan(table, first - first % step, until + -until % step, step)


def step_of(width_s: int, least_s: int, points: int = POINTS_MAX) -> int:
    """Return the smallest step of at least `least_s` that shows `width_s` in so many `points`."""
    return next((s for s in STEPS_S if s >= least_s and width_s <= s * points), STEPS_S[-1])


def statement(chosen: ReadPlan, top: int) -> tuple[str, list[int]]:
    """Return the SQL, with its parameters, of (step's second, topic or None, messages, bytes, latency).

    None is all topics but the `top` busiest of the range, together.
    """
    name, column = chosen.table.name, chosen.table.column
    within = f"{column} >= to_timestamp(?) AND {column} < to_timestamp(?)"
    text = f"""
        WITH busiest AS (
            SELECT topic FROM {name} WHERE {within}
            GROUP BY topic ORDER BY sum(messages) DESC, topic LIMIT ?
        )
        SELECT epoch_us({column}) // 1000000 // ? * ? AS step,
               CASE WHEN topic IN (SELECT topic FROM busiest) THEN topic END AS topic,
               sum(messages)::BIGINT, sum(bytes)::BIGINT, max(latency_max_ms)::BIGINT
        FROM {name} WHERE {within}
        GROUP BY ALL ORDER BY ALL"""  # noqa: S608 # names of ours, values as parameters
    ends = [chosen.first, chosen.until]
    return text, [*ends, top, chosen.step_s, chosen.step_s, *ends]


def answer(chosen: ReadPlan, rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the range as columns: a number per step for each topic, busiest first, and for the others."""
    count = (chosen.until - chosen.first) // chosen.step_s
    lines: dict[str | None, dict[str, Any]] = {}
    for second, topic, messages, size, latency in rows:
        line = lines.get(topic)
        if line is None:
            line = lines[topic] = {name: [0] * count for name in ("messages", "bytes", "latency_max_ms")}
        at = (second - chosen.first) // chosen.step_s
        line["messages"][at], line["bytes"][at], line["latency_max_ms"][at] = messages, size, latency
    named = sorted((t for t in lines if t is not None), key=lambda t: (-sum(lines[t]["messages"]), t))
    return {
        "first": chosen.first,
        "until": chosen.until,
        "step_seconds": chosen.step_s,
        "table": chosen.table.name,
        "topics": [{"topic": topic, **lines[topic]} for topic in named],
        "others": lines.get(None),
    }
