from __future__ import annotations

import pytest

from holdmq.credentials import login_failures
from holdmq.credentials.login_failures import (
    ADDRESS,
    KNOWN_OF_USER_MAX,
    KNOWN_S,
    PAIR,
    TOLD_AGAIN_S,
    USER,
    Login,
    LoginFailures,
    Rules,
    login_of,
    login_row,
)

HERE, THERE = b"\x0a\0\0\1", b"\x0a\0\0\2"
RULES = Rules(failures_max=3, delay_s=1.0, delay_max_s=10.0, forget_s=100.0)


def made(**rules: float) -> LoginFailures:
    return LoginFailures(RULES._replace(**rules), b"key")


def elsewhere(number: int) -> bytes:
    return b"\x0b" + number.to_bytes(3, "big")


def fail(failures: LoginFailures, login: Login, times: int, now: float) -> list[str]:
    return [who for _ in range(times) for who in failures.failed(login, now)]


def test_some_failures_are_free_then_each_doubles_the_wait_up_to_a_bound() -> None:
    failures = made()
    login = failures.login(HERE, "ada")
    now, waits = 0.0, []
    for _ in range(10):
        failures.failed(login, now)
        at = now
        while failures.is_held(login, at):
            at += 0.5
        waits.append(at - now)
        now = at
    assert waits == [0, 0, 0, 1, 2, 4, 8, 10, 10, 10]


def test_who_is_held_back_is_told_once_for_the_address_and_for_the_user() -> None:
    failures = made()
    assert fail(failures, failures.login(HERE, "ada"), 6, 0.0) == [ADDRESS, USER]
    assert failures.held == 2


def test_an_address_that_guesses_at_many_names_has_to_wait_and_others_do_not() -> None:
    failures = made()
    for n in range(4):
        failures.failed(failures.login(HERE, f"user-{n}"), 0.0)
    assert failures.is_held(failures.login(HERE, "ada"), 0.5)
    assert not failures.is_held(failures.login(THERE, "ada"), 0.5)


def test_a_name_that_many_addresses_guess_at_has_to_wait_everywhere() -> None:
    failures = made()
    for n in range(4):
        failures.failed(failures.login(elsewhere(n), "ada"), 0.0)
    assert failures.is_held(failures.login(HERE, "ada"), 0.5)
    assert not failures.is_held(failures.login(HERE, "eve"), 0.5)


def test_a_device_where_it_came_in_lately_is_not_locked_out_by_who_guesses_at_its_name() -> None:
    failures = made()
    device = failures.login(HERE, "meter-1")
    failures.succeeded(device, 0.0)
    for n in range(50):
        failures.failed(failures.login(elsewhere(n), "meter-1"), 1.0)
    assert failures.is_held(failures.login(THERE, "meter-1"), 1.5)
    assert not failures.is_held(device, 1.5)
    assert failures.is_held(failures.login(elsewhere(1), "meter-1"), 1.5)


def test_nor_by_who_fails_beside_it_at_the_same_address() -> None:
    failures = made()
    device = failures.login(HERE, "meter-1")
    failures.succeeded(device, 0.0)
    for n in range(20):
        failures.failed(failures.login(HERE, f"user-{n}"), 1.0)
    assert failures.is_held(failures.login(HERE, "meter-2"), 1.5)
    assert not failures.is_held(device, 1.5)


def test_where_a_user_is_known_guesses_at_his_name_are_counted_by_themselves() -> None:
    failures = made()
    device = failures.login(HERE, "ada")
    failures.succeeded(device, 0.0)
    assert PAIR in fail(failures, device, 4, 1.0)
    assert failures.is_held(device, 1.5)
    failures.succeeded(device, 3.0)
    assert PAIR not in fail(failures, device, 3, 3.0)
    assert not failures.is_held(device, 3.0)


def test_a_user_is_known_for_some_days() -> None:
    failures = made()
    failures.succeeded(failures.login(HERE, "ada"), 0.0)
    fail(failures, failures.login(THERE, "ada"), 4, KNOWN_S)
    assert failures.is_held(failures.login(HERE, "ada"), KNOWN_S)
    failures.expire(KNOWN_S)
    assert failures.known == 0


def test_the_same_wrong_secret_again_is_no_further_guess() -> None:
    failures = made()
    old = failures.login(HERE, "meter-1", b"old password")
    assert fail(failures, old, 50, 0.0) == []
    assert fail(failures, failures.login(HERE, "meter-2", b"old password"), 50, 0.0) == []
    # Others beside it have what it left of the address's failures.
    assert fail(failures, failures.login(HERE, "ada", b"1"), 1, 0.0) == []
    assert fail(failures, failures.login(HERE, "ada", b"2"), 1, 0.0) == [ADDRESS]


