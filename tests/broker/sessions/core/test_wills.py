"""Which will is published when: every way in which a connection can end, with a clock."""

from __future__ import annotations

import itertools

import pytest

from broker.sessions.core.counts import SessionUse
from broker.sessions.core.openings import Opening
from broker.sessions.core.rows import (
    FoundSession,
    RowChange,
    decode_meta,
    meta_key,
    split_will_key,
    state_key,
    will_key,
)
from broker.sessions.core.sessions import OwnedSessions
from broker.sessions.core.wills import HEAP_SPARE, LEASE_S, OwnedWills, WillKey
from holdmq.errors import Code, RecordError, WireError
from holdmq.wire.session_headers import END, WILL_DONE, SessionChange, SessionOpening
from holdmq.wire.session_will import (
    DELETE_WILL,
    DRAIN_WILL,
    HAS_WILL,
    NO_WILL,
    PUBLISH_WILL,
    SessionWill,
    decode_will,
    least_delay_s,
)

NOW_MS = 1_000_000_000
STEP_S = 0.5
DRAIN_S = 5.0


def will(delay_s: int, expiry_s: int = 50) -> bytes:
    return SessionWill(delay_s, expiry_s, "w", 2, b"", b"gone", bytes(8)).encode()


class NoQuotas:
    """Nobody is limited."""

    has_counts = False

    def sessions_max(self, _principal: str) -> int:
        raise AssertionError

    def connections_max(self, _principal: str) -> int:
        raise AssertionError

    def refuse(self, _principal: str) -> None:
        raise AssertionError


class Owner:
    """The core over rows in a dict; `published` are the times at which wills were handed out."""

    def __init__(self) -> None:
        uids = itertools.count(1)
        self.core: OwnedSessions[str] = OwnedSessions(
            100, NOW_MS, lambda: next(uids), SessionUse(), NoQuotas()
        )
        self.rows: dict[str, bytes] = {}
        self.now = 0.0
        self.published: list[tuple[float, WillKey]] = []

    @property
    def now_ms(self) -> int:
        return NOW_MS + int(self.now * 1000)

    def write(self, changes: list[RowChange]) -> None:
        for _, key, value in changes:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def run(self) -> None:
        self.core.handle_deadline(self.now)
        while self.core.to_read:
            opening = self.core.to_read.pop(0)
            meta = self.rows.get(meta_key(opening.wanted.client_id))
            found = None if meta is None else FoundSession(decode_meta(meta), b"", [])
            self.core.loaded(opening, found, self.now_ms, self.now)
            self.write(opening.changes)
            self.core.settled(opening, None, self.now)
        for key, _ in self.core.wills.take_due(self.now, 100):
            self.published.append((self.now, key))
            self.change("any", key.epoch, WILL_DONE)

    def open(
        self, delay_s: int | None = None, expiry_s: int = 50, *, clean: bool = False, owner: str = "g1"
    ) -> Opening[str]:
        raw = b"" if delay_s is None else will(delay_s, expiry_s)
        opening = self.core.open(SessionOpening("c", clean, expiry_s, "", 0, raw), owner, self.now)
        self.core.heard(owner, self.now)
        self.run()
        return opening

    def claim(self, epoch: int, expiry_s: int = 50, owner: str = "g1") -> Opening[str]:
        opening = self.core.open(SessionOpening("c", False, expiry_s, "", epoch, HAS_WILL), owner, self.now)
        self.run()
        return opening

    def change(self, owner: str, epoch: int, kind: str, name: str = "", expiry_s: int = 50) -> bool:
        change = SessionChange("c", epoch, kind, name, b"", expiry_s)
        made = self.core.change(change, owner, self.now, self.now_ms)
        self.write(made or [])
        if kind == END:
            self.run()
        return made is not None

    def lose(self, owner: str = "g1") -> None:
        self.write(self.core.owner_gone(owner, self.now, self.now_ms))
        self.run()

    def wait(self, until: float) -> None:
        while self.now < until:
            self.now += STEP_S
            for owner in self.core.silent(self.now):
                self.write(self.core.lease_over(owner, self.now, self.now_ms))
            self.run()

    def wills(self) -> list[str]:
        return [key for key in self.rows if key.startswith("w")]


def epoch_of(opening: Opening[str]) -> int:
    assert opening.answer is not None
    assert opening.answer.code == Code.OK
    return opening.answer.epoch


WAYS = ["delete", "publish", "drain", "lost", "silent"]
RETURNS = [None, (1.0, False), (1.0, True), (30.0, False)]


