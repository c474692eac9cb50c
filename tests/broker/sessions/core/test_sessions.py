"""Who has which session, decided without IO."""

from __future__ import annotations

import itertools

from broker.sessions.core.counts import CountedRow, SessionUse
from broker.sessions.core.openings import Kind, Opening
from broker.sessions.core.rows import (
    FoundSession,
    Meta,
    RowChange,
    decode_meta,
    filter_key,
    meta_key,
    state_key,
)
from broker.sessions.core.sessions import TAKEOVER_S, OwnedSessions
from holdmq.errors import Code
from holdmq.wire.session_headers import (
    END,
    NEVER_EXPIRES_S,
    PUT_FILTER,
    PUT_STATE,
    SessionChange,
    SessionOpening,
)
from holdmq.wire.session_will import PUBLISH_WILL, SessionWill

NOW_MS = 1_000_000


class SomeQuotas:
    """Limits of everybody: `sessions` and `connections`, 0 = none."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.has_counts = bool(limits)
        self.refused: list[str] = []
        self._limits = limits

    def sessions_max(self, _principal: str) -> int:
        return self._limits.get("sessions", 0)

    def connections_max(self, _principal: str) -> int:
        return self._limits.get("connections", 0)

    def refuse(self, principal: str) -> None:
        self.refused.append(principal)


class Table:
    """The core over rows in a dict: each step is done at once unless a test does it itself."""

    def __init__(self, user_max: int = 0, **quotas: int) -> None:
        uids = itertools.count(1)
        self.quotas = SomeQuotas(quotas)
        self.core: OwnedSessions[str] = OwnedSessions(
            100, NOW_MS, lambda: next(uids), SessionUse(), self.quotas, user_max=user_max
        )
        self.rows: dict[str, bytes] = {}
        self.now = 0.0

    def found(self, client_id: str) -> FoundSession | None:
        meta = self.rows.get(meta_key(client_id))
        if meta is None:
            return None
        prefix = filter_key(client_id, "")
        filters = [(key[len(prefix) :], v) for key, v in self.rows.items() if key.startswith(prefix)]
        return FoundSession(decode_meta(meta), self.rows.get(state_key(client_id), b""), filters)

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

    def open(
        self,
        client_id: str,
        owner: str = "g1",
        expiry_s: int = 60,
        *,
        principal: str = "",
        owns_id: bool = False,
    ) -> Opening[str]:
        wanted = SessionOpening(client_id, False, expiry_s, principal, 0, b"", owns_id)
        opening = self.core.open(wanted, owner, self.now)
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


def code_of(opening: Opening[str]) -> int:
    assert opening.answer is not None
    return opening.answer.code


def test_anothers_session_ends_for_whom_the_client_id_belongs_to() -> None:
    table = Table()
    eve = table.open("ada", principal="eve")
    assert table.change(eve, PUT_FILTER)
    assert code_of(table.open("ada", "g2", principal="ada")) == Code.NOT_PERMITTED
    ada = table.open("ada", "g2", principal="ada", owns_id=True)
    assert [(t.owner, t.epoch) for t in table.core.taken] == [("g1", 100)]
    assert table.change(eve, PUT_STATE), "as in any takeover"
    assert table.change(eve, END)
    assert ada.answer is not None
    assert (ada.answer.code, ada.answer.is_present) == (Code.OK, False)
    assert ada.answer.uid != (eve.answer.uid if eve.answer else 0), (
        "nothing of what the other had is known again"
    )
    assert list(table.rows) == [meta_key("ada")]
    assert not table.change(eve, PUT_FILTER), "too late"
    assert code_of(table.open("ada", principal="eve")) == Code.NOT_PERMITTED
    assert table.core.counts.foreign_ended == 1


def test_anothers_session_that_is_offline_ends_too_with_what_it_had() -> None:
    table = Table()
    eve = table.open("ada", principal="eve")
    assert table.change(eve, PUT_FILTER)
    assert table.change(eve, PUT_STATE)
    assert table.change(eve, END)
    ada = table.open("ada", "g2", 0, principal="ada", owns_id=True)
    assert code_of(ada) == Code.OK
    assert table.rows == {}
    assert table.core.taken == []
    assert table.core.stored == 0


def test_what_the_log_does_not_take_leaves_the_other_session_where_it_was() -> None:
    table = Table(user_max=1)
    assert table.change(table.open("ada", principal="eve"), END)
    before = dict(table.rows)
    opening = table.core.open(SessionOpening("ada", False, 60, "ada", 0, b"", True), "g2", 0.0)
    table.core.to_read.clear()
    table.core.loaded(opening, table.found("ada"), NOW_MS)
    assert (table.core.use.users.of("eve"), table.core.use.users.of("ada")) == (0, 1)
    table.core.settled(opening, (Code.STORE_FULL, "full"), 0.0)
    assert (table.core.use.users.of("eve"), table.core.use.users.of("ada")) == (1, 0)
    assert table.rows == before
    assert code_of(table.open("ada", principal="eve")) == Code.OK


def test_the_will_of_a_session_that_ends_for_another_is_due_at_once() -> None:
    table = Table()
    will = SessionWill(3600, 0, "eve/gone", 2, b"", b"x", bytes(8)).encode()
    eve = table.core.open(SessionOpening("ada", False, 3600, "eve", 0, will), "g1", 0.0)
    table.run()
    change = SessionChange("ada", 100, END, PUBLISH_WILL, b"", 3600)
    assert table.core.change(change, "g1", 0.0, NOW_MS) is not None
    assert eve.answer is not None
    assert table.core.wills.take_due(0.0, 10) == []
    table.open("ada", principal="ada", owns_id=True)
    assert [key for key, _ in table.core.wills.take_due(0.0, 10)] == [("ada", 100)]


def test_an_own_session_goes_on_for_whom_the_client_id_belongs_to() -> None:
    table = Table()
    assert table.change(table.open("ada", principal="ada"), END)
    again = table.open("ada", principal="ada", owns_id=True)
    assert again.answer is not None
    assert again.answer.is_present
    assert table.core.counts.foreign_ended == 0


def test_a_user_has_so_many_sessions_and_no_more() -> None:
    table = Table(user_max=2)
    first = table.open("a", principal="ada")
    second = table.open("b", principal="ada")
    full = table.open("c", principal="ada")
    assert code_of(full) == Code.LIMIT_EXCEEDED
    assert full.answer is not None
    assert "broker.sessions_per_user_max (2)" in full.answer.reason
    assert code_of(table.open("c", expiry_s=0, principal="ada")) == Code.OK, "nothing of it is kept"
    assert code_of(table.open("c", "g2", principal="ada")) == Code.LIMIT_EXCEEDED
    assert table.core.taken == [], "nobody is disconnected for who cannot come"
    assert code_of(table.open("d", principal="eve")) == Code.OK
    assert table.core.counts.user_full == 2
    assert table.change(first, END)
    assert code_of(table.open("a", principal="ada")) == Code.OK, "his own"
    assert table.change(second, END)
    table.core.drop("b", 0.0)
    table.run()
    assert code_of(table.open("e", principal="ada")) == Code.OK
    assert code_of(table.open("f", principal="ada")) == Code.LIMIT_EXCEEDED


def test_clients_without_a_name_are_one_user_until_somebody_takes_their_session() -> None:
    table = Table(user_max=1)
    assert table.change(table.open("a"), END)
    assert code_of(table.open("b")) == Code.LIMIT_EXCEEDED
    assert code_of(table.open("a", principal="ada")) == Code.OK
    assert code_of(table.open("b")) == Code.OK
    assert (table.core.use.users.of(""), table.core.use.users.of("ada")) == (1, 1)


def test_who_has_no_room_ends_nobody_elses_session() -> None:
    table = Table(user_max=1)
    assert table.change(table.open("x", principal="eve"), END)
    table.open("a", principal="ada")
    assert code_of(table.open("x", principal="ada", owns_id=True)) == Code.LIMIT_EXCEEDED
    assert table.found("x") is not None


def test_openings_of_one_user_that_are_on_their_way_are_counted() -> None:
    table = Table(user_max=2)
    openings = [
        table.core.open(SessionOpening(name, False, 60, "ada", 0), "g1", 0.0) for name in ("a", "b", "c")
    ]
    to_read, table.core.to_read = table.core.to_read, []
    for opening in to_read:
        table.core.loaded(opening, None, NOW_MS)
    for opening in to_read:
        table.core.settled(opening, None, 0.0)
    assert [code_of(opening) for opening in openings] == [Code.OK, Code.OK, Code.LIMIT_EXCEEDED]


def test_a_session_that_ends_or_expires_makes_room() -> None:
    table = Table(user_max=1)
    assert table.change(table.open("a", principal="ada"), END, expiry_s=0)
    assert table.change(table.open("b", principal="ada", expiry_s=1), END, expiry_s=1)
    table.rows[meta_key("b")] = Meta(101, 1, "ada", 2, 0, 1).encode()
    assert table.core.expire("b", 0.0) is not None
    table.run()
    assert code_of(table.open("c", principal="ada")) == Code.OK
    assert len(table.core.use.users) == 1


def reason_of(opening: Opening[str]) -> str:
    assert opening.answer is not None
    return opening.answer.reason


def test_a_user_has_as_many_connections_as_its_quota_allows_and_a_takeover_is_none_more() -> None:
    table = Table(connections=2)
    first = table.open("a", principal="ada")
    table.open("b", expiry_s=0, principal="ada")
    full = table.open("c", expiry_s=0, principal="ada")
    assert code_of(full) == Code.QUOTA_EXCEEDED
    assert "user:ada has the 2 connections" in reason_of(full)
    assert "holdmq quota set user:ada --connections N" in reason_of(full)
    assert table.quotas.refused == ["user:ada"]
    assert code_of(table.open("c", principal="eve")) == Code.OK
    assert all(code_of(table.open(name)) == Code.OK for name in "defg"), "anonymous clients are nobody's"
    again = table.open("a", "g2", principal="ada")
    assert table.change(first, END)
    assert code_of(again) == Code.OK
    assert table.core.use.connections_of("user:ada") == 2
    assert table.change(again, END, "g2")
    assert code_of(table.open("h", principal="ada")) == Code.OK
    table.core.owner_gone("g1", 0.0, NOW_MS)
    assert table.core.use.connections_of("user:ada") == 0


def test_connections_that_are_on_their_way_count_and_those_that_failed_do_not() -> None:
    table = Table(connections=1)
    wanted = [SessionOpening(name, False, 60, "ada", 0) for name in ("a", "b")]
    first, second = [table.core.open(one, "g1", 0.0) for one in wanted]
    table.core.to_read.clear()
    table.core.loaded(first, None, NOW_MS)
    table.core.loaded(second, None, NOW_MS)
    assert code_of(second) == Code.QUOTA_EXCEEDED
    table.core.settled(second, None, 0.0)
    table.core.settled(first, (Code.STORE_FULL, "full"), 0.0)
    assert table.core.use.connections_of("user:ada") == 0
    assert code_of(table.open("c", principal="ada")) == Code.OK


def test_a_gateway_claims_its_sessions_back_whatever_the_quota_is_and_they_count() -> None:
    table = Table(connections=1)
    for name in ("a", "b"):
        claimed = table.core.open(SessionOpening(name, False, 0, "ada", 50), "g1", 0.0)
        table.run()
        assert code_of(claimed) == Code.OK
    assert table.core.use.connections_of("user:ada") == 2
    assert code_of(table.open("c", principal="ada")) == Code.QUOTA_EXCEEDED


def test_a_user_has_as_many_sessions_as_its_quota_allows_whether_connected_or_not() -> None:
    table = Table(sessions=2)
    assert table.change(table.open("a", principal="ada"), END)
    assert table.change(table.open("b", principal="ada"), END)
    full = table.open("c", principal="ada")
    assert code_of(full) == Code.QUOTA_EXCEEDED
    assert "user:ada has the 2 sessions" in reason_of(full)
    assert code_of(table.open("c", expiry_s=0, principal="ada")) == Code.OK
    assert code_of(table.open("a", principal="ada")) == Code.OK


def test_clients_of_a_tenant_count_together_whoever_they_are() -> None:
    table = Table(sessions=2, connections=2)
    assert table.change(table.open("$%acme/a", principal="ada"), END)
    table.open("$%acme/b")
    full = table.open("$%acme/c", principal="eve")
    assert code_of(full) == Code.QUOTA_EXCEEDED
    assert "tenant:acme has the 2 sessions" in reason_of(full)
    assert code_of(table.open("$%other/c", principal="eve")) == Code.OK
    assert (table.core.use.sessions_of("tenant:acme"), table.core.use.connections_of("tenant:acme")) == (2, 1)
    table.core.drop("$%acme/a", 0.0)
    table.run()
    assert table.core.use.sessions_of("tenant:acme") == 1


def test_sessions_of_before_a_start_are_counted_by_user_and_by_tenant() -> None:
    use = SessionUse()
    use.count([CountedRow("$%acme/a", "ada"), CountedRow("$%acme/b", ""), CountedRow("c", "ada")])
    use.complete()
    assert [use.sessions_of(one) for one in ("user:ada", "tenant:acme", "tenant:other")] == [2, 2, 0]
