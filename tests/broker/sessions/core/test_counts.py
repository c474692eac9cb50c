"""Sessions by user are right at the end, whatever changes while a start counts them page by page."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from broker.sessions.core.counts import CountedRow, UserCounts

LONG = "x" * 400
IDS = [
    *"abcdefgh",
    "é",
    "\ufffd",
    "\U0001f600",
    *(f"{LONG}{n}" for n in range(6)),
    f"{LONG[:366]}",
    f"{LONG[:360]}y",
]
"""Long ones lie in no order among those that begin alike: here the shortest first."""
USERS = ["", "ada", "eve"]
Change = tuple[int, str, str | None]


def order(client_id: str) -> tuple[bytes, int, bytes]:
    return client_id.encode()[:366], len(client_id), bytes(255 - byte for byte in client_id.encode())


@given(
    st.dictionaries(st.sampled_from(IDS), st.sampled_from(USERS)),
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(IDS), st.sampled_from([None, *USERS]))),
    st.integers(1, 4),
)
def test_every_session_is_counted_once(start: dict[str, str], changes: list[Change], page_rows: int) -> None:
    counts, rows = UserCounts(), dict(start)
    queue = sorted(changes, key=lambda change: change[0])
    after: str | None = None
    step = 0
    while True:
        known = sorted(rows, key=order)
        page = [i for i in known if after is None or order(i) > order(after)][:page_rows]
        seen = [CountedRow(i, rows[i]) for i in page]
        # Between what a reader thread saw and its being counted sessions change as well.
        while queue and queue[0][0] <= step:
            _, client_id, user = queue.pop(0)
            counts.change(client_id, rows.pop(client_id, None), user)
            if user is not None:
                rows[client_id] = user
        if not seen:
            break
        counts.count(seen)
        after = page[-1]
        step += 1
    counts.complete()
    for _, client_id, user in queue:
        counts.change(client_id, rows.pop(client_id, None), user)
        if user is not None:
            rows[client_id] = user
    expected = Counter(rows.values())
    assert {user: counts.of(user) for user in USERS} == {user: expected[user] for user in USERS}
    assert len(counts) == len(expected), "who has none costs nothing"


def test_long_client_ids_that_begin_alike_are_known_one_by_one() -> None:
    counts = UserCounts()
    # By the bytes that the table orders them by all four are one place.
    counts.count([CountedRow(f"{LONG}3", "ada"), CountedRow(f"{LONG}1", "ada")])
    counts.count([CountedRow(f"{LONG}2", "ada")])
    counts.change(f"{LONG}3", "ada", None)
    counts.change(f"{LONG}0", "ada", None)
    assert counts.of("ada") == 2, "the last one was not counted yet"
    counts.count([CountedRow(f"{LONG}0", "ada")])
    assert counts.of("ada") == 2
    counts.change(f"{LONG}2", "ada", "eve")
    counts.complete()
    assert (counts.of("ada"), counts.of("eve")) == (1, 1)


def test_pages_after_the_last_one_count_nothing() -> None:
    counts = UserCounts()
    counts.count([CountedRow("a", "ada")])
    counts.complete()
    assert counts.is_complete
    counts.count([CountedRow("a", "ada")])
    assert counts.of("ada") == 1
