"""Persistent sessions of a worker: opened at their owner, restored, written down, taken over.

Every CONNECT but those with an id that was made here is told to its owner (gateway.persistent.owner), so that
one client id has one connection in the whole fleet. A session with an expiry has a cursor and rows
(gateway.persistent.rows): its place in the log is written a few seconds late and at the end. Source: mqtt.md,
Sessions are cursors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.persistent.owner import SessionOwner
from gateway.persistent.restoring import Restoring
from gateway.persistent.rows import SessionWriter
from gateway.persistent.wills import AT_OWNER, what_becomes_of_it
from gateway.session.cursor import SessionCursor
from gateway.session.events import Closed, Event
from gateway.session.owner_rows import OwnerRows
from gateway.session.session import CLOSED, OPENING, Session, close_connection
from holdmq.errors import Code, HoldMQError, RemoteError, WireError
from holdmq.mqtt import MqttError, ReasonCode
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.session_headers import (
    END,
    SESSION_TOPIC,
    Content,
    SessionOpened,
    SessionOpening,
    SessionTakenRequest,
    session_owner,
)
from holdmq.wire.session_will import DELETE_WILL, HAS_WILL

if TYPE_CHECKING:
    from gateway.access.access import Access
    from gateway.brokers.link import BrokerLink
    from gateway.brokers.turn import Turn
    from gateway.deliver.catchup import CatchUp
    from gateway.session.clients import Clients
    from gateway.session.session import SessionContext
    from holdmq.client.route import Link, RouteTable
    from holdmq.rpc.connection import Request

STATE_LATE_S: Final = 5.0
"""How far a row may lag behind its session: what a crash sends again with QoS 1."""
STATES_PER_TICK: Final = 500
"""Rows encoded in one tick: some milliseconds of the loop."""
FAR_BYTES: Final = 64 << 20
"""How far the log may grow past the row of a session that gets nothing: what a crash makes it scan."""
LOOK_S: Final = 20.0
"""How often each session is looked at for that."""
TAKEN_MAX: Final = 10_000
"""Epochs remembered that were taken before their opening was answered."""

REFUSALS: Final[dict[Code, ReasonCode]] = {
    Code.NOT_PERMITTED: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    Code.LIMIT_EXCEEDED: ReasonCode.QUOTA_EXCEEDED,
    Code.QUOTA_EXCEEDED: ReasonCode.QUOTA_EXCEEDED,
}

log = telemetry.get_logger()


class PersistentSessions:
    """Sessions of one worker, and their owners."""

    def __init__(
        self,
        routes: RouteTable,
        links: Mapping[str, BrokerLink],
        clients: Clients,
        context: SessionContext,
        turn: Turn,
        now: Callable[[], float],
        access: Access,
        rows: SessionWriter,
        restoring: Restoring,
        catchup: CatchUp,
        drain_will_min_s: float,
    ) -> None:
        """`now` is the loop's clock; a will whose connection a drain ends waits for `drain_will_min_s`."""
        self._routes = routes
        self._links = links
        self._clients = clients
        self._context = context
        self._counters = context.counters
        self._turn = turn
        self._now = now
        self._access = access
        self._rows = rows
        self._restoring = restoring
        self._catchup = catchup
        self._drain_will_min_s = drain_will_min_s
        self.orphans: dict[Session, None] = {}
        """Sessions whose owner was given up, until their connections end."""
        self._owners: dict[str, SessionOwner] = {}
        self._brokers: list[str] = []
        self._taken: dict[str, int] = {}
        self._unregistered: dict[Session, None] = {}
        self._opening: dict[str, Session] = {}
        self._stale: dict[Session, float] = {}
        self._looking: Iterator[str] = iter(())
        self._look_at = 0.0

    # Owners

    def routes_changed(self, topics: Iterable[str]) -> None:
        """Brokers that keep sessions came or went; absent ones stay."""
        if SESSION_TOPIC in topics:
            route = self._routes.get(SESSION_TOPIC)
            self._brokers = [] if route is None else sorted({q.broker for q in route.write_queues})
            self._give_up_lost()

    def _give_up_lost(self) -> None:
        """Owners that an operator gave up: others keep their clients' sessions, which begin anew there."""
        lost = [name for name in self._owners if self._routes.is_given_up(name)]
        for name in lost:
            owner = self._owners.pop(name)
            found = [s for s in self._clients.sessions() if s.owner is owner]
            owner.abandon()
            for session in found:
                if session.state == CLOSED:
                    continue
                if session.epoch:
                    self.orphans[session] = None
                else:
                    # It is registered at the new owner, and so need not connect again.
                    session.owner = None
                    self._unregistered[session] = None
            log.warning("the owner of sessions was given up", broker=name, clients=len(self.orphans))

    def owner_of(self, client_id: str) -> SessionOwner | None:
        """The owner of a client id's sessions; None = no broker is, or that one was never seen."""
        if not self._brokers:
            return None
        link = self._links.get(session_owner(client_id, self._brokers))
        return None if link is None else self._owner(link)

    def _owner(self, link: BrokerLink) -> SessionOwner:
        owner = self._owners.get(link.name)
        if owner is None:
            owner = self._owners[link.name] = SessionOwner(link, self, self._rows, self._turn)
            if link.connection is not None:
                owner.up()
        return owner

    def link_up(self, link: BrokerLink) -> None:
        """A broker is connected (again)."""
        owner = self._owners.get(link.name)
        if owner is not None:
            owner.up()

    def link_down(self, link: BrokerLink) -> None:
        """A broker's connection is gone."""
        owner = self._owners.get(link.name)
        if owner is not None:
            owner.down()

    def claims(self, owner: SessionOwner) -> list[SessionOpening]:
        """The sessions that are open at an owner."""
        return [
            SessionOpening(
                session.client_id,
                False,
                session.expiry_s,
                session.principal,
                session.epoch,
                HAS_WILL if session.will is not None else b"",
            )
            for session in self._clients.sessions()
            if session.owner is owner and session.epoch
        ]

    def opening_of(self, session: Session, will: bytes) -> SessionOpening:
        """What the owner is asked when a client connects."""
        return SessionOpening(
            session.client_id,
            session.is_clean,
            session.expiry_s,
            session.principal,
            0,
            will,
            self._access.owns_id(session),
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return all(owner.is_idle for owner in self._owners.values())

    # Opening

    def connecting(self, session: Session) -> bool:
        """CONNECT may be accepted: ask the owner, if need be. Whether it is decided already."""
        if session.is_assigned and not session.expiry_s and session.will is None:
            _admitted(session, self._admit(session, is_present=False))
            return True
        older = self._opening.get(session.client_id)
        if older is not None:
            if self._is_anothers(older, session):
                self._refuse_foreign(session)
                return True
            # The owner would wait for its end, and this gateway for the owner's answer.
            self._counters.takeovers_total += 1
            self._close_taken(older)
        owner = self.owner_of(session.client_id)
        if owner is not None and owner.is_up:
            self._opening[session.client_id] = session
            owner.open(session)
            return False
        self._unreachable(session, owner, "not connected")
        return True

    def _unreachable(self, session: Session, owner: SessionOwner | None, why: str) -> None:
        """Clean sessions are admitted, and registered later; others cannot be."""
        is_clean = not session.expiry_s and (session.is_clean or owner is None)
        if not is_clean:
            name = "that keeps this session" if owner is None else owner.name
            self._refuse(session, ReasonCode.SERVER_UNAVAILABLE, f"broker {name} is away: {why}")
            return
        older = self._clients.session(session.client_id)
        if older is not None and self._is_anothers(older, session):
            self._refuse_foreign(session)
            return
        session.owner = owner
        self._unregistered[session] = None
        _admitted(session, self._admit(session, is_present=False))

    def _is_anothers(self, older: Session, session: Session) -> bool:
        """Whether a client id is in use by somebody else, whose session stays.

        What an anonymous client has is everybody's; what the ACL gives to who comes now is nobody else's.
        """
        is_foreign = bool(older.principal) and older.principal != session.principal
        return is_foreign and not self._access.owns_id(session)

    def _admit(self, session: Session, *, is_present: bool) -> list[Event]:
        return session.admit(is_present, self._now())

    def _refuse(self, session: Session, code: ReasonCode, sentence: str) -> None:
        _admitted(session, session.refuse(MqttError(code, sentence)))

    def _refuse_foreign(self, session: Session) -> None:
        sentence = "the client id's session belongs to somebody else"
        self._refuse(session, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, sentence)

    def not_opened(self, session: Session, owner: SessionOwner, error: HoldMQError) -> None:
        """The owner refused a CONNECT, or did not answer."""
        self._decided(session)
        if session.state == CLOSED:
            return
        if owner.is_given_up and session.state == OPENING:
            self.connecting(session)  # another one keeps it from now on
            return
        is_late = session.state != OPENING  # it was admitted while the owner was away
        if not isinstance(error, RemoteError) or error.retriable:
            if is_late:
                self._unregistered[session] = None
            else:
                self._unreachable(session, owner, str(error))
            return
        if is_late:
            close_connection(session, ReasonCode.NOT_AUTHORIZED, "session_refused", str(error))
            return
        code = REFUSALS.get(error.code, ReasonCode.SERVER_UNAVAILABLE)
        self._refuse(session, code, error.remark)

    def opened(self, session: Session, owner: SessionOwner, answer: SessionOpened, content: Content) -> None:
        """A session is open at its owner: restore what it has, and go on."""
        if content.filters and not answer.is_present:
            # What the client had before it began anew.
            dropped = [name for name, _ in content.filters]
            self._restoring.discard(session.client_id, answer.uid, dropped)
            content = Content(b"", [])
        names = [name for name, _ in content.filters]
        if names:
            again = partial(self.opened, session, owner, answer, content)
            if not self._access.knows_filters(session, names, again):
                return
        self._decided(session)
        session.epoch = answer.epoch
        session.owner = owner
        is_taken = self._taken.pop(session.client_id, 0) == answer.epoch
        if session.state == CLOSED or is_taken:
            self._end(session, owner, content.state if session.expiry_s else b"")
            if is_taken:
                self._close_taken(session)
            return
        if session.will is not None:
            session.will = AT_OWNER
        if session.state != OPENING:
            return  # it was admitted while the owner was away, and is registered now
        if session.expiry_s:
            session.cursor = SessionCursor(answer.uid)
        try:
            is_lagging = answer.is_present and self._restoring.restore(session, content, answer)
        except WireError as error:
            log.error("a session cannot be restored", client=session.client_id, reason=str(error))
            self._end(session, owner, content.state)
            session.cursor = None
            self._refuse(session, ReasonCode.UNSPECIFIED_ERROR, str(error))
            return
        _admitted(session, self._admit(session, is_present=answer.is_present))
        if is_lagging and session.state != CLOSED:
            self._restoring.resume(session)

    def _decided(self, session: Session) -> None:
        if self._opening.get(session.client_id) is session:
            del self._opening[session.client_id]

    # Taking over, ending

    def pushed(self, link: Link, request: Request) -> bool:
        """A broker sent something by itself: SESSION_TAKEN is ours."""
        if request.command.code != RequestCode.SESSION_TAKEN:
            return False
        taken = request.header(SessionTakenRequest)
        session = self._clients.session(taken.client_id)
        if session is None or session.epoch != taken.epoch:
            if len(self._taken) >= TAKEN_MAX:
                self._taken.clear()
            self._taken[taken.client_id] = taken.epoch
            return True
        self._counters.takeovers_total += 1
        if taken.by_operator:
            close_connection(
                session, ReasonCode.ADMINISTRATIVE_ACTION, "kicked", "an operator disconnected this client"
            )
        else:
            self.fenced(taken.client_id, taken.epoch)
        self._turn.settle()
        return True

    def fenced(self, client_id: str, epoch: int) -> None:
        """The session was opened anew elsewhere, or dropped: its connection ends."""
        session = self._clients.session(client_id)
        if session is not None and session.epoch == epoch:
            self._close_taken(session)

    def _close_taken(self, session: Session) -> None:
        close_connection(
            session, ReasonCode.SESSION_TAKEN_OVER, "taken_over", "this client id connected again"
        )

    def closed(self, session: Session, event: Closed) -> bool:
        """A connection ends: its session stays, or goes, at the owner, whose affair its will is then.

        Called while it has all it had; False = no owner knows of it.
        """
        owner = session.owner
        self._decided(session)
        self._stale.pop(session, None)
        self._unregistered.pop(session, None)
        self.orphans.pop(session, None)
        if owner is None:
            return False
        owner.forget(session)
        if session.epoch:
            will = what_becomes_of_it(event, self._drain_will_min_s)
            is_kept = session.cursor is not None and session.expiry_s
            self._end(session, owner, self._rows.state_of(session, is_over=True) if is_kept else b"", will)
        session.owner = None
        return session.epoch > 0

    def _end(self, session: Session, owner: OwnerRows, state: bytes, will: str = DELETE_WILL) -> None:
        owner.change(session, END, will, state)
        session.owner = None

    def will_done(self, broker: str, client_id: str, epoch: int) -> None:
        """The log has a will, or never will: its owner forgets it."""
        link = self._links.get(broker)
        if link is not None:
            self._owner(link).will_done(client_id, epoch)

    # Clocks

    def tick(self, now: float) -> None:
        """Write rows that have lagged behind for long enough."""
        context = self._context
        if context.stale:
            for session in context.stale:
                self._stale.setdefault(session, now + STATE_LATE_S)
            context.stale = []
        left = STATES_PER_TICK
        while self._stale and left:
            session, due = next(iter(self._stale.items()))
            if due > now:
                break
            del self._stale[session]
            left -= 1
            if session.cursor is not None and session.cursor.is_stale:
                _write_soon(session)
        for session in self._looked_at(now, left):
            cursor = session.cursor
            self._catchup.relax(session)
            if cursor is not None and session.state != CLOSED:
                ends = sum(link.reader.position or 0 for link in self._links.values())
                if ends - cursor.written_at > FAR_BYTES:
                    _write_soon(session)

    def _looked_at(self, now: float, count: int) -> Iterator[Session]:
        for _ in range(count):
            client_id = next(self._looking, None)
            if client_id is None:
                if now >= self._look_at:
                    self._look_at = now + LOOK_S
                    self._looking = iter(self._clients.client_ids())
                return
            session = self._clients.session(client_id)
            if session is not None:
                yield session

    def each_second(self, now: float) -> None:
        """Register who was admitted while its owner was away; close who has waited too long for one."""
        self._give_up_lost()
        for session in list(self._unregistered):
            # Which broker it is may not have been known yet.
            owner = session.owner or self.owner_of(session.client_id)
            if owner is not None and owner.is_up:
                del self._unregistered[session]
                session.owner = owner
                owner.open(session)
        for name, owner in self._owners.items():
            if not owner.is_up and self._routes.is_resting(name, now):
                owner.give_up()


def _admitted(session: Session, events: list[Event]) -> None:
    connection = session.connection
    if connection is not None:
        connection.admitted(events)


def _write_soon(session: Session) -> None:
    """Have the session's row say where it is now."""
    if session.owner is not None and session.state != CLOSED:
        session.owner.want_state(session)
