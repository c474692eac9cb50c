from __future__ import annotations

import pytest

from gateway.protect.core import flapping
from gateway.protect.core.flapping import Ban, Bans, Flapping

HERE, THERE = b"\x0a\0\0\1", b"\x0a\0\0\2"


def test_one_connect_too_many_within_the_window_is_told_with_their_number() -> None:
    counted = Flapping(3, 60)
    assert [counted.connected(("c", HERE), 100.0 + n) for n in range(4)] == [0, 0, 0, 4]


def test_after_that_the_count_begins_anew() -> None:
    counted = Flapping(1, 60)
    assert [counted.connected(("c", HERE), 100.0) for _ in range(4)] == [0, 2, 0, 2]


def test_a_window_ends() -> None:
    counted = Flapping(2, 60)
    assert [counted.connected(("c", HERE), at) for at in (0.0, 59.0, 60.0, 61.0, 62.0)] == [0, 0, 0, 0, 3]


def test_the_same_name_elsewhere_and_others_at_the_same_address_are_counted_apart() -> None:
    counted = Flapping(1, 60)
    assert [counted.connected(key, 0.0) for key in (("c", HERE), ("c", THERE), ("d", HERE))] == [0, 0, 0]


def test_windows_that_are_over_are_forgotten() -> None:
    counted = Flapping(9, 60)
    counted.connected(("a", HERE), 0.0)
    counted.connected(("b", HERE), 30.0)
    counted.connected(("a", HERE), 59.0)
    counted.expire(60.0)
    assert len(counted) == 1
    counted.expire(90.0)
    assert len(counted) == 0


def test_a_principal_s_connects_are_forgotten_wherever_they_came_from() -> None:
    counted = Flapping(1, 60)
    for key in (("a", HERE), ("a", THERE), ("b", HERE)):
        counted.connected(key, 0.0)
    counted.forget("a")
    assert [counted.connected(key, 1.0) for key in (("a", HERE), ("a", THERE), ("b", HERE))] == [0, 0, 2]
    counted.forget(None)
    assert len(counted) == 0


def test_no_more_clients_are_counted_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flapping, "FLAPPING_MAX", 3)
    counted = Flapping(1, 60)
    for n in range(10):
        counted.connected((str(n), HERE), 0.0)
    assert len(counted) == 3
    assert counted.connected(("9", HERE), 1.0) == 2
    assert counted.connected(("0", HERE), 1.0) == 0


def test_a_ban_ends_by_itself() -> None:
    bans = Bans()
    bans.add(Ban(("c", HERE), 100.0, 5))
    assert bans.of(("c", HERE), 99.0) is not None
    assert bans.of(("c", HERE), 100.0) is None
    assert bans.of(("c", THERE), 99.0) is None
    bans.expire(99.0)
    assert len(bans) == 1
    bans.expire(100.0)
    assert len(bans) == 0


def test_bans_are_lifted_by_principal_or_all() -> None:
    bans = Bans()
    for name, address in (("c", HERE), ("c", THERE), ("d", HERE)):
        bans.add(Ban((name, address), 100.0, 5))
    assert bans.lift("c") == 2
    assert [ban.key for ban in bans.all()] == [("d", HERE)]
    assert bans.lift(None) == 1
    assert bans.lift(None) == 0


def test_past_the_bound_the_ban_that_ends_first_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flapping, "BANS_MAX", 2)
    bans = Bans()
    for name, until in (("a", 300.0), ("b", 100.0), ("c", 200.0), ("c", 400.0)):
        bans.add(Ban((name, HERE), until, 5))
    assert [ban.key[0] for ban in bans.all()] == ["a", "c"]
