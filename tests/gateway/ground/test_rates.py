from __future__ import annotations

import pytest

from gateway.ground import rates
from gateway.ground.rates import Allowances


def test_a_minute_s_allowance_may_be_used_up_at_once_and_comes_back_slowly() -> None:
    allowed = Allowances(3)
    assert [allowed.try_take("c", 0.0) for _ in range(4)] == [True, True, True, False]
    assert allowed.try_take("d", 0.0)
    assert [allowed.try_take("c", 20.0) for _ in range(2)] == [True, False]


def test_no_more_names_are_remembered_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "ALLOWANCES_MAX", 2)
    allowed = Allowances(1)
    for name in "abc":
        assert allowed.try_take(name, 0.0)
    assert len(allowed) == 2
    assert not allowed.try_take("c", 0.0)
    assert allowed.try_take("a", 0.0)
