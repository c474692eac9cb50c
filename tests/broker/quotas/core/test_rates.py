from __future__ import annotations

import pytest

from broker.quotas.core import rates as module
from broker.quotas.core.rates import PublishRates
from holdmq.quotas.limits import QuotaBook
from holdmq.wire.quota_headers import KEY, USER, QuotaRow


def made(*quotas: QuotaRow) -> PublishRates:
    book = QuotaBook()
    book.replace(quotas)
    return PublishRates(book)


ONE = ("key:orders",)


def test_a_producer_sends_until_it_owes_and_waits_until_it_has_paid() -> None:
    rates = made(QuotaRow(KEY, "orders", publish_rate=100))
    assert rates.wait_s(ONE, 150, 0, 0.0) == 0
    assert rates.take(ONE, 150, 0, 0.0) == pytest.approx(0.5)
    assert rates.wait_s(ONE, 10, 0, 0.0) == pytest.approx(0.5)
    assert rates.wait_s(ONE, 10, 0, 0.51) == 0
    assert rates.used("key:orders", 0.51)[2] == 1


def test_those_who_wait_get_turns_one_behind_the_other_none_too_late() -> None:
    rates = made(QuotaRow(KEY, "orders", publish_rate=100))
    rates.take(ONE, 150, 0, 0.0)
    waits = [rates.wait_s(ONE, 50, 0, 0.0) for _ in range(6)]
    assert waits == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0])
    assert rates.waited == 6


def test_bytes_are_a_rate_of_their_own_and_nobody_without_a_quota_waits() -> None:
    rates = made(QuotaRow(KEY, "orders", publish_bytes_rate=1000))
    rates.take(ONE, 1_000_000, 3000, 0.0)
    assert rates.wait_s(ONE, 1, 1, 0.0) == pytest.approx(2.0)
    assert rates.wait_s(("key:other",), 1, 1, 0.0) == 0
    assert rates.wait_s((), 1, 1, 0.0) == 0
    assert rates.take(("key:other",), 1 << 40, 1 << 40, 0.0) == 0
    assert rates.principals() == ["key:orders"]


def test_each_of_several_brokers_grants_its_part() -> None:
    rates = made(QuotaRow(KEY, "orders", publish_rate=90))
    rates.parts = 3
    assert rates.take(ONE, 30, 0, 0.0) == 0
    assert rates.take(ONE, 15, 0, 0.0) == pytest.approx(0.5)
    rates.parts = 3
    assert rates.wait_s(ONE, 1, 0, 0.0) > 0, "nothing has changed"
    rates.parts = 1
    assert rates.wait_s(ONE, 1, 0, 0.0) == 0


def test_over_ten_seconds_the_rate_is_kept_by_many_producers() -> None:
    rates = made(QuotaRow(KEY, "orders", publish_rate=1000))
    ready = dict.fromkeys(range(20), 0.0)
    sent = first = 0
    now = 0.0
    while now < 11.0:
        for n, at in ready.items():
            if at <= now:
                wait_s = rates.wait_s(ONE, 100, 0, now)
                if wait_s:
                    ready[n] = now + wait_s * 1.25
                else:
                    rates.take(ONE, 100, 0, now)
                    sent += 100
        now += 0.01
        if now <= 1.0:
            first = sent
    assert 9_000 <= sent - first <= 11_000


def test_what_is_used_is_a_mean_of_the_last_seconds() -> None:
    rates = made(QuotaRow(USER, "*", publish_rate=1000))
    for tenth in range(300):
        rates.take(("user:ada",), 10, 1000, tenth / 10)
    messages, size_bytes, _ = rates.used("user:ada", 30.0)
    assert messages == pytest.approx(100, rel=0.1)
    assert size_bytes == pytest.approx(10_000, rel=0.1)
    assert rates.used("user:ada", 90.0)[0] < 1
    assert rates.used("user:eve", 90.0) == (0.0, 0.0, 0)


def test_thousands_of_users_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACES_MAX", 100)
    rates = made(QuotaRow(USER, "*", publish_rate=1))
    for n in range(5_000):
        rates.take((f"user:{n}",), 5, 0, n / 1000)
    assert len(rates) <= 100
    assert rates.evicted == 5_000 - len(rates)
    assert rates.wait_s(("user:4999",), 1, 0, 5.0) > 0
