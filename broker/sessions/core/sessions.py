"""Sessions at their owner: who has which, in what epoch, and what is to be written down. Sans-IO.

A client id has an entry while its session is open, or being opened or dropped::

    none ──open──► reading ──loaded──► writing ──settled──► open ──END, owner gone──► none
                      ▲                                       │
                      └── END came, TAKEOVER_S passed ── taking over ◄──open──┘

*Reading*: the shell reads the rows and calls `loaded`, which decides; *writing*: what was decided is on its
way into the log, and `settled` tells the end. Openings of a client id that come meanwhile wait in line.
Expiry counts from the disconnect on the owner's clock. Source: mqtt.md, Sessions are cursors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple

from broker.sessions.core.counts import SessionQuotas, SessionUse, principals_of
from broker.sessions.core.openings import Kind, O, Opening, OpeningCounts, is_anothers, is_foreign
from broker.sessions.core.rows import (
    FoundSession,
    Meta,
    RowChange,
    filter_key,
    meta_key,
    rows_of,
    state_key,
    will_key,
)
from broker.sessions.core.wills import LEASE_S, OwnedWills, WillKey
from holdmq.errors import Code
from holdmq.mqtt.filters import SHARE_PREFIX
from holdmq.wire.session_headers import (
    DROP_FILTER,
    END,
    NEVER_EXPIRES_S,
    PUT_FILTER,
    WILL_DONE,
    Content,
    SessionChange,
    SessionOpened,
    SessionOpening,
)
from holdmq.wire.session_will import NO_WILL, decode_will, least_delay_s

TAKEOVER_S: Final = 0.5
"""How long an older connection's gateway may write its last (mqtt.md, Takeover)."""
WAITING_MAX: Final = 16
"""Openings of one client id in line: a client that connects in a circle must not fill the memory."""
OPEN_MAX: Final = 2_000_000
"""Sessions open at one broker, 0.5 KiB each; ten gateways of twice the tested size."""
STORED_MAX: Final = 5_000_000
"""Sessions written down at one broker: some hundred bytes each of the tables' database."""


class _SessionEntry(Generic[O]):
    """`owner` None = nobody may write; `opening` has the entry, others are `waiting`."""

    __slots__ = ("connected", "is_stored", "is_taking", "meta", "opening", "owner", "waiting")

    def __init__(self) -> None:
        self.owner: O | None = None
        self.connected: tuple[str, ...] = ()
        """Whose connection it is counted as."""
        self.meta: Meta | None = None
        self.is_stored = False
        self.is_taking = False
        self.opening: Opening[O] | None = None
        self.waiting: deque[Opening[O]] | None = None


class SessionTaken(NamedTuple, Generic[O]):
    """An owner is to be told that its session goes elsewhere."""

    owner: O
    client_id: str
    epoch: int
    by_operator: bool


