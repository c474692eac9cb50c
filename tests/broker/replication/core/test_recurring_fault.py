"""How often a fault that comes back with every attempt is told."""

from __future__ import annotations

from broker.replication.core.recurring_fault import REMIND_S, FaultNews, RecurringFault


def test_a_fault_is_told_at_its_beginning_each_minute_and_at_its_end() -> None:
    fault = RecurringFault()
    told = {second: news for second in range(200) if (news := fault.failed(1000.0 + second)) is not None}
    assert told == {
        0: FaultNews(1, 0.0),
        60: FaultNews(61, 60.0),
        120: FaultNews(121, 120.0),
        180: FaultNews(181, 180.0),
    }
    assert REMIND_S == 60
    assert fault.succeeded(1200.0) == FaultNews(200, 200.0)
    assert fault.succeeded(1201.0) is None, "it is over once"
    assert fault.failed(1202.0) == FaultNews(1, 0.0), "and another one is news at once"


def test_what_never_failed_is_not_told() -> None:
    assert RecurringFault().succeeded(1.0) is None