@pytest.mark.mqtt("MQTT-3.1.2-8", "MQTT-3.1.3-9")
@pytest.mark.parametrize("back", RETURNS, ids=str)
@pytest.mark.parametrize("expiry_s", [0, 50])
@pytest.mark.parametrize("delay_s", [0, 3, 100])
@pytest.mark.parametrize("way", WAYS)
def test_a_will_is_published_at_its_time_or_never(
    way: str, delay_s: int, expiry_s: int, back: tuple[float, bool] | None
) -> None:
    owner = Owner()
    epoch = epoch_of(owner.open(delay_s, expiry_s))
    ended_at = LEASE_S if way == "silent" else 2.0
    least_s = DRAIN_S if way == "drain" else 0.0
    due_at = ended_at + max(min(delay_s, expiry_s), least_s)
    if way == "lost":
        due_at = LEASE_S + min(delay_s, expiry_s)
    owner.wait(ended_at)
    if way == "lost":
        owner.lose()
    elif way != "silent":
        words = {"delete": DELETE_WILL, "publish": PUBLISH_WILL, "drain": f"{DRAIN_WILL}{DRAIN_S}"}
        assert owner.change("g1", epoch, END, words[way], expiry_s)
    expected: list[float] = [due_at]
    if back is not None:
        after_s, clean = back
        owner.wait(ended_at + after_s)
        owner.open(None, expiry_s, clean=clean, owner="g2")
        if due_at > owner.now:
            is_over = clean or expiry_s == 0 or max(float(delay_s), least_s) == 0
            expected = [owner.now] if is_over else []  # [MQTT-3.1.3-9]
    if way == "delete":
        expected = []
    for _ in range(400):
        owner.core.heard("g2", owner.now)
        owner.wait(owner.now + STEP_S)
    assert owner.published == [(at, WillKey("c", epoch)) for at in expected]
    assert owner.wills() == []
    assert owner.core.wills.count == 0


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(("delay_s", "expiry_s"), [(0, 50), (9, 50), (9, 0)])
@pytest.mark.parametrize("says", ["nothing", DELETE_WILL, PUBLISH_WILL])
def test_a_takeover_closes_the_older_connection(delay_s: int, expiry_s: int, clean: bool, says: str) -> None:
    owner = Owner()
    epoch = epoch_of(owner.open(delay_s, expiry_s))
    newer = owner.open(7, expiry_s, clean=clean, owner="g2")
    assert newer.answer is None
    if says == "nothing":
        owner.now = owner.core.next_deadline() or 0.0
        owner.run()
    else:
        owner.change("g1", epoch, END, says, expiry_s)
    assert newer.answer is not None
    is_due = says != DELETE_WILL and (clean or expiry_s == 0 or delay_s == 0)
    assert [key.epoch for _, key in owner.published] == ([epoch] if is_due else [])
    assert owner.wills() == [will_key("c", newer.answer.epoch)], "the newer one's"


def test_who_is_claimed_within_the_lease_has_no_will_published() -> None:
    owner = Owner()
    epoch = epoch_of(owner.open(0))
    owner.wait(3.0)
    owner.lose()
    owner.wait(9.0)
    epoch_of(owner.claim(epoch))
    owner.core.heard("g1", owner.now)
    owner.wait(18.0)
    assert owner.published == []
    owner.lose()
    owner.wait(40.0)
    assert [at for at, _ in owner.published] == [9.0 + LEASE_S]


def test_who_comes_after_his_will_is_told_that_his_connection_is_over() -> None:
    owner = Owner()
    epoch = epoch_of(owner.open(0))
    owner.lose()
    owner.wait(LEASE_S + 1)
    answer = owner.claim(epoch).answer
    assert answer is not None
    assert answer.code == Code.SESSION_FENCED


def test_a_silent_gateway_is_told_and_its_last_words_are_refused() -> None:
    owner = Owner()
    epoch = epoch_of(owner.open(0))
    owner.core.open(SessionOpening("no will", False, 50, "", 0), "g1", 0.0)
    owner.run()
    owner.wait(LEASE_S)
    assert [(taken.owner, taken.client_id) for taken in owner.core.taken] == [("g1", "c")]
    assert len(owner.published) == 1
    assert not owner.change("g1", epoch, END, DELETE_WILL)
    assert owner.core.open_session("no will") is not None


def test_what_we_slept_through_is_nobodys_silence() -> None:
    owner = Owner()
    owner.open(0)
    owner.now = 60.0
    owner.core.extend_leases(60.0)
    assert owner.core.silent(60.0) == []
    assert owner.core.leased(60.0) == ["g1"]


def test_a_session_that_is_dropped_ends_and_so_is_its_will_due() -> None:
    owner = Owner()
    owner.open(1000)
    owner.core.drop("c", 0.0)
    owner.now = 1.0
    owner.run()
    assert len(owner.published) == 1


