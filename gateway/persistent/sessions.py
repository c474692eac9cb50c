"""Persistent sessions of a worker: opened at their owner, restored, written down, taken over.

Every CONNECT but those with an id that was made here is told to its owner (gateway.persistent.owner), so that
one client id has one connection in the whole fleet. A session with an expiry has a cursor and rows: filters
are stored before SUBACK, QoS 2 plans before PUBLISH, PUBRECs before PUBREL, the place in the log a few
seconds late and at the end. Source: mqtt.md, Sessions are cursors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.persistent.owner import SessionOwner
from gateway.persistent.restoring import LIVE_END, Restoring
from gateway.persistent.wills import AT_OWNER, what_becomes_of_it
from gateway.publish.ingress import Unbound
from gateway.session.connection import OwnerRows, close_connection
from gateway.session.cursor import SessionCursor, WrittenState
from gateway.session.events import Closed, Event
from gateway.session.outbound import Granted
from gateway.session.received import QUEUES_MAX, ReceivedQueues
from gateway.session.receiving import complete, unreleased_of
from gateway.session.session import CLOSED, OPENING, Session
from holdmq.errors import Code, HoldMQError, RemoteError, WireError
from holdmq.mqtt import MqttError, ReasonCode
from holdmq.service import telemetry
from holdmq.wire.codes import RequestCode
from holdmq.wire.session_headers import (
    END,
    PUT_FILTER,
    PUT_STATE,
    SESSION_TOPIC,
    Content,
    SessionOpened,
    SessionOpening,
    SessionTakenRequest,
    session_owner,
)
from holdmq.wire.session_state import FilterOptions, LogPlace, PlannedRow, SessionState
from holdmq.wire.session_will import DELETE_WILL, HAS_WILL

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink
    from gateway.worker.worker import Worker
    from holdmq.client.route import Link
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
}

log = telemetry.get_logger()


class PersistentSessions:
    """Sessions of one worker, and their owners."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._restoring = Restoring(worker, self.drop_filter)
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
            route = self._worker.routes.get(SESSION_TOPIC)
            self._brokers = [] if route is None else sorted({q.broker for q in route.write_queues})

    def owner_of(self, client_id: str) -> SessionOwner | None:
        """The owner of a client id's sessions; None = no broker is, or that one was never seen."""
        if not self._brokers:
            return None
        link = self._worker.links.get(session_owner(client_id, self._brokers))
        return None if link is None else self._owner(link)

    def _owner(self, link: BrokerLink) -> SessionOwner:
        owner = self._owners.get(link.name)
        if owner is None:
            owner = self._owners[link.name] = SessionOwner(self, link)
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
            for session in self._worker.clients.sessions()
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
            self._worker.access.owns_id(session),
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return all(owner.is_idle for owner in self._owners.values())

    def settle(self) -> None:
        """Have what became sendable written."""
        self._worker.settle()

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
            self._worker.counters.takeovers_total += 1
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
        older = self._worker.clients.session(session.client_id)
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
        return is_foreign and not self._worker.access.owns_id(session)

    def _admit(self, session: Session, *, is_present: bool) -> list[Event]:
        return session.admit(is_present, self._worker.now())

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
            self._worker.shares.discarded(session.client_id, answer.uid, dropped)
            content = Content(b"", [])
        names = [name for name, _ in content.filters]
        if names:
            again = partial(self.opened, session, owner, answer, content)
            if not self._worker.access.knows_filters(session, names, again):
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
        session = self._worker.clients.session(taken.client_id)
        if session is None or session.epoch != taken.epoch:
            if len(self._taken) >= TAKEN_MAX:
                self._taken.clear()
            self._taken[taken.client_id] = taken.epoch
            return True
        self._worker.counters.takeovers_total += 1
        self.fenced(taken.client_id, taken.epoch)
        self.settle()
        return True

    def fenced(self, client_id: str, epoch: int) -> None:
        """The session was opened anew elsewhere, or dropped: its connection ends."""
        session = self._worker.clients.session(client_id)
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
        if owner is None:
            return False
        owner.forget(session)
        if session.epoch:
            will = what_becomes_of_it(event, self._worker.section.drain_will_min_s)
            is_kept = session.cursor is not None and session.expiry_s
            self._end(session, owner, self.state_of(session, is_over=True) if is_kept else b"", will)
        session.owner = None
        return session.epoch > 0

    def _end(self, session: Session, owner: OwnerRows, state: bytes, will: str = DELETE_WILL) -> None:
        owner.change(session, END, will, state)
        session.owner = None

    def will_done(self, broker: str, client_id: str, epoch: int) -> None:
        """The log has a will, or never will: its owner forgets it."""
        link = self._worker.links.get(broker)
        if link is not None:
            self._owner(link).will_done(client_id, epoch)

    # Writing

    def bind(self, session: Session, unbound: Unbound, known: Callable[[], None]) -> None:
        """Have the row say where QoS 2 publishes to a topic go, before the first one goes there."""
        cursor = session.cursor
        assert cursor is not None
        if cursor.received is None:
            cursor.received = ReceivedQueues(cursor.uid, session.epoch)
        if cursor.received.bind(unbound.topic, unbound.queue, known):
            self._worker.context.planning.append(session)
            return
        close_connection(
            session,
            ReasonCode.QUOTA_EXCEEDED,
            "publish_topics",
            f"QoS 2 publishes to more than {QUEUES_MAX} first levels",
        )

    def plan(self, sessions: list[Session]) -> None:
        """These wait for their row before they may send more."""
        for session in sessions:
            owner = session.owner
            if owner is not None and session.state != CLOSED:
                owner.want_state(session)

    def store_filter(
        self, session: Session, name: str, granted: Granted, is_new: bool, on_written: Callable[[bool], None]
    ) -> bool:
        """Have a subscription's row written; False: too much waits."""
        owner = session.owner
        assert owner is not None
        starts: dict[str, LogPlace] = {}
        if is_new or (granted.starts is not None and not granted.starts.is_empty):
            for broker, link in self._worker.links.items():
                known = None if granted.starts is None else granted.starts.get(broker)
                reader = link.reader
                position = known
                if position is None:
                    position = LIVE_END if reader.position is None else reader.live_from
                starts[broker] = LogPlace(reader.log_epoch, position)
        options = FilterOptions(
            granted.qos,
            granted.no_local,
            granted.retain_as_published,
            granted.retain_handling,
            granted.identifier,
            starts,
            self._worker.retained.number_of(session, name),
        )
        return owner.change(session, PUT_FILTER, name, options.encode(), on_written)

    def store_starts(self, session: Session, names: list[str]) -> None:
        """Have these filters' rows say from where on they count, before any state that is asked for later."""
        outbound = session.outbound
        for name in names if outbound is not None else ():
            assert outbound is not None
            if not self.store_filter(session, name, outbound.subscriptions[name], False, _ignore):
                self._worker.turn.close_when_settled(session)
                return

    def store_state(self, session: Session, on_written: Callable[[bool], None]) -> bool:
        """Have the state as it is now written behind all that was asked for so far; False: too much waits."""
        owner = session.owner
        assert owner is not None
        return owner.change(session, PUT_STATE, "", self.state_of(session), on_written)

    def drop_filter(self, session: Session, kind: str, name: str, on_written: Callable[[bool], None]) -> bool:
        """Have a subscription's row taken away; False: too much waits."""
        owner = session.owner
        assert owner is not None
        return owner.change(session, kind, name, b"", on_written)

    def state_of(self, session: Session, *, is_over: bool = False) -> bytes:
        """A session's state as its row has it; `is_over`: at the end of its connection."""
        outbound, cursor = session.outbound, session.cursor
        assert cursor is not None
        places: dict[str, LogPlace] = {}
        lag = outbound.lag if outbound is not None else None
        for broker, link in self._worker.links.items():
            reader = link.reader
            position, log_epoch = reader.position, reader.log_epoch
            if lag is not None and (behind := lag.position_at(broker)) is not None:
                position, log_epoch = behind, lag.log_epoch_at(broker, log_epoch)
            elif lag is not None and (floor := lag.floor_at(broker)) is not None:
                position = floor
            if position is not None:
                places[broker] = LogPlace(log_epoch, position)
        for broker, behind in lag.positions.items() if lag is not None else ():
            if broker not in places and lag is not None:
                places[broker] = LogPlace(lag.log_epoch_at(broker, 0), behind)
        cursor.written_at = sum(place.position for place in places.values())
        planned = [
            PlannedRow(packet_id, p.broker, p.position, p.flags, list(p.identifiers), p.is_released, p.topic)
            for packet_id, p in ((outbound.inflight if outbound is not None else None) or {}).items()
            # QoS 1 of a shared subscription is another session's when this connection ends.
            if p is not None and (p.member is None or p.flags & 4)
        ]
        received = None
        if cursor.received is not None:
            received = cursor.received.row(unreleased_of(session), is_over=is_over)
        next_id = outbound.next_id if outbound is not None else 1
        retained = self._worker.retained.state_of(session)
        return SessionState(places, planned, next_id, received, retained).encode()

    def state_written(self, session: Session, written: WrittenState) -> None:
        """The row has a state: what waited for it leaves."""
        if session.state == CLOSED:
            return
        for head, packet_id, tail in written.publishes:
            session.send_publish(head, packet_id, tail)
        inflight = session.outbound.inflight if session.outbound is not None else None
        for _, packet_id, _ in written.publishes if inflight is not None else ():
            planned = inflight.get(packet_id) if inflight is not None else None
            if planned is not None and planned.member is not None:
                # From now on it is this session's as every other one.
                planned.member.settled(planned)
                planned.member = None
        for packet_id in written.released:
            session.send_pubrel(packet_id)
        write, received = written.received, session.cursor.received if session.cursor is not None else None
        if write is not None and received is not None:
            received.written(write)
            if write.completed:
                complete(session, write.completed)
            for bound in write.bound:
                bound()

    # Clocks

    def tick(self, now: float) -> None:
        """Write rows that have lagged behind for long enough."""
        context = self._worker.context
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
                self.plan([session])
        for session in self._looked_at(now, left):
            cursor = session.cursor
            self._worker.catchup.relax(session)
            if cursor is not None and session.state != CLOSED:
                ends = sum(link.reader.position or 0 for link in self._worker.links.values())
                if ends - cursor.written_at > FAR_BYTES:
                    self.plan([session])

    def _looked_at(self, now: float, count: int) -> Iterator[Session]:
        for _ in range(count):
            client_id = next(self._looking, None)
            if client_id is None:
                if now >= self._look_at:
                    self._look_at = now + LOOK_S
                    self._looking = iter(self._worker.clients.client_ids())
                return
            session = self._worker.clients.session(client_id)
            if session is not None:
                yield session

    def each_second(self, now: float) -> None:
        """Register who was admitted while its owner was away; close who has waited too long for one."""
        for session in list(self._unregistered):
            # Which broker it is may not have been known yet.
            owner = session.owner or self.owner_of(session.client_id)
            if owner is not None and owner.is_up:
                del self._unregistered[session]
                session.owner = owner
                owner.open(session)
        for name, owner in self._owners.items():
            if not owner.is_up and self._worker.routes.is_resting(name, now):
                owner.give_up()


def _admitted(session: Session, events: list[Event]) -> None:
    connection = session.connection
    if connection is not None:
        connection.admitted(events)


def _ignore(_is_written: bool) -> None:
    """A row that nobody waits for: what is told behind it says how it went."""
