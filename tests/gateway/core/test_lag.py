from __future__ import annotations

from gateway.core.lag import Lag


def test_from_the_first_undelivered_record_on_the_live_feed_passes_a_session_by() -> None:
    lag = Lag()
    assert lag.wants_live("b", 100)
    lag.fall_behind("b", 100)
    assert not lag.wants_live("b", 100)
    assert not lag.wants_live("b", 200)
    assert lag.wants_live("other", 50)
    lag.fall_behind("b", 200)
    assert lag.positions == {"b": 100}


def test_what_catching_up_delivered_is_not_delivered_again_by_the_live_feed() -> None:
    lag = Lag()
    lag.fall_behind("b", 100)
    lag.caught_up("b", 300)
    assert not lag.is_over
    assert not lag.wants_live("b", 299)
    assert lag.wants_live("b", 300)
    assert lag.is_over


def test_a_position_from_the_live_feed_is_of_its_log_epoch_not_of_one_that_was_caught_up_with() -> None:
    lag = Lag()
    lag.positions["b"], lag.epochs["b"] = 100, 1
    lag.caught_up("b", 300)
    lag.fall_behind("b", 400)
    assert lag.epochs == {}


def test_falling_behind_again_below_what_was_delivered_starts_from_there() -> None:
    lag = Lag()
    lag.fall_behind("b", 100)
    lag.caught_up("b", 300)
    lag.fall_behind("b", 250)
    assert lag.positions == {"b": 300}


def test_what_a_paused_topic_had_kept_leads_back_below_where_catching_up_stands() -> None:
    lag = Lag()
    assert not lag.go_back("b", 50)
    lag.fall_behind("b", 100)
    assert lag.go_back("b", 70)
    assert (lag.positions, lag.filters_added) == ({"b": 70}, 1)
    # Further on than the first of them nothing changes.
    assert lag.go_back("b", 80)
    assert (lag.positions, lag.filters_added) == ({"b": 70}, 1)


def test_a_floor_does_not_cover_what_a_paused_topic_had_kept() -> None:
    lag = Lag()
    lag.fall_behind("b", 100)
    lag.caught_up("b", 300)
    lag.fall_behind("b", 120, is_late=True)
    assert (lag.positions, lag.floors) == ({"b": 120}, {})
