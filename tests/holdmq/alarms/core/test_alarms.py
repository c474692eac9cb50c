"""When alarms are raised and over, and when somebody is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdmq.alarms.core.alarms import (
    RECOVER_SHARE,
    AlarmKey,
    Alarms,
    Notice,
    Reading,
    State,
)

KEY = AlarmKey("backlog_messages", "billing")
COOLDOWN_S = 100.0


def reading(value: int, threshold: int = 10, name: str = "billing") -> Reading:
    return Reading(AlarmKey("backlog_messages", name), value, threshold, f"{value} wait")


def states(notices: list[Notice]) -> list[State]:
    return [notice.state for notice in notices]


def update(alarms: Alarms, now: float, *values: int) -> list[Notice]:
    return alarms.update([reading(value) for value in values], now, int(now * 1000))


def test_an_alarm_is_raised_at_its_threshold_and_told_once() -> None:
    alarms = Alarms(COOLDOWN_S)
    assert update(alarms, 0, 9) == []
    assert update(alarms, 1, 10) == [Notice(State.RAISED, KEY, 10, 10, 10, 1000, 1000, "10 wait")]
    assert update(alarms, 2, 30) == []
    assert update(alarms, 3, 20) == []
    assert (alarms.raised[KEY].peak, alarms.raised[KEY].reading.value) == (30, 20)
    assert alarms.raised_total == 1


def test_it_is_over_well_below_the_threshold_and_that_is_told_once() -> None:
    alarms = Alarms(COOLDOWN_S)
    update(alarms, 0, 12)
    assert update(alarms, 1, 8) == []
    assert update(alarms, 2, 7) == [Notice(State.OVER, KEY, 7, 10, 12, 0, 2000, "8 wait")]
    assert update(alarms, 3, 7) == []
    assert not alarms.raised


def test_what_is_not_read_any_more_is_over() -> None:
    alarms = Alarms(COOLDOWN_S)
    update(alarms, 0, 10)
    assert states(update(alarms, 1)) == [State.OVER]


def test_one_that_lasts_is_told_after_every_cooldown() -> None:
    alarms = Alarms(COOLDOWN_S)
    told = [now for now in range(0, 350, 10) if update(alarms, now, 10)]
    assert told == [0, 100, 200, 300]
    assert states(update(alarms, 400, 10)) == [State.LASTS]


def test_one_that_comes_and_goes_is_told_once_in_a_cooldown() -> None:
    alarms = Alarms(COOLDOWN_S)
    told = [state for now in range(100) for state in states(update(alarms, now, 10 * (now % 2)))]
    assert told == [State.RAISED, State.OVER]
    assert states(update(alarms, 101, 10)) == [State.RAISED]
    assert states(update(alarms, 102, 0)) == [State.OVER]


def test_one_that_comes_in_its_cooldown_and_stays_is_told_when_that_ends() -> None:
    alarms = Alarms(COOLDOWN_S)
    update(alarms, 0, 10)
    update(alarms, 1, 0)
    assert update(alarms, 50, 10) == []
    assert states(update(alarms, 100, 10)) == [State.RAISED]


def test_alarms_beyond_the_bound_are_counted_and_not_raised() -> None:
    alarms = Alarms(COOLDOWN_S, alarms_max=2)
    notices = alarms.update([reading(10, name=name) for name in "abc"], 0, 0)
    assert [notice.key.name for notice in notices] == ["a", "b"]
    assert alarms.refused == 1
    alarms.update([], 1, 1)
    assert alarms.update([reading(10, name="c")], 2, 2) == []
    assert states(alarms.update([reading(10, name="c")], 200, 200)) == [State.RAISED]


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), max_size=80))
def test_who_is_told_that_it_is_raised_is_told_that_it_is_over_and_not_more_often_than_the_cooldown(
    steps: list[tuple[int, int]],
) -> None:
    alarms = Alarms(COOLDOWN_S)
    now, open_told, told_at = 0, False, -1000
    for gap, value in steps:
        now += gap
        was_raised = KEY in alarms.raised
        for notice in update(alarms, now, value):
            if notice.state is State.OVER:
                assert open_told
                assert value < 10 * RECOVER_SHARE
                open_told = False
            else:
                assert (notice.state is State.LASTS) == open_told
                assert now - told_at >= COOLDOWN_S
                assert value >= 10 * RECOVER_SHARE
                open_told, told_at = True, now
        is_raised = value >= 10 or (was_raised and value >= 10 * RECOVER_SHARE)
        assert (KEY in alarms.raised) == is_raised
        assert not (open_told and not is_raised)
        assert not (is_raised and not open_told and now - told_at >= COOLDOWN_S)


def test_what_is_told_once_and_resumed_is_told_that_it_is_over() -> None:
    alarms = Alarms(10.0, is_repeated=False)
    reading = Reading(AlarmKey("broker_lost", "b"), 1, 1, "gone")
    assert [notice.state for notice in alarms.update([reading], 0.0, 0)] == [State.RAISED]
    assert alarms.update([reading], 100.0, 100_000) == []
    successor = Alarms(10.0, is_repeated=False)
    successor.resume(reading, 0)
    assert successor.update([reading], 0.0, 200_000) == [], "its predecessor told it"
    (over,) = successor.update([], 1.0, 201_000)
    assert (over.state, over.since_ms, over.text) == (State.OVER, 0, "gone")
