"""Sessions of browsers: how long they last, how many there are, what ends them."""

from __future__ import annotations

from console.identity.sessions import OF_ACCOUNT_MAX, SESSIONS_MAX, SignedInTable


def test_a_session_ends_when_it_is_idle_and_when_it_is_old() -> None:
    table = SignedInTable(idle_s=10, longest_s=25)
    secret, session = table.begin("ann", 0.0)
    assert table.use(secret, 9.0) == session
    assert table.use(secret, 18.0) == session
    assert table.use(secret, 26.0) is None
    idle, _ = table.begin("ann", 0.0)
    assert table.use(idle, 10.0) is None
    assert len(table) == 0


def test_a_look_at_a_session_is_no_use_of_it() -> None:
    table = SignedInTable(idle_s=10, longest_s=25)
    secret, session = table.begin("ann", 0.0)
    assert table.look(secret, 9.0) == session
    assert table.look(secret, 10.0) is None
    assert table.use(secret, 10.0) is None
    assert table.look("", 0.0) is None


def test_sessions_end_by_themselves_and_by_account() -> None:
    table = SignedInTable(100, 100)
    first, _ = table.begin("ann", 0.0)
    second, _ = table.begin("ann", 0.0)
    other, session = table.begin("bob", 0.0)
    table.end(first)
    assert table.use(first, 1.0) is None
    table.end_of("ann")
    assert table.use(second, 1.0) is None
    assert table.use(other, 1.0) == session
    assert table.use("", 1.0) is None


def test_the_table_is_bounded_and_one_account_cannot_fill_it() -> None:
    table = SignedInTable(1e9, 1e9)
    kept, _ = table.begin("bob", 0.0)
    for _ in range(OF_ACCOUNT_MAX + 5):
        table.begin("ann", 1.0)
    assert len(table) == OF_ACCOUNT_MAX + 1
    assert table.use(kept, 2.0) is not None
    for number in range(SESSIONS_MAX + 5):
        table.begin(f"user-{number}", 3.0)
    assert len(table) == SESSIONS_MAX
