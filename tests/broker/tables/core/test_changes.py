"""Changes of tables under way: repeats, and the version that a row has now."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.tables.core.changes import RowName, TableChanges

A = RowName("t", "a")


def begin(
    changes: TableChanges[str], request_id: str, version: int, owner: str = "", row: RowName = A
) -> None:
    changes.begin(request_id, row, version, version + 10, version, owner)


def test_a_request_that_comes_again_finds_its_change_and_waits_with_it() -> None:
    changes: TableChanges[str] = TableChanges()
    begin(changes, "r1", 0, "first")
    known = changes.find("r1")
    assert known is not None
    known.waiting.append("second")
    assert (changes.in_hand, changes.confirm(known)) == (1, ["first", "second"])
    assert (changes.in_hand, changes.find("r1")) == (0, known)
    assert changes.find("r2") is None


def test_a_refused_request_may_come_again() -> None:
    changes: TableChanges[str] = TableChanges()
    change = changes.begin("r1", A, 0, 10, 0, "first")
    assert changes.refuse(change) == ["first"]
    assert changes.find("r1") is None
    assert changes.version_of(A) is None


def test_only_the_newest_confirmed_requests_are_remembered() -> None:
    changes: TableChanges[str] = TableChanges(window=3)
    for i in range(5):
        begin(changes, f"r{i}", i * 10)
    assert len(changes) == 5, "those in hand are never forgotten"
    for i in range(5):
        known = changes.find(f"r{i}")
        assert known is not None
        changes.confirm(known)
    begin(changes, "r5", 50)
    assert [changes.find(f"r{i}") is not None for i in range(6)] == [False, False, False, True, True, True]


def test_a_row_s_version_is_that_of_its_newest_change_until_the_table_shows_it() -> None:
    changes: TableChanges[str] = TableChanges()
    begin(changes, "r1", 0)
    changes.begin("r2", A, 10, 20, -1, "")
    assert changes.version_of(A) == -1, "it was deleted last"
    changes.applied(10)
    assert (changes.version_of(A), changes.unapplied) == (-1, 1)
    changes.applied(20)
    assert (changes.version_of(A), changes.unapplied) == (None, 0)


def test_a_change_that_comes_while_the_row_is_read_counts_though_the_table_shows_it_by_then() -> None:
    changes: TableChanges[str] = TableChanges()
    changes.begin_reading(A)
    begin(changes, "r1", 30)
    changes.applied(40)
    assert changes.end_reading(A, 7) == 30
    assert changes.version_of(A) is None


def test_a_row_is_read_again_when_a_change_that_came_meanwhile_was_refused() -> None:
    changes: TableChanges[str] = TableChanges()
    changes.begin_reading(A)
    begin(changes, "r1", 30)
    change = changes.begin("r2", A, 40, 50, 40, "")
    changes.refuse(change)
    assert changes.end_reading(A, 7) is None
    changes.begin_reading(A)
    assert changes.end_reading(A, 30) == 30


def test_positions_that_a_refused_change_gave_back_do_not_confuse_it_with_the_next() -> None:
    changes: TableChanges[str] = TableChanges()
    refused = changes.begin("r1", A, 0, 500, 0, "")
    changes.refuse(refused)
    begin(changes, "r2", 0)
    changes.applied(10)
    assert (changes.version_of(A), changes.unapplied) == (None, 0)


STEPS = st.lists(st.sampled_from(["put", "confirm", "apply", "read", "end"]), max_size=60)


@given(STEPS)
def test_whoever_reads_a_row_gets_the_version_it_has(steps: list[str]) -> None:
    """Against a model: the log's changes in order, of which a prefix is confirmed and a prefix applied."""
    changes: TableChanges[str] = TableChanges()
    log: list[int] = []
    in_hand, confirmed, applied, reading = [], 0, 0, []
    for number, step in enumerate(steps):
        if step == "put":
            log.append(number)
            in_hand.append(changes.begin(f"r{number}", A, number, number + 1, number, ""))
        elif step == "confirm" and in_hand:
            changes.confirm(in_hand.pop(0))
            confirmed += 1
        elif step == "apply":
            applied = confirmed
            changes.applied(log[applied - 1] + 1 if applied else 0)
        elif step == "read" and applied == confirmed and changes.version_of(A) is None:
            changes.begin_reading(A)
            reading.append(log[applied - 1] if applied else -1)
        elif step == "end" and reading:
            assert changes.end_reading(A, reading.pop(0)) == (log[-1] if log else -1)
        known = changes.version_of(A)
        assert known is None or known == log[-1]
        assert known is not None or applied == len(log) or not log
