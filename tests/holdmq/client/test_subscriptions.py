from __future__ import annotations

import pytest

from holdmq.client.subscriptions import TagFilter
from holdmq.errors import UsageError


@pytest.mark.parametrize(
    ("text", "passing", "rejected"),
    [
        ("*", [None, "", "a/b"], []),
        ("a", ["a"], [None, "a/b", "b"]),
        ("a || b/c", ["a", "b/c"], [None, "b", "a || b/c"]),
        ("a/+", ["a/b"], ["a", "a/b/c", None]),
        ("#", [None, "", "a"], []),
    ],
)
def test_a_filter_passes_what_it_names(
    text: str, passing: list[str | None], rejected: list[str | None]
) -> None:
    wanted = TagFilter(text)
    assert [tag for tag in [*passing, *rejected] if wanted.passes(tag)] == passing
    assert len(wanted.terms("t", 1)) == max(1, text.count("||") + 1)
    assert wanted.is_everything == (text == "*")


@pytest.mark.parametrize("text", ["", "a ||", "a || b/+", "a/#/b", "a+", "a\0"])
def test_what_can_be_no_filter_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="filter"):
        TagFilter(text)


def test_the_same_tags_have_the_same_text() -> None:
    assert TagFilter("b||a || a").text == TagFilter("a || b").text == "a || b"
