from __future__ import annotations

import pytest

from gateway.protect.core import overload
from gateway.protect.core.overload import (
    BROKER,
    BUSY_MAX_S,
    CALM_S,
    LAG,
    MEMORY,
    NORMAL,
    PAUSE_AFTER_S,
    PAUSING,
    REFUSING,
    Overload,
    noisiest,
)

LIMIT = 1000


def levels(overload: Overload, memory: list[int], start: float = 0.0) -> list[int]:
    """The level after each sample, one a second."""
    return [overload.sample(used, 0.0, start + n) for n, used in enumerate(memory)]


def test_pressure_that_lasts_refuses_connections_then_pauses_and_never_more() -> None:
    worker = Overload(0.5, LIMIT)
    found = levels(worker, [LIMIT] * 10)
    assert found == [NORMAL, REFUSING, REFUSING, REFUSING, PAUSING] + [PAUSING] * 5
    assert worker.cause == MEMORY
    assert found.index(PAUSING) - found.index(REFUSING) == PAUSE_AFTER_S


def test_one_bad_moment_is_no_overload() -> None:
    assert levels(Overload(0.5, LIMIT), [0, 5 * LIMIT, 0, 5 * LIMIT, 0]) == [NORMAL] * 5


def test_it_recovers_by_itself_one_step_at_a_time() -> None:
    worker = Overload(0.5, LIMIT)
    levels(worker, [LIMIT] * 5)
    found = levels(worker, [0] * 8, 5.0)
    assert found == [PAUSING] * 3 + [REFUSING] * 3 + [NORMAL] * 2
    assert found.index(REFUSING) == CALM_S


def test_between_calm_and_the_limit_what_was_decided_holds() -> None:
    worker = Overload(0.5, LIMIT)
    levels(worker, [LIMIT] * 2)
    assert levels(worker, [900] * 20, 2.0) == [REFUSING] * 20
    assert levels(Overload(0.5, LIMIT), [900] * 20) == [NORMAL] * 20


def test_calm_is_counted_from_the_last_sample_that_was_none() -> None:
    worker = Overload(0.5, LIMIT)
    levels(worker, [LIMIT] * 2)
    assert levels(worker, [0, 0, 900, 0, 0, 0, 0], 2.0) == [REFUSING] * 6 + [NORMAL]


def test_lag_counts_only_where_every_tick_was_late() -> None:
    worker = Overload(0.5, 0)
    for now in range(5):
        for late in (0.9, 0.9, 0.1, 3.0):
            worker.ticked(late)
        assert worker.sample(0, 0.0, float(now)) == NORMAL
    for now in range(5, 7):
        for late in (0.9, 0.6, 3.0):
            worker.ticked(late)
        level = worker.sample(0, 0.0, float(now))
    assert level == REFUSING
    assert worker.cause == LAG


def test_brokers_that_stay_busy_count() -> None:
    worker = Overload(0.0, 0)
    assert [worker.sample(0, BUSY_MAX_S, float(now)) for now in range(2)] == [NORMAL, REFUSING]
    assert worker.cause == BROKER


def test_a_limit_of_0_is_not_looked_at() -> None:
    worker = Overload(0.0, 0)
    worker.ticked(60.0)
    assert levels(worker, [1 << 50] * 5) == [NORMAL] * 5


def test_the_noisiest_are_those_that_sent_half_of_it() -> None:
    assert noisiest([("a", 10), ("b", 60), ("c", 30)]) == ["b"]
    assert noisiest([("a", 30), ("b", 30), ("c", 40), ("d", 0)]) == ["c", "a"]
    assert noisiest([]) == []
    assert noisiest([("a", 0), ("b", 0)]) == []


def test_no_more_are_paused_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload, "NOISIEST_MAX", 3)
    assert len(noisiest((n, 1) for n in range(100))) == 3
