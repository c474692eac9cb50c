from __future__ import annotations

import itertools
import random

import pytest

from broker.joining.core.marks import KEEP_MS, Mark, RowKey, RowMarks, digest_of

T = RowKey("topics", "t")
NOW = 1_800_000_000_000


def told(source: RowMarks, target: RowMarks, now_ms: int = NOW) -> None:
    """Tell one broker's marks to another, page by page."""
    after: RowKey | None = None
    while True:
        found, after = source.page(after, 2)
        for key, mark in found:
            target.learn(key, mark, now_ms)
        if after is None:
            return


def test_a_row_that_was_never_deleted_has_no_mark() -> None:
    marks = RowMarks()
    marks.note_made(T, NOW)
    assert len(marks) == 0
    assert marks.digest == 0
    assert not marks.is_deleted(T)


def test_a_deletion_is_known_until_the_row_is_made_again() -> None:
    marks = RowMarks()
    marks.note_deleted(T, NOW)
    assert marks.is_deleted(T)
    assert marks.deleted() == [T]
    marks.note_made(T, NOW - 5)
    assert not marks.is_deleted(T), "also by a clock that went back"
    marks.note_deleted(T, NOW - 9)
    assert marks.is_deleted(T)


def test_the_later_one_holds_and_a_deletion_if_both_are_of_one_moment() -> None:
    marks = RowMarks()
    assert marks.learn(T, Mark(NOW, False), NOW)
    assert marks.learn(T, Mark(NOW, True), NOW)
    assert not marks.learn(T, Mark(NOW, False), NOW)
    assert not marks.learn(T, Mark(NOW, True), NOW)
    assert marks.learn(T, Mark(NOW + 1, False), NOW)
    assert not marks.is_deleted(T)


def test_an_old_mark_is_forgotten_and_not_learnt_again() -> None:
    marks, other = RowMarks(), RowMarks()
    marks.note_deleted(T, NOW)
    told(marks, other)
    for each in (marks, other):
        each.expire(NOW + KEEP_MS - 1)
        assert each.is_deleted(T)
    marks.expire(NOW + KEEP_MS)
    assert (len(marks), marks.digest) == (0, 0)
    told(other, marks, NOW + KEEP_MS)
    assert len(marks) == 0


def test_the_oldest_goes_when_there_are_too_many() -> None:
    marks = RowMarks(marks_max=3)
    for number in range(5):
        marks.note_deleted(RowKey("topics", str(number)), NOW + number)
    assert {key.name for key in marks.deleted()} == {"2", "3", "4"}


@pytest.mark.parametrize("seed", range(20))
def test_brokers_that_tell_each_other_have_the_same_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    brokers = [RowMarks() for _ in range(3)]
    keys = [RowKey(table, name) for table in ("topics", "groups") for name in "abc"]
    for step in range(60):
        marks, key = chance.choice(brokers), chance.choice(keys)
        now_ms = NOW + step + chance.randrange(-3, 4)
        (marks.note_deleted if chance.random() < 0.6 else marks.note_made)(key, now_ms)
        if chance.random() < 0.3:
            told(*chance.sample(brokers, 2))
    for source, target in itertools.product(brokers, brokers):
        told(source, target)
    assert len({marks.digest for marks in brokers}) == 1
    assert len({frozenset(marks.deleted()) for marks in brokers}) == 1


def test_the_file_has_what_is_known() -> None:
    marks, loaded = RowMarks(), RowMarks()
    for number in range(4):
        marks.note_deleted(RowKey("topics", str(number)), NOW + number)
    marks.note_made(RowKey("topics", "1"), NOW)
    loaded.load(marks.content())
    assert loaded.content() == marks.content()
    assert loaded.digest == marks.digest


@pytest.mark.parametrize("mark", [["topics", "t", 1.5, True], ["topics", 7, 1, True], ["topics", "t"], [1]])
def test_what_is_no_mark_is_refused(mark: list[object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        RowMarks().load({"marks": [mark]})
    with pytest.raises(TypeError):
        RowMarks().load({"marks": 7})


def test_a_digest_is_of_the_names_in_any_order_and_of_their_table() -> None:
    assert digest_of("topics", ["a", "b"]) == digest_of("topics", ["b", "a"])
    assert digest_of("topics", ["a"]) != digest_of("topics", ["b"])
    assert digest_of("topics", ["a"]) != digest_of("groups", ["a"])
    assert digest_of("topics", []) == 0
