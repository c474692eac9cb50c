"""Who has which session, decided without IO."""

from __future__ import annotations

import itertools

from broker.core.session_rows import Found, Meta, RowChange, decode_meta, filter_key, meta_key, state_key
from broker.core.sessions import TAKEOVER_S, Kind, Opening, Sessions
from holdmq.errors import Code
from holdmq.wire.session_headers import (
    END,
    NEVER_EXPIRES_S,
    PUT_FILTER,
    PUT_STATE,
    SessionChange,
    SessionOpening,
)

NOW_MS = 1_000_000


class Table:
    """The core over rows in a dict: each step is done at once unless a test does it itself."""

    def __init__(self) -> None:
        uids = itertools.count(1)
        self.core: Sessions[str] = Sessions(100, NOW_MS, lambda: next(uids))
        self.rows: dict[str, bytes] = {}
        self.now = 0.0

    def found(self, client_id: str) -> Found | None:
        meta = self.rows.get(meta_key(client_id))
        if meta is None:
            return None
        prefix = filter_key(client_id, "")
        filters = [(key[len(prefix) :], v) for key, v in self.rows.items() if key.startswith(prefix)]
        return Found(decode_meta(meta), self.rows.get(state_key(client_id), b""), filters)

    def write(self, changes: list[RowChange]) -> None:
        for _, key, value in changes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def run(self) -> None:
        while self.core.to_read:
            opening = self.core.to_read.pop(0)
            self.core.loaded(opening, self.found(opening.wanted.client_id), NOW_MS)
            self.write(opening.changes)
            self.core.settled(opening, None, self.now)

    def open(self, client_id: str, owner: str = "g1", expiry_s: int = 60) -> Opening[str]:
        opening = self.core.open(SessionOpening(client_id, False, expiry_s, "", 0), owner, self.now)
        self.run()
        return opening

    def change(self, opening: Opening[str], kind: str, owner: str = "g1", expiry_s: int = 60) -> bool:
        assert opening.answer is not None
        change = SessionChange(opening.wanted.client_id, opening.answer.epoch, kind, "f", b"v", expiry_s)
        made = self.core.change(change, owner, self.now, NOW_MS)
        self.write(made or [])
        self.run()
        return made is not None


def test_epochs_rise_above_those_of_earlier_starts() -> None:
    table = Table()
    first, second = table.open("a"), table.open("b")
    assert [o.answer.epoch for o in (first, second) if o.answer] == [100, 101]
    table.rows[meta_key("c")] = Meta(5_000, 60, "", 9, 0, NOW_MS).encode()
    third = table.open("c")
    assert third.answer is not None
    assert third.answer.epoch == 5_001
    assert third.answer.uid == 9


def test_a_takeover_waits_for_the_end_or_its_deadline() -> None:
    table = Table()
    older = table.open("a")
    newer = table.open("a", "g2")
    assert [(t.owner, t.client_id) for t in table.core.taken] == [("g1", "a")]
    assert newer.answer is None
    assert table.change(older, PUT_STATE), "the older connection may still write"
    table.now = table.core.next_deadline() or 0.0
    assert table.now == TAKEOVER_S
    table.core.handle_deadline(table.now)
    table.run()
    assert newer.answer is not None
    assert newer.answer.is_present
    assert not table.change(older, PUT_STATE)
    assert table.change(newer, PUT_STATE, "g2")


def test_a_deadline_that_comes_after_the_end_changes_nothing() -> None:
    table = Table()
    older = table.open("a")
    table.open("a", "g2")
    assert table.change(older, END)
    newest = table.open("a", "g3")
    table.core.handle_deadline(TAKEOVER_S)
    table.run()
    assert table.core.counts.takeover_timeouts == 1, "only the newest one's"
    assert newest.answer is not None


def test_an_owner_that_goes_while_it_is_taken_over_holds_nothing_up() -> None:
    table = Table()
    table.open("a")
    newer = table.open("a", "g2")
    assert table.core.owner_gone("g1", 0.0, NOW_MS) == []
    table.run()
    assert newer.answer is not None
    assert newer.answer.is_present


def test_an_owner_that_goes_while_its_opening_is_read_has_nothing_in_the_end() -> None:
    table = Table()
    opening = table.core.open(SessionOpening("a", False, 60, "", 0), "g1", 0.0)
    assert table.core.owner_gone("g1", 0.0, NOW_MS) == []
    table.run()
    assert opening.answer is not None
    table.write(table.core.owner_gone("g1", 0.0, NOW_MS))
    assert len(table.core) == 0
    found = table.found("a")
    assert found is not None
    assert found.meta.ended_ms == NOW_MS


def test_what_cannot_be_written_is_not_open() -> None:
    table = Table()
    opening = table.core.open(SessionOpening("a", False, 60, "", 0), "g1", 0.0)
    table.core.to_read.clear()
    table.core.loaded(opening, None, NOW_MS)
    table.core.settled(opening, (Code.STORE_FULL, "full"), 0.0)
    assert opening.answer is not None
    assert opening.answer.code == Code.STORE_FULL
    assert len(table.core) == 0
    assert table.core.stored == 0


def test_stored_sessions_are_counted() -> None:
    table = Table()
    opened = table.open("a")
    table.open("b", expiry_s=0)
    assert table.core.stored == 1
    table.change(opened, PUT_FILTER)
    table.change(opened, END, expiry_s=0)
    assert table.core.stored == 0
    assert table.rows == {}


def test_expiry_is_looked_at_again_when_the_rows_are_read() -> None:
    table = Table()
    table.rows[meta_key("a")] = Meta(1, 60, "", 9, 0, NOW_MS - 60_000).encode()
    table.rows[meta_key("b")] = Meta(1, 60, "", 9, 0, NOW_MS - 59_999).encode()
    for client_id in ("a", "b"):
        opening = table.core.expire(client_id, 0.0)
        assert opening is not None
        assert opening.kind is Kind.EXPIRE
    table.run()
    assert list(table.rows) == [meta_key("b")]
    table.open("b")
    assert table.core.expire("b", 0.0) is None


def test_a_session_that_never_expires_stays() -> None:
    meta = Meta(1, NEVER_EXPIRES_S, "", 9, 0, 1)
    assert not meta.is_expired(1 << 60, 0)