class OwnedSessions(Generic[O]):
    """All sessions of one owner. Work for the shell gathers in `to_read`, `taken` and `done`.

    `first_epoch` lies above every epoch that an earlier start can have given; `new_uid` makes uids. `use`
    is what users and tenants have here, `quotas` what they may have. A user has at most `user_max` sessions
    written down, whatever its quota is; 0 = as many as it likes.
    """

    def __init__(
        self,
        first_epoch: int,
        up_since_ms: int,
        new_uid: Callable[[], int],
        use: SessionUse,
        quotas: SessionQuotas,
        open_max: int = OPEN_MAX,
        stored_max: int = STORED_MAX,
        user_max: int = 0,
    ) -> None:
        self.counts = OpeningCounts()
        self.wills: OwnedWills[O] = OwnedWills()
        self.to_read: list[Opening[O]] = []
        self.taken: list[SessionTaken[O]] = []
        self.done: list[Opening[O]] = []
        self.stored = 0
        """Sessions written down, as far as is known."""
        self._next_epoch = first_epoch
        self.up_since_ms = up_since_ms
        self._new_uid = new_uid
        self.open_max = open_max
        self.stored_max = stored_max
        self.user_max = user_max
        self.use = use
        self._quotas = quotas
        self._entries: dict[str, _SessionEntry[O]] = {}
        self._of_owner: dict[O, set[str]] = {}
        self._heard: dict[O, float] = {}
        self._taking: deque[tuple[float, str, Opening[O]]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def taking(self) -> int:
        """Takeovers that wait for an older connection."""
        return len(self._taking)

    def is_known(self, client_id: str) -> bool:
        """Whether a session is open, or being opened or dropped."""
        return client_id in self._entries

    def ids(self) -> list[str]:
        """Client ids of all that are open."""
        return [client_id for client_id, entry in self._entries.items() if entry.meta is not None]

    def open_session(self, client_id: str) -> tuple[Meta, O | None, bool] | None:
        """Meta and owner of an open session, and whether it is written down."""
        entry = self._entries.get(client_id)
        return None if entry is None or entry.meta is None else (entry.meta, entry.owner, entry.is_stored)

    # Opening

    def open(self, wanted: SessionOpening, owner: O, now: float) -> Opening[O]:
        """A client connects, or its gateway claims its session again; it is in `done` in the end."""
        opening = Opening(Kind.CLAIM if wanted.epoch else Kind.CONNECT, wanted, owner)
        self._begin(opening, now)
        return opening

    def drop(self, client_id: str, now: float) -> Opening[O]:
        """Have a session gone, and its client disconnected."""
        opening: Opening[O] = Opening(Kind.DROP, SessionOpening(client_id, True, 0, "", 0), None)
        self._begin(opening, now)
        return opening

    def kick(self, client_id: str) -> bool:
        """Have a client's gateway told to disconnect it; whether it was connected.

        The session has no new owner: its gateway writes its last as at any other end, and a gateway that
        cannot loses its lease like any other.
        """
        entry = self._entries.get(client_id)
        if entry is None or entry.meta is None or entry.owner is None:
            return False
        if not entry.is_taking:
            self.counts.kicked += 1
            self.taken.append(SessionTaken(entry.owner, client_id, entry.meta.epoch, True))
        return True

    def expire(self, client_id: str, now: float) -> Opening[O] | None:
        """Drop a session that has expired, unless somebody has come for it."""
        if client_id in self._entries:
            return None
        opening: Opening[O] = Opening(Kind.EXPIRE, SessionOpening(client_id, True, 0, "", 0), None)
        self._begin(opening, now)
        return opening

    def _begin(self, opening: Opening[O], now: float) -> None:
        client_id = opening.wanted.client_id
        entry = self._entries.get(client_id)
        if entry is None:
            if len(self._entries) >= self.open_max and opening.owner is not None:
                self._refuse(opening, Code.LIMIT_EXCEEDED, f"{self.open_max} sessions are open here")
                return
            entry = self._entries[client_id] = _SessionEntry()
        elif entry.opening is not None:
            if entry.waiting is None:
                entry.waiting = deque()
            if len(entry.waiting) >= WAITING_MAX:
                self._refuse(opening, Code.BUSY, f"{WAITING_MAX} connections of this client id wait")
                return
            entry.waiting.append(opening)
            return
        self._have(entry, opening, now)

    def _have(self, entry: _SessionEntry[O], opening: Opening[O], now: float) -> None:
        """It is this opening's turn."""
        meta, older = entry.meta, entry.owner
        if meta is not None and opening.kind is Kind.CONNECT and is_foreign(meta, opening.wanted):
            self.counts.foreign += 1
            self._refuse(opening, Code.NOT_PERMITTED, "the client id's session belongs to somebody else")
            self._next(entry, opening.wanted.client_id, now)
            return
        if meta is not None and opening.kind is Kind.CONNECT:
            # Before anybody is disconnected for it.
            full = self._user_is_full(opening.wanted, meta.principal if entry.is_stored else None)
            if full is not None:
                self._refuse(opening, *full)
                self._next(entry, opening.wanted.client_id, now)
                return
        if meta is not None and opening.kind is Kind.CLAIM and opening.wanted.epoch != meta.epoch:
            self._fence(opening)
            self._next(entry, opening.wanted.client_id, now)
            return
        entry.opening = opening
        if meta is None or older is None or opening.kind is Kind.CLAIM:
            self._disown(entry, opening.wanted.client_id)
            self.to_read.append(opening)
            return
        self.counts.takeovers += 1
        entry.is_taking = True
        self._taking.append((now + TAKEOVER_S, opening.wanted.client_id, opening))
        self.taken.append(
            SessionTaken(older, opening.wanted.client_id, meta.epoch, opening.kind is Kind.DROP)
        )

    def next_deadline(self) -> float | None:
        """When `handle_deadline` is due; None = never."""
        return self._taking[0][0] if self._taking else None

    def handle_deadline(self, now: float) -> None:
        """Wait no longer for gateways that have not written their last."""
        taking = self._taking
        while taking and taking[0][0] <= now:
            _, client_id, opening = taking.popleft()
            entry = self._entries.get(client_id)
            if entry is not None and entry.opening is opening and entry.is_taking:
                self.counts.takeover_timeouts += 1
                self._take(entry, client_id)

    def _take(self, entry: _SessionEntry[O], client_id: str) -> None:
        entry.is_taking = False
        self._disown(entry, client_id)
        assert entry.opening is not None
        self.to_read.append(entry.opening)

    def _disown(self, entry: _SessionEntry[O], client_id: str) -> None:
        if entry.owner is not None:
            self._of_owner[entry.owner].discard(client_id)
            self._disconnected(entry)

    def _disconnected(self, entry: _SessionEntry[O]) -> None:
        entry.owner = None
        self.use.disconnect(entry.connected)
        entry.connected = ()

    def loaded(self, opening: Opening[O], found: FoundSession | None, now_ms: int, now: float = 0.0) -> None:
        """The rows of an opening's session were read, all that was written before included.

        What is to be written is in its `changes`; call `settled` when the log has it, or at once if there
        is nothing.
        """
        wanted = opening.wanted
        entry = self._entries[wanted.client_id]
        opening.was_open, entry.meta = entry.meta, None
        if opening.kind is Kind.CLAIM:
            self._claimed(opening, found, now_ms)
        elif opening.kind is Kind.CONNECT:
            self._connected(opening, found, now_ms, now)
        elif found is not None and (opening.kind is not Kind.EXPIRE or self.is_over(found.meta, now_ms)):
            opening.changes = rows_of(wanted.client_id, found)
            opening.stored_change = -1
        if opening.kind is Kind.DROP:
            self.wills.opened(wanted.client_id, is_over=True, now=now)
        self._count_user(opening, found)
        if opening.meta is not None:
            opening.connected = principals_of(wanted.client_id, opening.meta.principal)
            self.use.connect(opening.connected)

    def _count_user(self, opening: Opening[O], found: FoundSession | None) -> None:
        """Count what is to be written at once: many openings of one user may be on their way."""
        before = None if found is None else found.meta.principal
        after = None
        if opening.kind is Kind.CONNECT and opening.meta is not None:
            after = opening.meta.principal if opening.is_stored else None
        elif not opening.stored_change:
            after = before
        if before != after:
            opening.counted = before, after
            self.use.change(opening.wanted.client_id, before, after)

    def _user_is_full(self, wanted: SessionOpening, before: str | None) -> tuple[Code, str] | None:
        """Why a user gets no session more, None = he does; `before`: whose the row is that there is."""
        if not wanted.expiry_s or before == wanted.principal:
            return None
        if self.user_max and self.use.users.of(wanted.principal) >= self.user_max:
            self.counts.user_full += 1
            who = "this user has" if wanted.principal else "clients without a name have"
            return (
                Code.LIMIT_EXCEEDED,
                f"{who} broker.sessions_per_user_max ({self.user_max}) sessions here",
            )
        return self._quota_is_full(wanted, "sessions", self._quotas.sessions_max, self.use.sessions_of)

    def _quota_is_full(
        self,
        wanted: SessionOpening,
        what: str,
        most_of: Callable[[str], int],
        used_of: Callable[[str], int],
    ) -> tuple[Code, str] | None:
        """Why the quota of a client's user or tenant leaves no room for it; None = it does."""
        if not self._quotas.has_counts:
            return None
        for principal in principals_of(wanted.client_id, wanted.principal):
            most = most_of(principal)
            if most and used_of(principal) >= most:
                self._quotas.refuse(principal)
                why = f"{principal} has the {most} {what} at this broker that its quota allows: end some, or "
                return Code.QUOTA_EXCEEDED, f"{why}raise it (holdmq quota set {principal} --{what} N)"
        return None

    def _connected(self, opening: Opening[O], found: FoundSession | None, now_ms: int, now: float) -> None:
        wanted, was_open = opening.wanted, opening.was_open
        client_id = wanted.client_id
        had_rows = found is not None
        if wanted.will and self.wills.is_full:
            self._answer_refusal(opening, Code.LIMIT_EXCEEDED, "no more wills are kept here")
            return
        if found is not None:
            # A session with expiry 0 ended when its connection did, which was taken over now.
            is_over = was_open.expiry_s == 0 if was_open else self.is_over(found.meta, now_ms)
            if not is_over and is_foreign(found.meta, wanted):
                self.counts.foreign += 1
                self._answer_refusal(opening, Code.NOT_PERMITTED, "the session belongs to somebody else")
                return
        full = self._user_is_full(
            wanted, None if found is None else found.meta.principal
        ) or self._quota_is_full(wanted, "connections", self._quotas.connections_max, self.use.connections_of)
        if full is not None:
            self._answer_refusal(opening, *full)
            return
        if found is not None:
            if is_anothers(found.meta, wanted):
                is_over = True
                self.counts.foreign_ended += 1
            if is_over or wanted.is_clean:
                opening.changes = rows_of(client_id, found)
                left = [(name, b"") for name, _ in found.filters if name.startswith(SHARE_PREFIX)]
                if left:
                    # Its gateway tells the brokers that it has left these groups.
                    opening.content = Content(b"", left)
                found = None
        if wanted.expiry_s and not had_rows and self.stored >= self.stored_max:
            self._answer_refusal(opening, Code.LIMIT_EXCEEDED, f"{self.stored_max} sessions are kept here")
            return
        epoch = max(self._next_epoch, found.meta.epoch + 1 if found is not None else 0)
        self._next_epoch = epoch + 1
        uid = found.meta.uid if found is not None else self._new_uid()
        created_ms = found.meta.created_ms if found is not None else now_ms
        meta = opening.meta = Meta(epoch, wanted.expiry_s, wanted.principal, uid, created_ms, 0)
        has_rows = opening.is_stored = bool(wanted.expiry_s or found is not None)
        opening.cancelled = self.wills.opened(client_id, is_over=found is None, now=now)
        opening.changes += [(client_id, will_key(*key), None) for key in opening.cancelled]
        if wanted.will:
            opening.changes.append((client_id, will_key(client_id, epoch), wanted.will))
        if has_rows:
            opening.changes.append((client_id, meta_key(client_id), meta.encode()))
        opening.stored_change = has_rows - had_rows
        if found is not None:
            opening.content = Content(found.state, found.filters)
        opening.answer = SessionOpened(Code.OK, "", epoch, uid, found is not None, 0)

    def _claimed(self, opening: Opening[O], found: FoundSession | None, now_ms: int) -> None:
        wanted = opening.wanted
        if wanted.will and not self.wills.has(wanted.client_id, wanted.epoch):
            self._answer_refusal(opening, Code.SESSION_FENCED, "its will is published, or is to be")
            self.counts.fenced += 1
            return
        if found is not None and found.meta.epoch == wanted.epoch:
            opening.is_stored = True
            meta = opening.meta = found.meta._replace(ended_ms=0, expiry_s=wanted.expiry_s)
            opening.changes = [(wanted.client_id, meta_key(wanted.client_id), meta.encode())]
        elif found is None and not wanted.expiry_s and wanted.epoch < self._next_epoch:
            # It was never written down; had it been opened anew since, there would be an entry.
            meta = opening.meta = Meta(wanted.epoch, 0, wanted.principal, self._new_uid(), now_ms, 0)
        else:
            self.counts.fenced += 1
            self._answer_refusal(opening, Code.SESSION_FENCED, "it was opened anew elsewhere, or is gone")
            return
        opening.answer = SessionOpened(Code.OK, "", wanted.epoch, meta.uid, True, 0)

    def settled(self, opening: Opening[O], failure: tuple[Code, str] | None, now: float) -> None:
        """The log has an opening's changes, or does not, or its rows could not be read (`failure`)."""
        client_id = opening.wanted.client_id
        entry = self._entries[client_id]
        entry.opening = None
        if entry.meta is not None:
            opening.was_open, entry.meta = entry.meta, None
        if failure is not None:
            self._answer_refusal(opening, *failure)
            if opening.counted is not None:
                before, after = opening.counted
                self.use.change(client_id, after, before)
        else:
            self._count(opening)
        meta = opening.meta
        if meta is None and opening.was_open is not None:
            # It was taken from its connection, and did not get to the next one.
            was = opening.was_open
            self.wills.lost(client_id, was.epoch, was.expiry_s, now)
        if meta is not None and opening.owner is not None:
            self.counts.opens += 1
            entry.meta = meta
            entry.owner = opening.owner
            entry.connected, opening.connected = opening.connected, ()
            entry.is_stored = opening.is_stored
            self._settle_wills(opening, meta)
            self._heard.setdefault(opening.owner, now)
            self._of_owner.setdefault(opening.owner, set()).add(client_id)
        self.use.disconnect(opening.connected)
        self.done.append(opening)
        self._next(entry, client_id, now)

    def _settle_wills(self, opening: Opening[O], meta: Meta) -> None:
        client_id = opening.wanted.client_id
        if opening.kind is Kind.CLAIM:
            self.wills.claimed(client_id, meta.epoch)
            return
        self.wills.cancel(opening.cancelled)
        if opening.wanted.will:
            self.wills.arm(client_id, meta.epoch, decode_will(opening.wanted.will).delay_s)

    def _count(self, opening: Opening[O]) -> None:
        self.stored = max(0, self.stored + opening.stored_change)
        if opening.kind is Kind.EXPIRE and opening.changes:
            self.counts.expired += 1
        elif opening.kind is Kind.DROP and opening.was_present:
            self.counts.dropped += 1

    def _next(self, entry: _SessionEntry[O], client_id: str, now: float) -> None:
        while entry.opening is None and entry.waiting:
            opening = entry.waiting.popleft()
            if not entry.waiting:
                entry.waiting = None
            self._have(entry, opening, now)
        if entry.opening is None and entry.meta is None:
            self._entries.pop(client_id, None)

    def _answer_refusal(self, opening: Opening[O], code: Code, reason: str) -> None:
        self.counts.refused += 1
        opening.meta = None
        opening.answer = SessionOpened(code, reason, 0, 0, False, 0)

    def _refuse(self, opening: Opening[O], code: Code, reason: str) -> None:
        self._answer_refusal(opening, code, reason)
        self.done.append(opening)

    def _fence(self, opening: Opening[O]) -> None:
        self.counts.fenced += 1
        self._refuse(opening, Code.SESSION_FENCED, "it was opened anew elsewhere")

    # What open sessions write

    def change(self, change: SessionChange, owner: O, now: float, now_ms: int) -> list[RowChange] | None:
        """What a change makes of the rows; None = it is refused: its epoch is not the session's.

        An END may ask for the rows to be read (`to_read`), to take them all away.
        """
        client_id = change.client_id
        if change.kind == WILL_DONE:
            self.wills.is_gone(WillKey(client_id, change.epoch))
            return [(client_id, will_key(client_id, change.epoch), None)]
        entry = self._entries.get(client_id)
        meta = entry.meta if entry is not None else None
        if entry is None or meta is None or entry.owner is not owner or meta.epoch != change.epoch:
            self.counts.fenced += 1
            return None
        if change.kind == END:
            return self._end(entry, change, now_ms, now)
        if not entry.is_stored:
            return []
        if change.kind == PUT_FILTER:
            return [(client_id, filter_key(client_id, change.name), change.value)]
        if change.kind == DROP_FILTER:
            return [(client_id, filter_key(client_id, change.name), None)]
        return [(client_id, state_key(client_id), change.value)]

    def _end(
        self, entry: _SessionEntry[O], change: SessionChange, now_ms: int, now: float
    ) -> list[RowChange]:
        meta = entry.meta
        assert meta is not None
        client_id = change.client_id
        changes = self._end_will(entry, change, now)
        meta = entry.meta = meta._replace(expiry_s=change.expiry_s, ended_ms=max(1, now_ms))
        if entry.is_stored and change.expiry_s:
            if change.value:
                changes.append((client_id, state_key(client_id), change.value))
            changes.append((client_id, meta_key(client_id), meta.encode()))
        if entry.is_taking:
            self._take(entry, client_id)
            return changes
        self._disown(entry, client_id)
        self._over(entry, client_id, now)
        return changes

    def _end_will(self, entry: _SessionEntry[O], change: SessionChange, now: float) -> list[RowChange]:
        client_id, epoch = change.client_id, change.epoch
        if change.name == NO_WILL:
            return []
        delay_s = least_delay_s(change.name)
        if delay_s is None:
            gone = self.wills.delete(client_id, epoch)
            return [(client_id, will_key(client_id, epoch), None)] if gone else []
        if not entry.is_taking:  # else it is for the opening that takes over
            self.wills.ended(client_id, epoch, change.expiry_s, delay_s, now, entry.owner)
        return []

    def _over(self, entry: _SessionEntry[O], client_id: str, now: float) -> None:
        """A session's connection is gone; what does not outlive it goes too."""
        meta = entry.meta
        assert meta is not None
        entry.meta = None
        if entry.is_stored and not meta.expiry_s:
            entry.opening = Opening(Kind.ENDED, SessionOpening(client_id, True, 0, "", 0), None)
            self.to_read.append(entry.opening)
        else:
            self._next(entry, client_id, now)

    def owner_gone(self, owner: O, now: float, now_ms: int) -> list[RowChange]:
        """An owner's connection was lost: its sessions end now; what is to be written."""
        changes: list[RowChange] = []
        lease_end = self._heard.pop(owner, now) + LEASE_S
        for client_id in sorted(self._of_owner.pop(owner, ())):
            entry = self._entries[client_id]
            meta = entry.meta
            assert meta is not None
            self._disconnected(entry)
            self.wills.lost(client_id, meta.epoch, meta.expiry_s, lease_end)
            if entry.is_taking:
                entry.is_taking = False
                assert entry.opening is not None
                self.to_read.append(entry.opening)
                continue
            if entry.is_stored and meta.expiry_s:
                meta = meta._replace(ended_ms=max(1, now_ms))
                changes.append((client_id, meta_key(client_id), meta.encode()))
            self._over(entry, client_id, now)
        return changes

    # Leases

    def heard(self, owner: O, now: float) -> None:
        """An owner said something: it holds its sessions for LEASE_S more."""
        self._heard[owner] = now

    def extend_leases(self, by_s: float) -> None:
        """We were not there to hear anybody for so long."""
        for owner in self._heard:
            self._heard[owner] += by_s

    def silent(self, now: float) -> list[O]:
        """The owners whose lease is over."""
        return [owner for owner, heard in self._heard.items() if now - heard >= LEASE_S]

    def owners(self) -> list[O]:
        """All that were heard and are connected."""
        return list(self._heard)

    def leased(self, now: float) -> list[O]:
        """The owners that were heard lately."""
        return [owner for owner, heard in self._heard.items() if now - heard < LEASE_S]

    def lease_over(self, owner: O, now: float, now_ms: int) -> list[RowChange]:
        """An owner is silent: its sessions with a will are offline, and it is told so; what is to be written.

        The others are nobody's concern as long as its connection is there.
        """
        changes: list[RowChange] = []
        for client_id in sorted(self._of_owner.get(owner, ())):
            entry = self._entries[client_id]
            meta = entry.meta
            assert meta is not None
            if entry.is_taking or not self.wills.has(client_id, meta.epoch):
                continue
            self.taken.append(SessionTaken(owner, client_id, meta.epoch, False))
            self._disown(entry, client_id)
            self.wills.ended(client_id, meta.epoch, meta.expiry_s, 0.0, now, None)
            if entry.is_stored and meta.expiry_s:
                meta = meta._replace(ended_ms=max(1, now_ms))
                changes.append((client_id, meta_key(client_id), meta.encode()))
            self._over(entry, client_id, now)
        return changes

    def is_over(self, meta: Meta, now_ms: int) -> bool:
        """Whether a session that is not open has expired."""
        return meta.is_expired(now_ms, self.up_since_ms)


def expires_ms(meta: Meta) -> int | None:
    """When a session that is not connected expires, ms since the epoch; None = never, or it is connected."""
    if not meta.ended_ms or meta.expiry_s == NEVER_EXPIRES_S:
        return None
    return meta.ended_ms + meta.expiry_s * 1000
