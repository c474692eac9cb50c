"""What a leader keeps of its log for copies."""

from __future__ import annotations

from broker.replication.fetched import KEEP_S, FetchedPositions


def test_the_log_is_kept_for_the_copy_that_is_furthest_behind() -> None:
    fetched = FetchedPositions()
    assert fetched.lowest(0.0) is None
    fetched.fetched("a", 700, 0.0)
    fetched.fetched("b", 300, 0.0)
    assert fetched.lowest(1.0) == 300
    fetched.fetched("b", 900, 1.0)
    assert fetched.lowest(1.0) == 700
    fetched.clear()
    assert fetched.lowest(1.0) is None


def test_a_copy_that_asks_for_nothing_holds_the_log_for_so_long_only() -> None:
    fetched = FetchedPositions()
    fetched.fetched("a", 700, 0.0)
    fetched.fetched("b", 300, 0.0)
    fetched.fetched("a", 800, KEEP_S - 1)
    assert fetched.lowest(KEEP_S - 1) == 300
    assert fetched.lowest(KEEP_S) == 800


def test_a_copy_that_gets_tables_keeps_what_is_kept_for_it_and_for_no_other() -> None:
    fetched = FetchedPositions()
    fetched.fetched("gone", 100, 0.0)
    fetched.fetched("new", 300, 0.0)
    fetched.is_busy("new", KEEP_S - 1)
    fetched.is_busy("never heard of", KEEP_S - 1)
    assert fetched.lowest(KEEP_S) == 300
