from __future__ import annotations

from broker.joining.core.comparing import MARKS, Comparison

OWN = {MARKS: 0, "topics": 1}


def test_all_brokers_have_their_turn() -> None:
    comparison = Comparison()
    peers = {name: name.upper() for name in "abcde"}
    chosen = [list(comparison.chosen(peers, 2)) for _ in range(4)]
    assert chosen == [["a", "b"], ["c", "d"], ["e", "a"], ["b", "c"]]
    assert comparison.chosen({"c": "C"}, 2) == {"c": "C"}
    assert comparison.chosen({}, 2) == {}


def test_a_table_that_is_alike_is_left_alone() -> None:
    comparison = Comparison()
    assert not comparison.differs("a", "topics", {"topics": 1}, OWN)
    assert not comparison.differs("a", "topics", {}, OWN), "an earlier build does not have it"
    assert comparison.differs("a", "topics", {"topics": 2}, OWN)


def test_what_was_gone_through_is_left_alone_until_something_changes() -> None:
    comparison = Comparison()
    theirs = {"topics": 2}
    comparison.gone_through("a", "topics", theirs, OWN)
    assert not comparison.differs("a", "topics", theirs, OWN)
    assert comparison.differs("b", "topics", theirs, OWN)
    assert comparison.differs("a", "topics", {"topics": 3}, OWN), "the other has something new"
    assert comparison.differs("a", "topics", theirs, {**OWN, "topics": 5}), "something went here"
    assert comparison.differs("a", "topics", theirs, {**OWN, MARKS: 5}), "it may be made again"


def test_a_broker_that_went_is_forgotten() -> None:
    comparison = Comparison()
    comparison.gone_through("a", "topics", {"topics": 2}, OWN)
    comparison.chosen({"b": "B"}, 2)
    assert comparison.differs("a", "topics", {"topics": 2}, OWN)
