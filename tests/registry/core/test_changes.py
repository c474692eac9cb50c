from __future__ import annotations

from registry.core.changes import Changes


def test_only_changes_of_the_named_topics_or_of_brokers_count() -> None:
    changes = Changes(100)
    changes.note(["t"], False)
    known = changes.version
    assert not changes.since(known, ["t", "u"])
    assert not changes.since(known, None)
    changes.note(["u"], False)
    assert changes.since(known, ["t", "u"])
    assert not changes.since(known, ["t"])
    assert changes.since(known, None)
    changes.note([], True)
    assert changes.since(known, ["t"])


def test_a_version_of_somebody_else_is_always_out_of_date() -> None:
    changes = Changes(100)
    assert not changes.since(100, None)
    assert changes.since(99, ["t"])
    assert changes.since(101, ["t"])


def test_what_is_remembered_is_bounded() -> None:
    changes = Changes(0, changes_max=2)
    changes.note(["t"], False)
    known = changes.version
    changes.note(["u", "v"], False)
    assert changes.since(known, ["t"])
    assert not changes.since(changes.version, ["t"])
