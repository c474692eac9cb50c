from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.session.lag import Lag
from gateway.session.replay import ReplayError, ReplayStart, replay_of

NOON_MS = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)


def asked(value: str) -> ReplayStart | None:
    return replay_of((("unit", "s"), ("from", value)))


def test_without_the_property_nothing_is_replayed() -> None:
    assert replay_of(()) is None
    assert replay_of((("From", "earliest"), ("to", "latest"))) is None


@pytest.mark.parametrize(
    ("value", "store_ms"),
    [
        ("earliest", 0),
        ("2026-01-31T12:00:00Z", NOON_MS),
        ("2026-01-31t12:00:00.25z", NOON_MS + 250),
        ("2026-01-31T13:30:00.123456789+01:30", NOON_MS + 123),
        ("1969-12-31T23:00:00Z", 0),
        ("0", 5_000_000),
        ("60", 4_940_000),
        ("0.5", 4_999_500),
        ("9999999999", 1),
    ],
)
def test_the_beginning_is_a_moment_or_so_many_seconds_ago(value: str, store_ms: int) -> None:
    replay = asked(value)
    assert replay is not None
    assert replay.store_ms(5_000_000) == store_ms


@pytest.mark.parametrize(
    "value",
    [
        "", "latest", "EARLIEST", "-1", "1e3", "12345678901", "1.", "٣", "2026-01-31", "2026-01-31T12:00:00",
        "2026-13-31T12:00:00Z", "2026-01-31T25:00:00Z", "2026-01-31T12:00:00+0100", "x" * 60_000,
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_what_is_possible(value: str) -> None:
    with pytest.raises(ReplayError, match="earliest, a time like") as refused:
        asked(value)
    assert len(str(refused.value)) < 200


def test_two_beginnings_are_none() -> None:
    with pytest.raises(ReplayError, match="more than once"):
        replay_of((("from", "1"), ("from", "1")))


# What a session that goes back has of it


def test_who_goes_back_stands_where_the_replay_begins() -> None:
    lag = Lag()
    assert lag.stands_at("b", 500) == 500
    lag.replay_from("b", 3, 100, 500)
    assert (lag.positions, lag.log_epoch_at("b", 9), lag.filters_added) == ({"b": 100}, 3, 1)
    assert not lag.wants_live("b", 600)
    assert lag.stands_at("b", 700) == 100
    # A later beginning than where it stands moves nothing.
    lag.replay_from("b", 4, 100, 100)
    assert (lag.positions, lag.log_epoch_at("b", 9)) == ({"b": 100}, 3)


def test_a_floor_counts_as_delivered_and_is_gone_below_a_replay() -> None:
    lag = Lag()
    lag.fall_behind("b", 100)
    lag.caught_up("b", 300)
    assert lag.stands_at("b", 200) == 300
    assert lag.stands_at("b", 400) == 400
    lag.replay_from("b", 1, 50, 300)
    assert (lag.positions, lag.floor_at("b")) == ({"b": 50}, None)


def test_messages_of_qos_0_are_replayed_until_the_live_feed_goes_on() -> None:
    lag = Lag()
    lag.fall_behind("slow", 10)
    assert not lag.replays("slow", 20)
    lag.replay_from("b", 1, 100, 500)
    assert lag.replays("b", 600)
    assert not lag.replays("slow", 20)
    lag.caught_up("b", 800)
    assert lag.replays("b", 799)
    assert not lag.replays("b", 800)
    assert lag.replaying == set()
