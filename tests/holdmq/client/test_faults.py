from __future__ import annotations

import pytest

from holdmq.client.faults import LATENCIES_MS, RESTS_MS, Faults, rest_ms


@pytest.mark.parametrize(
    ("latency_ms", "rest"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (549, 0),
        (550, 2000),
        (1799, 2000),
        (1800, 5000),
        (14_999, 10_000),
        (1e6, 30_000),
    ],
)
def test_the_table_says_how_long_a_broker_rests(latency_ms: float, rest: int) -> None:
    assert rest_ms(latency_ms) == rest
    assert len(LATENCIES_MS) == len(RESTS_MS)


def test_a_slow_answer_rests_a_broker_and_a_quick_one_ends_it() -> None:
    faults = Faults()
    faults.sent("a", 0.0)
    faults.answered("a", 0.6, 0.6)
    assert faults.is_resting("a", 2.5)
    assert not faults.is_resting("a", 2.7)
    faults.observe("a", 20_000, 3.0)
    assert faults.is_resting("a", 32.9)
    faults.sent("a", 10.0)
    faults.answered("a", 0.01, 10.0)
    assert not faults.is_resting("a", 10.0)
    assert not faults.is_resting("unknown", 0.0)
    assert faults.rests == 2


def test_silence_begins_with_a_question_and_ends_with_any_answer() -> None:
    faults = Faults()
    assert faults.silence_s("a", 5.0) == 0.0
    faults.sent("a", 10.0)
    faults.sent("a", 12.0)
    assert faults.silence_s("a", 13.0) == 3.0
    faults.answered("a", 3.0, 13.0)
    assert faults.silence_s("a", 14.0) == 1.0
    faults.answered("a", 2.0, 14.0)
    assert faults.silence_s("a", 20.0) == 0.0


def test_questions_that_were_given_up_leave_a_broker_silent_until_it_connects_again() -> None:
    faults = Faults()
    faults.sent("a", 10.0)
    faults.unheard("a")
    faults.sent("a", 15.0)
    assert faults.silence_s("a", 20.0) == 10.0
    faults.of("a").is_away = True
    assert faults.is_resting("a", 20.0)
    faults.connected("a")
    assert faults.silence_s("a", 21.0) == 0.0
    assert not faults.is_away("a")


def test_nobody_is_blamed_for_the_time_that_this_process_slept() -> None:
    faults = Faults()
    faults.sent("a", 10.0)
    faults.slept(30.0)
    assert faults.silence_s("a", 41.0) == 1.0
