from __future__ import annotations

from gateway.access.core.answers import Answers


def test_an_answer_counts_until_its_time() -> None:
    answers: Answers[str] = Answers(10)
    answers.put("a", "yes", 100.0)
    assert answers.get("a", 99.9) == "yes"
    assert answers.get("a", 100.0) is None
    assert len(answers) == 0


def test_the_least_recently_used_goes_first() -> None:
    answers: Answers[int] = Answers(3)
    for key in range(3):
        answers.put(key, key, 100.0)
    assert answers.get(0, 1.0) == 0
    answers.put(3, 3, 100.0)
    assert [answers.get(key, 1.0) for key in range(4)] == [0, None, 2, 3]


def test_a_new_answer_replaces_the_old_one() -> None:
    answers: Answers[str] = Answers(2)
    answers.put("a", "no", 10.0)
    answers.put("a", "yes", 20.0)
    assert answers.get("a", 15.0) == "yes"
    assert len(answers) == 1
