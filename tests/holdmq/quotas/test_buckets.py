from __future__ import annotations

import pytest

from holdmq.quotas.buckets import Bucket, Pace


def test_a_second_s_worth_may_come_at_once_and_what_is_more_is_owed() -> None:
    bucket = Bucket(10, 100.0)
    assert bucket.take(10, 100.0) == 0
    assert bucket.take(5, 100.0) == pytest.approx(0.5)
    assert bucket.take(0, 100.25) == pytest.approx(0.25)
    assert bucket.take(0, 100.5) == 0


def test_over_a_long_time_the_rate_is_kept_whatever_the_portions() -> None:
    bucket, now, taken = Bucket(100, 0.0), 0.0, 0
    while now < 60:
        taken += 37
        now += bucket.take(37, now)
    assert taken == pytest.approx(60 * 100, abs=137)


def test_nothing_is_saved_up_beyond_a_second_s_worth() -> None:
    bucket = Bucket(10, 0.0)
    assert bucket.take(11, 1000.0) == pytest.approx(0.1)


def test_a_rate_below_one_a_second_lets_one_through_at_a_time() -> None:
    bucket = Bucket(0.5, 0.0)
    assert bucket.try_take(0.0)
    assert not bucket.try_take(1.0)
    assert bucket.try_take(2.0)
    assert not bucket.try_take(3.0)
    assert bucket.try_take(4.0)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(1, 100.0)
    bucket.take(1, 100.0)
    assert bucket.take(1, 50.0) == 1.0


def test_a_client_is_paused_for_the_longer_of_what_it_owes() -> None:
    pace = Pace(10, 1000, 0.0)
    assert pace.take(10, 1000, 0.0) == 0
    assert pace.take(1, 500, 0.0) == pytest.approx(0.5)
    assert pace.take(19, 0, 0.0) == pytest.approx(2.0)


def test_what_has_no_limit_is_not_counted() -> None:
    assert Pace(0, 10, 0.0).take(1_000_000, 0, 0.0) == 0
    assert Pace(10, 0, 0.0).take(0, 1_000_000, 0.0) == 0


def test_what_is_left_and_what_something_costs_are_seconds_of_the_scarcer() -> None:
    pace = Pace(10, 1000, 0.0)
    assert pace.left_s(0.0) == 1.0
    pace.take(5, 900, 0.0)
    assert pace.left_s(0.0) == pytest.approx(0.1)
    assert pace.cost_s(1, 500) == pytest.approx(0.5)
    assert pace.owed_s(0.0) == 0
    pace.take(0, 200, 0.0)
    assert (pace.left_s(0.0), pace.owed_s(0.0)) == (pytest.approx(-0.1), pytest.approx(0.1))
