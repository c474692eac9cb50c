from __future__ import annotations

import numpy as np
import pytest

from broker.shared_groups.core.subscriptions import SubscriptionFilter
from holdmq.errors import RemoteError
from holdmq.record.tags import tag_hash
from storage.api.queues import HashFilter

TAGS = [None, "a", "a/b", "a/c", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*", TAGS),
        ("#", TAGS),
        ("a", ["a"]),
        ("a || b", ["a", "b"]),
        ("a/#", ["a", "a/b", "a/c"]),
        ("+", ["a", "b"]),
    ],
)
def test_each_form_passes_what_it_names_by_tag_and_not_less_by_hash(text: str, expected: list[str]) -> None:
    wanted = SubscriptionFilter(text)
    assert [tag for tag in TAGS if wanted.passes(tag)] == expected
    hashes = wanted.hashes("t", 1)
    if hashes is not None:
        known = np.array([tag_hash(None if tag is None else tag.encode(), 1) for tag in TAGS], np.uint64)
        passed = {tag for tag, may in zip(TAGS, HashFilter(*hashes).mask(known).tolist(), strict=True) if may}
        assert passed >= set(expected)


@pytest.mark.parametrize("text", ["a/#/b", "a+", "||".join("abc" * 400), "x" * 40_000])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(RemoteError):
        SubscriptionFilter(text)
