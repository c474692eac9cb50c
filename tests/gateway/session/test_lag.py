from __future__ import annotations

import random

from gateway.session.lag import Lag, Starts


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
    lag.begin_at("b", 100, 1)
    assert lag.log_epoch_at("b", 2) == 1
    lag.caught_up("b", 300)
    lag.fall_behind("b", 400)
    assert lag.log_epoch_at("b", 2) == 2


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
    assert (lag.positions, lag.floor_at("b")) == ({"b": 120}, None)


def test_the_broker_that_was_caught_up_with_last_has_the_last_turn() -> None:
    lag = Lag()
    for broker in ("a", "b", "c"):
        lag.begin_at(broker, 100, 1)
    lag.caught_up("a", 200)
    lag.fall_behind("a", 300)
    assert list(lag.positions.items()) == [("b", 100), ("c", 100), ("a", 300)]
    lag.caught_up("c", 400)
    assert (lag.brokers(), lag.floor_at("c")) == (["b", "a", "c"], 400)


def test_what_catching_up_delivered_never_leads_back() -> None:
    lag = Lag()
    lag.begin_at("b", 100, 1)
    lag.reach("b", 300)
    lag.reach("b", 200)
    lag.reach("other", 500)
    assert lag.positions == {"b": 300}


def test_a_lag_of_many_brokers_knows_each_of_them_by_itself() -> None:
    chance, lag = random.Random(5), Lag()
    behind: dict[str, int] = {}
    floors: dict[str, int] = {}
    for step in range(2_000):
        broker, position = f"b{chance.randrange(5)}", chance.randrange(1_000)
        what = chance.randrange(4)
        if what == 0:
            lag.begin_at(broker, position, step)
            behind[broker] = position
        elif what == 1:
            lag.caught_up(broker, position)
            behind.pop(broker, None)
            floors[broker] = position
        elif what == 2:
            lag.relax(broker, position)
            if floors.get(broker, position + 1) <= position:
                del floors[broker]
        else:
            lag.fall_behind(broker, position)
            behind.setdefault(broker, max(position, floors.pop(broker, 0)))
            floors.pop(broker, None)
        assert lag.positions == behind
        assert lag.is_behind == bool(behind)
        assert lag.is_over == (not behind and not floors)
        assert {b: at for b in lag.brokers() if (at := lag.floor_at(b)) is not None} == floors


def test_a_subscription_counts_from_what_was_said_of_each_broker() -> None:
    starts = Starts()
    assert starts.is_empty
    starts.put("a", 100)
    starts.put("b", -1)
    starts.put("a", 200)
    assert [starts.get(broker) for broker in "abc"] == [200, -1, None]
    starts.forget("a")
    starts.forget("c")
    assert (starts.get("a"), starts.is_empty) == (None, False)
    starts.forget("b")
    assert starts.is_empty
