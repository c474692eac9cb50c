from __future__ import annotations

import pytest

from holdmq.quotas import throttles as module
from holdmq.quotas.throttles import Throttles


def made(rate: float = 100.0) -> Throttles[str]:
    return Throttles(lambda principal: (rate, 0.0) if principal.startswith("user:") else None)


def send(throttles: Throttles[str], one: str, messages: int, now: float, principal: str = "user:ada") -> bool:
    """Whether it has to wait."""
    throttle = throttles.took(principal, messages, 0, now)
    if throttle is None:
        return False
    throttles.wait(one, throttle)
    return True


def test_all_of_one_user_share_its_rate_and_others_do_not_notice() -> None:
    throttles = made()
    assert not send(throttles, "a", 60, 0.0)
    assert send(throttles, "b", 60, 0.0)
    assert send(throttles, "a", 1, 0.0)
    assert not send(throttles, "c", 100, 0.0, "user:eve")
    assert not send(throttles, "d", 1_000_000, 0.0, "key:nobody")
    assert throttles.waiting == 2


def test_over_ten_seconds_the_rate_is_kept_however_many_send_at_ten_times_of_it() -> None:
    throttles = made(1000.0)
    free = {f"c{n}" for n in range(200)}
    sent, now, after_the_first = 0, 0.0, 0
    while now < 11.0:
        for one in sorted(free):
            sent += 50
            if send(throttles, one, 50, now):
                free.discard(one)
        free.update(throttles.let_on(now))
        now += 0.05
        if now <= 1.0:
            after_the_first = sent
    # The first second has the burst, and what all had in hand before anybody was told to wait.
    assert sent - after_the_first <= 10 * 1000 * 1.1
    assert sent >= 10 * 1000 * 0.9


def test_who_waited_first_is_let_on_first_and_nobody_twice_as_often() -> None:
    throttles = made(100.0)
    turns = dict.fromkeys("abcd", 0)
    free, now = set(turns), 0.0
    while now < 30.0:
        for one in sorted(free):
            turns[one] += 1
            if send(throttles, one, 30, now):
                free.discard(one)
        free.update(throttles.let_on(now))
        now += 0.1
    assert max(turns.values()) - min(turns.values()) <= 2


def test_one_that_a_broker_holds_waits_until_that_is_over() -> None:
    throttles = made()
    throttles.hold("user:ada", 2.0, 10.0)
    assert send(throttles, "a", 1, 10.0)
    assert throttles.let_on(11.9) == []
    assert throttles.let_on(12.1) == ["a"]
    throttles.hold("key:nobody", 2.0, 10.0)
    assert len(throttles) == 1


def test_one_that_is_gone_or_whose_rates_changed_waits_no_more() -> None:
    throttles = made(1.0)
    for one in "abc":
        assert send(throttles, one, 50, 0.0)
    throttles.forget("b")
    throttles.forget("unknown")
    assert throttles.rates_changed() == ["a", "c"]
    assert throttles.let_on(1000.0) == []
    assert not send(throttles, "a", 1, 1000.0)


def test_who_is_as_good_as_new_is_forgotten_and_no_more_are_remembered_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    throttles = made(10.0)
    send(throttles, "a", 5, 0.0)
    throttles.expire(0.1)
    assert len(throttles) == 1
    throttles.expire(1.0)
    assert len(throttles) == 0
    monkeypatch.setattr(module, "THROTTLES_MAX", 3)
    for n in range(10):
        assert send(throttles, f"c{n}", 50, 100.0, f"user:{n}")
    assert (len(throttles), throttles.evicted) == (3, 7)
    # Those of users that were forgotten are let on all the same.
    assert len(throttles.let_on(200.0)) == 10


def test_a_clock_that_jumps_ahead_gives_a_burst_and_no_more() -> None:
    throttles = made(10.0)
    assert send(throttles, "a", 50, 0.0)
    assert throttles.let_on(1e9) == ["a"]
    assert not send(throttles, "a", 10, 1e9)
    assert send(throttles, "a", 1, 1e9)


def test_nothing_is_saved_up_while_a_broker_holds() -> None:
    throttles = made(100.0)
    throttles.hold("user:ada", 5.0, 0.0)
    throttles.hold("user:ada", 1.0, 0.0)
    assert send(throttles, "a", 1, 0.0)
    assert not throttles.let_on(4.9)
    assert throttles.let_on(5.1) == ["a"]
    assert not send(throttles, "a", 8, 5.1)
    assert send(throttles, "a", 20, 5.1), "a second's worth was not there"
