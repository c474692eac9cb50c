from __future__ import annotations

import os

import pytest

from spark_streaming.source.kept import Kept


class Value:
    def __init__(self, key: str) -> None:
        self.key = key
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_value_is_made_once_for_its_key_until_it_is_closed() -> None:
    kept = Kept(Value)
    one, other = kept.get("one"), kept.get("other")
    assert (one.key, other.key) == ("one", "other")
    assert kept.get("one") is one
    kept.close()
    kept.close()
    assert (one.closed, other.closed) == (1, 1)
    assert kept.get("one") is not one


def test_a_forked_process_neither_uses_nor_closes_what_its_parent_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(Value)
    parent = kept.get("one")
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        own = kept.get("one")
        assert own is not parent
        kept.close()
        assert (own.closed, parent.closed) == (1, 0)
    assert kept.get("one") is parent