def test_an_address_may_fail_once_more_for_each_user_that_is_known_there() -> None:
    failures = made()
    for n in range(5):
        failures.succeeded(failures.login(HERE, f"meter-{n}"), 0.0)
    stranger = failures.login(HERE, "")
    assert fail(failures, stranger, 8, 1.0) == []
    assert fail(failures, stranger, 1, 1.0) == [ADDRESS]


def test_what_was_long_ago_is_forgotten() -> None:
    failures = made()
    login = failures.login(HERE, "ada")
    fail(failures, login, 3, 0.0)
    assert fail(failures, login, 3, 100.0) == []
    fail(failures, login, 3, 101.0)
    assert failures.held == 2
    failures.expire(200.9)
    assert failures.held == 2
    failures.expire(201.0)
    assert failures.held == 0


def test_who_failed_a_little_cannot_push_out_who_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_failures, "COUNTED_MAX", 10)
    failures = made(delay_s=1000.0, delay_max_s=1000.0, forget_s=1e6)
    victim = failures.login(HERE, "ada")
    fail(failures, victim, 4, 0.0)
    for n in range(10_000):
        failures.failed(failures.login(elsewhere(n), f"user-{n}"), 1.0)
    assert failures.is_held(failures.login(HERE, "eve"), 2.0)
    assert failures.is_held(failures.login(THERE, "ada"), 2.0)


def test_the_tables_are_bounded_and_who_failed_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_failures, "COUNTED_MAX", 10)
    monkeypatch.setattr(login_failures, "HELD_MAX", 5)
    failures = made(delay_s=1000.0, delay_max_s=1000.0, forget_s=1e6)
    for n in range(100):
        fail(failures, failures.login(elsewhere(n), ""), 4, float(n))
        fail(failures, failures.login(elsewhere(n), f"u{n}"), 1, float(n))
    assert failures.held == 5
    assert failures.is_held(failures.login(elsewhere(99), ""), 100.0)
    assert not failures.is_held(failures.login(elsewhere(1), ""), 100.0)
    assert all(len(table._counted) <= 10 for table in (failures._addresses, failures._users, failures._pairs))


def test_one_user_cannot_make_others_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_failures, "KNOWN_MAX", KNOWN_OF_USER_MAX + 1)
    failures = made()
    failures.succeeded(failures.login(HERE, "meter-1"), 0.0)
    for n in range(1000):
        failures.succeeded(failures.login(elsewhere(n), "eve"), 1.0)
    assert failures.known == KNOWN_OF_USER_MAX + 1
    fail(failures, failures.login(THERE, "meter-1"), 4, 2.0)
    assert not failures.is_held(failures.login(HERE, "meter-1"), 2.0)
    for n in range(1000):
        failures.succeeded(failures.login(HERE, f"other-{n}"), 3.0)
    assert failures.known == KNOWN_OF_USER_MAX + 1
    failures.expire(3.0 + KNOWN_S)
    assert (failures.known, failures._known_at, failures._known_of_user) == (0, {}, {})


def test_forgetting_a_user_lets_him_try_at_once() -> None:
    failures = made()
    fail(failures, failures.login(HERE, "ada"), 4, 0.0)
    assert failures.forget("eve") == 0
    assert failures.forget("ada") == 1
    assert not failures.is_held(failures.login(THERE, "ada"), 0.5)
    assert failures.is_held(failures.login(HERE, "ada"), 0.5)  # the address has failed too often as well
    assert failures.forget(None) == 1
    assert not failures.is_held(failures.login(HERE, "ada"), 0.5)


def test_a_login_is_told_to_others_without_its_name_and_secret() -> None:
    failures, other = made(), made()
    login = failures.login(HERE, "ada", b"secret")
    row = login_row(login)
    assert login_of(row) == login
    assert b"ada".hex() not in str(row)
    fail(other, login_of(login_row(failures.login(HERE, "ada"))), 4, 0.0)
    assert other.is_held(other.login(HERE, "ada"), 0.5)
    assert LoginFailures(RULES, b"another key").login(HERE, "ada", b"secret") != login


def test_others_are_told_of_a_known_user_when_that_is_news() -> None:
    failures = made()
    login = failures.login(HERE, "ada")
    assert [failures.succeeded(login, at) for at in (0.0, 1.0, TOLD_AGAIN_S, TOLD_AGAIN_S + 1)] == [
        True, False, True, False,
    ]  # fmt: skip
