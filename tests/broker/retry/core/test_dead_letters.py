from __future__ import annotations

import itertools
import random

import pytest

from broker.retry.core import dead_letters
from broker.retry.core.dead_letters import LetterMarks, Marks, OffsetRanges
from holdmq.errors import StoreFormatError


def test_offsets_are_a_set_in_as_few_ranges_as_can_be() -> None:
    offsets, model = OffsetRanges(), set[int]()
    chance = random.Random(7)
    for _ in range(3_000):
        value = chance.randrange(120)
        match chance.randrange(12):
            case 0:
                offsets.drop_below(value // 4)
                model = {o for o in model if o >= value // 4}
            case 1:
                offsets.drop_from(90 + value // 4)
                model = {o for o in model if o < 90 + value // 4}
            case _:
                offsets.add(value)
                model.add(value)
        ranges = offsets.ranges
        assert [o for first, end in ranges for o in range(first, end)] == sorted(model)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
        assert (value in offsets) == (value in model)
        assert offsets.count_from(value) == sum(o >= value for o in model)
        assert len(offsets) == len(ranges)
        inside = [o for first, end in offsets.between(value, value + 30) for o in range(first, end)]
        assert inside == sorted(o for o in model if value <= o < value + 30)


def test_when_letters_were_sent_again_is_known_of_each_in_as_few_stamps_as_can_be() -> None:
    marks, model = LetterMarks(), dict[int, tuple[int, str]]()
    chance = random.Random(8)
    for _ in range(3_000):
        value, at_ms, by = chance.randrange(120), chance.randrange(2), chance.choice(["", "ada"])
        match chance.randrange(14):
            case 0:
                marks.drop_below(value // 4)
                model = {o: when for o, when in model.items() if o >= value // 4}
            case 1:
                marks.cut(0, 90 + value // 4)
                model = {o: when for o, when in model.items() if o < 90 + value // 4}
            case 2 if value not in model:
                # As after a crash: it is known of the letter, but not of the moment.
                marks.resent.add(value)
                model[value] = (-1, "")
            case _:
                marks.note_resent(value, at_ms, by)
                model.setdefault(value, (at_ms, by))
        found = marks.resends_between(value, value + 30)
        assert [(o, (at, by)) for first, end, at, by in found for o in range(first, end)] == sorted(
            (o, when) for o, when in model.items() if value <= o < value + 30
        )
        pairs = itertools.pairwise(marks.stamps.between(0, 999))
        assert all(one.end < two.first or one[2:] != two[2:] for one, two in pairs)


def test_past_their_number_the_moments_of_the_oldest_letters_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letters, "STAMPS_MAX", 2)
    marks = LetterMarks()
    for offset in (6, 2, 4):
        marks.note_resent(offset, 10 + offset, "ada")
    assert marks.resends_between(0, 9) == [(2, 3, -1, ""), (4, 5, 14, "ada"), (6, 7, 16, "ada")]


def test_marks_are_what_the_file_says_and_a_purge_forgets_what_it_took() -> None:
    marks = Marks()
    for offset in (1, 2, 5):
        marks.of("g").note_resent(offset, 70, "ada")
    content = marks.content({"g": 2, "h": 9})
    assert content == {
        "g": {
            "purged": 2,
            "resent": [[2, 3], [5, 6]],
            "stamps": [[2, 3, 70, "ada"], [5, 6, 70, "ada"]],
            "forgotten": {},
        },
        "h": {"purged": 9, "resent": [], "stamps": [], "forgotten": {}},
    }
    assert marks.of("g").purged == 0
    again = Marks()
    again.load(content, "deadLetters.json")
    assert again.content({}) == content
    again.of("g").cut(0, 5)
    again.of("h").cut(0, 3)
    assert again.content({}) == {
        "g": {"purged": 2, "resent": [[2, 3]], "stamps": [[2, 3, 70, "ada"]], "forgotten": {}},
        "h": {"purged": 3, "resent": [], "stamps": [], "forgotten": {}},
    }


def test_a_file_of_an_earlier_build_says_what_was_sent_again_but_not_when() -> None:
    marks = Marks()
    marks.load({"g": {"purged": 0, "resent": [[2, 4]], "forgotten": {}}}, "deadLetters.json")
    assert marks.of("g").resends_between(0, 9) == [(2, 4, -1, "")]


def test_what_was_moved_before_a_group_began_anew_is_known_by_where_its_copy_is() -> None:
    marks = Marks()
    marks.of("g").forgotten["t"] = [10, 4]
    again = Marks()
    again.load(marks.content({}), "deadLetters.json")
    group = again.of("g")
    assert [group.is_forgotten("t", 0, offset) for offset in (9, 10)] == [True, False]
    assert [group.is_forgotten("t", 1, offset) for offset in (3, 4)] == [True, False]
    assert not group.is_forgotten("u", 0, 0)
    group.cut(8, 3)
    assert group.forgotten == {"t": [8, 3]}
    group.forgotten[""] = [5, 5]
    assert group.is_forgotten("u", 0, 4)


def test_marks_that_say_nothing_any_more_are_forgotten() -> None:
    marks = Marks()
    marks.of("gone").forgotten.update({"t": [5, 0], "u": [5, 1]})
    marks.of("kept").forgotten["t"] = [6, 0]
    marks.of("purged").purge(3)
    marks.of("empty")
    marks.of("old").note_resent(0, 70, "ada")
    for offset in (0, 1):
        marks.of("resent").note_resent(offset, 70, "ada")
    marks.prune(lambda _: (5, 1))
    assert [group for group, _ in marks.items()] == ["kept", "purged", "resent"]
    assert marks.of("resent").resends_between(0, 9) == [(1, 2, 70, "ada")]
    assert marks.of("resent").resent.ranges == [[1, 2]]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"purged": 1},
        {"purged": "1", "resent": [], "forgotten": {}},
        {"purged": 1, "resent": [[1]], "forgotten": {}},
        {"purged": 1, "resent": [[3, 2]], "forgotten": {}},
        {"purged": 1, "resent": [[1, 3], [2, 4]], "forgotten": {}},
        {"purged": 1, "resent": [[1, -3]], "forgotten": {}},
        {"purged": True, "resent": [], "forgotten": {}},
        {"purged": 1, "resent": []},
        {"purged": 1, "resent": [], "forgotten": {"t": [1]}},
        {"purged": 1, "resent": [], "forgotten": [1]},
        {"purged": 1, "resent": [], "forgotten": {}, "stamps": [[1, 2, 70]]},
        {"purged": 1, "resent": [], "forgotten": {}, "stamps": [[1, 2, 70, 7]]},
        {"purged": 1, "resent": [], "forgotten": {}, "stamps": [[2, 2, 70, "ada"]]},
        {"purged": 1, "resent": [], "forgotten": {}, "stamps": [[1, 4, 70, "ada"], [3, 5, 70, "ada"]]},
        [],
    ],
)
def test_an_entry_that_says_nothing_of_dead_letters_is_named(entry: object) -> None:
    with pytest.raises(StoreFormatError, match="'g'"):
        Marks().load({"g": entry}, "deadLetters.json")