def test_an_opening_that_is_refused_leaves_the_will_of_who_was_taken_over() -> None:
    owner = Owner()
    epoch = epoch_of(owner.open(5))
    opening = owner.core.open(SessionOpening("c", False, 50, "", 0), "g2", 0.0)
    owner.core.handle_deadline(1.0)
    owner.core.to_read.clear()
    meta = owner.rows[meta_key("c")]
    owner.core.loaded(opening, FoundSession(decode_meta(meta), b"", []), NOW_MS, 1.0)
    assert (opening.cancelled, opening.changes[0]) == ([("c", epoch)], ("c", will_key("c", epoch), None))
    owner.core.settled(opening, (Code.STORE_FULL, "full"), 1.0)
    assert owner.core.wills.has("c", epoch), "nothing is written of its end"
    owner.wait(6.5)
    assert [at for at, _ in owner.published] == [6.0]


def test_what_was_due_stays_due_until_somebody_has_published_it() -> None:
    wills: OwnedWills[str] = OwnedWills()
    wills.arm("c", 1, 60)
    wills.ended("c", 1, 10, 0.0, 0.0, "g1")
    assert wills.next_deadline() == 10.0
    assert wills.take_due(9.9, 10) == []
    assert wills.take_due(10.0, 10) == [(("c", 1), "g1")]
    assert wills.take_due(20.0, 10) == []
    assert not wills.has("c", 1)
    wills.claimed("c", 1)
    assert not wills.delete("c", 1)
    assert wills.opened("c", is_over=False, now=11.0) == []
    wills.cancel([WillKey("c", 1)])
    wills.put_back(WillKey("c", 1), 12.0)
    assert wills.take_due(12.0, 10) == [(("c", 1), None)], "by whoever is there"
    wills.is_gone(WillKey("c", 1))
    wills.is_gone(WillKey("c", 1))
    assert (wills.count, wills.published, wills.retried) == (0, 1, 1)


def test_so_many_are_taken_at_a_time_and_so_many_are_kept() -> None:
    wills: OwnedWills[str] = OwnedWills(wills_max=3)
    for n in range(3):
        wills.restore(f"c{n}", 1, 0, 5.0)
    assert wills.is_full
    assert len(wills.take_due(5.0, 2)) == 2
    assert len(wills.take_due(5.0, 2)) == 1
    owner = Owner()
    owner.core.wills = OwnedWills(wills_max=0)
    opening = owner.open(1)
    assert opening.answer is not None
    assert opening.answer.code == Code.LIMIT_EXCEEDED
    epoch_of(owner.open(None))


def test_times_of_clients_that_came_back_are_swept_out() -> None:
    wills: OwnedWills[str] = OwnedWills()
    for epoch in range(1, 5_000):
        wills.arm("flaps", epoch, 86_400)
        wills.ended("flaps", epoch, 86_400, 0.0, float(epoch), None)
        wills.cancel(wills.opened("flaps", is_over=False, now=float(epoch)))
    wills.restore("stays", 1, 0, 7.0)
    assert len(wills._heap) <= 2 * wills.count + HEAP_SPARE
    assert wills.take_due(7.0, 10) == [(("stays", 1), None)]


def test_a_will_that_is_being_published_is_not_due_again_when_its_connection_is_lost() -> None:
    wills: OwnedWills[str] = OwnedWills()
    wills.arm("c", 1, 0)
    assert wills.opened("c", is_over=False, now=1.0) == []
    assert wills.take_due(1.0, 10) == [(("c", 1), None)]
    wills.lost("c", 1, 50.0, 1.0)
    assert wills.take_due(1.0, 10) == []


def test_wills_and_keys_are_read_as_they_were_written() -> None:
    found = SessionWill(5, 6, "a/b", 5, b"\x26", b"\x00x", bytes(8))
    assert decode_will(found.encode()) == found
    assert split_will_key(will_key("x\u00e9 y", 77)) == ("x\u00e9 y", 77)
    for broken in (
        b"",
        b"\xc1",
        b"\x91\x01",
        SessionWill(5, 6, "a", 1, b"", b"", b"").encode()[:-1] + b"\xc0",
    ):
        with pytest.raises(WireError):
            decode_will(broken)
    with pytest.raises(RecordError):
        split_will_key("wc\0zz")
    assert state_key("c") != will_key("c", 1)
    words = [NO_WILL, DELETE_WILL, PUBLISH_WILL, "drain:3", "drain:x", "drain:-1"]
    assert [least_delay_s(word) for word in words] == [None, None, 0.0, 3.0, 0.0, 0.0]
