"""Readings of a leader's copies: who lags, who is missing for how long, and when one copy is left."""

from __future__ import annotations

from broker.alerts.core.shard_copies import CopyReadings, ShardCopies, leaderless
from holdmq.alarms.core.alarms import Reading

THREE = ShardCopies("broker-0", ("a", "b", "c"), frozenset("abc"), {"b": 0.0, "c": 0.0})


def raised(readings: CopyReadings, copies: ShardCopies, now: float) -> dict[str, Reading]:
    """Readings that reach their threshold, by kind."""
    found = list(readings.of(copies, now))
    return {one.key.kind: one for one in found if one.value >= one.threshold}


def test_copies_that_have_everything_raise_nothing() -> None:
    assert raised(CopyReadings(30, 60), THREE, 0) == {}


def test_a_copy_lags_from_its_threshold_on_and_by_its_name() -> None:
    readings = CopyReadings(30, 60)
    assert raised(readings, THREE._replace(behind_s={"b": 29.9, "c": 0}), 0) == {}
    found = raised(readings, THREE._replace(behind_s={"b": 30.2, "c": 0}), 0)["replica_lag"]
    assert (found.key.name, found.value, found.threshold) == ("b", 30, 30)
    assert raised(CopyReadings(0, 0), THREE._replace(behind_s={"b": 900.0}), 0) == {}


def test_a_copy_that_is_restarted_is_not_missing_and_one_that_stays_away_is() -> None:
    readings = CopyReadings(30, 60)
    without_c = THREE._replace(in_sync=frozenset("ab"))
    assert raised(readings, without_c, 100) == {}
    assert raised(readings, without_c, 159) == {}
    found = raised(readings, without_c, 160)["copies_missing"]
    assert (found.key.name, found.value) == ("broker-0", 1)
    assert "1 of 3 replicas" in found.text
    assert found.text.endswith("c; start them")
    # Once it was back its time begins anew.
    assert raised(readings, THREE, 170) == {}
    assert raised(readings, without_c, 180) == {}
    assert raised(CopyReadings(30, 0), without_c, 10_000) == {}


def test_that_one_copy_is_left_is_told_at_once() -> None:
    found = raised(CopyReadings(30, 60), THREE._replace(in_sync=frozenset("b")), 0)
    assert found.keys() == {"one_copy_left"}
    assert found["one_copy_left"].text.endswith("start a, c")
    two = ShardCopies("broker-0", ("a", "b"), frozenset("a"), {})
    assert raised(CopyReadings(30, 60), two, 0).keys() == {"one_copy_left"}


def test_who_sees_nobody_lead_says_of_which_broker_and_who_sees_it() -> None:
    reading = leaderless("broker-0", "b")
    assert (reading.key, reading.value, reading.threshold) == (("no_leader", "broker-0"), 1, 1)
    assert "broker-0" in reading.text
    assert "replica b" in reading.text
