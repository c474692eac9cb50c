from __future__ import annotations

from broker.joining.core.keeping import COUNTS_S, KEEPERLESS_S, Keepers, KeptCounts, may_keep

NOBODY = Keepers((), {})
NOTHING = KeptCounts(0, 0)


def keepers(**counts: KeptCounts | None) -> Keepers:
    return Keepers(counts, counts)


def test_the_first_broker_of_a_cluster_keeps() -> None:
    assert may_keep("c", False, False, NOBODY, 0) is True


def test_a_founder_beside_others_without_any_rows_keeps() -> None:
    assert may_keep("c", False, False, keepers(a=NOTHING, b=NOTHING), 0) is True
    assert may_keep("c", False, True, keepers(a=NOTHING), 0) is True


def test_who_joins_sessions_or_retained_messages_goes_without() -> None:
    assert may_keep("c", False, False, keepers(a=NOTHING, b=KeptCounts(1, 0)), 0) is False
    assert may_keep("c", False, False, keepers(a=KeptCounts(0, 1), b=None), 0) is False


def test_who_had_the_tables_or_is_in_the_routes_keeps() -> None:
    full = keepers(a=KeptCounts(1, 1))
    assert may_keep("c", True, False, full, 0) is True
    assert may_keep("a", False, False, full, 0) is True


def test_a_keeper_that_is_away_may_have_something() -> None:
    found = keepers(a=NOTHING, b=None)
    assert may_keep("c", False, False, found, COUNTS_S - 0.1) is None
    assert may_keep("c", False, False, found, COUNTS_S) is False
    assert may_keep("c", False, False, Keepers(("a",), {}), COUNTS_S) is False


def test_a_newcomer_waits_for_keepers_when_registries_have_forgotten_them() -> None:
    assert may_keep("c", False, True, NOBODY, KEEPERLESS_S - 0.1) is None
    assert may_keep("c", False, True, NOBODY, KEEPERLESS_S) is True
