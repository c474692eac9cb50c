"""One MQTT connection: owns the socket, feeds its session, does what the session's events say."""

from __future__ import annotations

import fcntl
import ssl
import sys
import termios
from collections.abc import Sequence
from typing import Final

from gateway.edge.context import ConnectionContext
from gateway.edge.listeners import Listener
from gateway.edge.parting import half_close
from gateway.edge.sockets import READ_BYTES, ClientSocket, Receiver
from gateway.ground.peer import Peer, peer_of
from gateway.ground.targets import HeldSocket, RecordProducer
from gateway.publish.ingress import Unbound
from gateway.session.connection import SessionConnection
from gateway.session.cursor import is_binding
from gateway.session.events import Closed, Connected, Event, Subscribing, Unsubscribing
from gateway.session.session import CLOSED, CONNECTED_STATE, Session
from holdmq.mqtt import MQTT_5, PublishRun, ReasonCode

# Why a socket is not read; it is read again when no reason is left.
WINDOW: Final = 1
BROKER: Final = 2
TOPIC: Final = 4
WRITING: Final = 8
DRAINING: Final = 16
OPENING_PAUSE: Final = 32
RATE: Final = 128
OVERLOAD: Final = 256
PARTING: Final = 64
QUOTA: Final = 512

PACED_READ_BYTES: Final = 4 << 10
"""One read of a client whose user's quota was used up: some tens of small messages."""


class ClientConnection(Receiver, SessionConnection, HeldSocket):
    """One connection. `waiting` holds the events behind one that waits: for a topic that is being created, or
    for an answer of access."""

    __slots__ = ("_paused_for", "_shared", "listener", "session", "transport", "waiting")

    session: Session
    """Made with the connection."""

    def __init__(self, shared: ConnectionContext, listener: Listener) -> None:
        self._shared = shared
        self.listener = listener
        self._paused_for = 0
        self.transport: ClientSocket | None = None
        self.waiting: list[Event] | None = None

    @property
    def peer(self) -> Peer:
        """The client's side of the connection; without an address when the socket is gone."""
        return peer_of(self.listener.name, self.transport)

    @property
    def is_identified(self) -> bool:
        """Whether the client's address is known: at once, unless a proxy has to tell it."""
        return True

    @property
    def ssl_object(self) -> ssl.SSLObject | None:
        """What OpenSSL knows of the connection; None without TLS."""
        return None

    # asyncio.Protocol

    def connection_made(self, transport: ClientSocket) -> None:
        shared = self._shared
        self.transport = transport
        self.session = Session(shared.sessions, shared.now(), transport.host)
        self.session.connection = self
        shared.arrivals.opened(self)

    def data_received(self, data: bytes) -> None:
        shared = self._shared
        shared.counters.bytes_in_total += len(data)
        session = self.session
        now = shared.now()
        if self._took_like_last(data, now):
            if shared.ingress.full is not None:
                self._hold(shared.ingress.full)
        else:
            if session.state != CONNECTED_STATE and not self.hold_unauthenticated(len(data)):
                return
            events = session.receive_data(data, now)
            meter = shared.metering.meter
            if meter is not None and not meter.received(self, len(data), events):
                return
            if events:
                self.handle(events)
            context = shared.sessions
            if context.dirty or context.planning or context.unserved:
                shared.turn.settle()
        if session.is_saturated and session.version != MQTT_5:
            self.pause(WINDOW)

    def hold_unauthenticated(self, change_bytes: int) -> bool:
        """So many bytes more wait here until the client is admitted; False = the connection is over."""
        if self.session.state == CLOSED:
            return True  # it is only read to its end
        self._shared.gate.holds(self, change_bytes)
        return self.session.state != CLOSED

    def _took_like_last(self, data: bytes, now: float) -> bool:
        """Whether this was one publish like the last one, and is taken: what devices send nearly always."""
        shared = self._shared
        session = self.session
        inbound = session.inbound
        if inbound is None or inbound.plan is None or self.waiting is not None:
            return False
        meter = shared.metering.meter
        if meter is not None and meter.measures(self):
            return False
        if session.permit is not None:
            shared.access.refresh(session, session.permit)
        return shared.ingress.publish_like_last(session, data, now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.departures.losing(self)
        events = self.session.connection_lost()
        self.transport = None
        if self.waiting is None or is_binding(self.session.cursor):
            self.handle(events)
        else:
            # What was published before the end still goes to its topic when that is there.
            self.waiting += events
        self._shared.departures.lost(self)

    def pause_writing(self) -> None:
        # Who does not take what is sent is not read either: acknowledgements would pile up.
        self.pause(WRITING)
        self._shared.stragglers.stall(self, self._shared.now())
        if self.session.outbound is not None:
            self.session.outbound.is_socket_full = True

    def unsent_bytes(self) -> int:
        """Bytes that the client's side has not taken, here and in the kernel; 0 without a socket."""
        transport = self.transport
        if transport is None:
            return 0
        kernel = bytearray(4)
        fcntl.ioctl(transport.fileno(), termios.TIOCOUTQ, kernel)
        return transport.get_write_buffer_size() + int.from_bytes(kernel, sys.byteorder)

    def resume_writing(self) -> None:
        self._shared.stragglers.unstall(self)
        self.resume(WRITING)
        if self.session.outbound is not None:
            self.session.outbound.is_socket_full = False
            self._takes_more()
            self._shared.turn.settle()

    @property
    def is_parting(self) -> bool:
        """Whether our half of the connection is closed."""
        return bool(self._paused_for & PARTING)

    # Events

    def handle(self, events: Sequence[Event]) -> None:
        """Do what the session's events say, in order."""
        shared = self._shared
        session = self.session
        for at, event in enumerate(events):
            if isinstance(event, Closed):
                self.waiting = None
                shared.departures.session_closed(self, event)
                return
            if self.waiting is not None:
                self.waiting += events[at:]
                return
            if isinstance(event, PublishRun):
                if session.permit is not None:
                    shared.access.refresh(session, session.permit)
                missing = shared.ingress.publish(session, event)
                if shared.ingress.full is not None:
                    self._hold(shared.ingress.full)
                if isinstance(missing, Unbound) and session.state == CLOSED:
                    continue  # the row is not written any more, and the client will send it again
                if missing is not None:
                    self.waiting = list(events[at:])
                    self.pause(TOPIC)
                    shared.prerequisites.bring(session, missing, self.topic_known, self.topic_failed)
                    return
            elif isinstance(event, Subscribing):
                if shared.prerequisites.delays(session, event, self.topic_known):
                    self.waiting = list(events[at:])
                    self.pause(TOPIC)
                    return
                shared.subscriptions.subscribe(session, event)
            elif isinstance(event, Unsubscribing):
                shared.subscriptions.unsubscribe(session, event)
            elif isinstance(event, Connected):
                shared.arrivals.connected(self)
            else:
                self._takes_more()

    def _takes_more(self) -> None:
        """The client's window or socket has room: what waits for that goes on."""
        self._shared.past.ready(self.session)
        self._shared.shares.ready(self.session)

    def topic_known(self) -> None:
        """The topic that a publish waited for is there, or its messages go elsewhere: go on."""
        events = self._take_waiting()
        if events is None:
            return
        self.handle(events)
        if self.waiting is None:
            self.resume(TOPIC)

    def _take_waiting(self) -> list[Event] | None:
        # By itself: where it is looked at again behind a call, mypyc would still take it for None.
        events = self.waiting
        self.waiting = None
        return events

    def topic_failed(self) -> None:
        """Close the connection, as no broker answered for the topic: the client must try again."""
        events = self._take_waiting()
        ending = [event for event in events or () if isinstance(event, Closed)]
        if ending:
            self.handle(ending)
            return
        self.close(ReasonCode.SERVER_BUSY, "topic_unavailable", "no broker answered for this topic")

    # Coming in

    def identified(self) -> None:
        """Ask the owner of the client id, as it is known whose connection this is."""
        self._shared.arrivals.identified(self)

    def admitted(self, events: list[Event]) -> None:
        """Handle the events of `admit` or `refuse`: the client comes in, or not."""
        self._shared.arrivals.admitted(self, events)

    # Reading and not reading

    def _hold(self, producer: RecordProducer) -> None:
        producer.link.hold(self)
        self.pause(BROKER)

    def broker_is_back(self) -> None:
        """The broker that this socket waited for takes more."""
        self.resume(BROKER)

    def window_opened(self) -> None:
        """Enough was acknowledged to an MQTT 3 client for its socket to be read again."""
        if self._paused_for & WINDOW and not self.session.is_saturated:
            self.resume(WINDOW)

    def pause_for_rate(self) -> None:
        """Do not read until the client's rate is kept."""
        self.pause(RATE)

    def rate_is_kept(self) -> None:
        """Read again: the client has waited for its rate."""
        self.resume(RATE)

    def pause_for_quota(self) -> None:
        """Do not read: the quota of its user is used up. From now on it is read in small portions.

        What is read is taken: with 64 KiB of each of a thousand clients a rate could not be kept.
        """
        if self.transport is not None:
            self.transport.read_at_most(PACED_READ_BYTES)
        self.pause(QUOTA)

    def quota_has_room(self) -> None:
        """Read again: what its user may send has come back."""
        self.resume(QUOTA)

    def quota_is_other(self) -> None:
        """Read again as if nothing had been: its user may send another amount now."""
        if self.transport is not None:
            self.transport.read_at_most(READ_BYTES)
        self.resume(QUOTA)

    def pause_for_overload(self) -> None:
        """Do not read: others are to be served."""
        self.pause(OVERLOAD)

    def overload_is_over(self) -> None:
        """Read again: others have been served."""
        self.resume(OVERLOAD)

    def pause(self, reason: int) -> None:
        """Stop reading the socket."""
        if not self._paused_for and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            if reason != OPENING_PAUSE:
                self._shared.counters.sockets_paused_total += 1
        self._paused_for |= reason
        # What a client may send while it takes nothing is its own affair: only we can make it silent.
        self.session.is_held = bool(self._paused_for & ~WRITING)

    def resume(self, reason: int) -> None:
        """Read the socket again, if nothing else is in the way."""
        if not self._paused_for & reason:
            return
        self._paused_for &= ~reason
        self.session.is_held = bool(self._paused_for & ~WRITING)
        self.session.heard_at = self._shared.now()
        if not self._paused_for and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    # Writing and closing

    def write(self) -> None:
        """Write what the session has to send, with one call."""
        data = self.session.data_to_send()
        transport = self.transport
        if data and transport is not None and not transport.is_closing() and not self.is_parting:
            self._shared.counters.bytes_out_total += len(data)
            if self._shared.sessions.traced is not None:
                self._shared.tracing.sent(self.session, data)
            self.send(data)
        if self._paused_for & WINDOW:
            self.window_opened()

    def send(self, data: bytes) -> None:
        """Give bytes of MQTT to the socket, which is there and open."""
        assert self.transport is not None
        self.transport.write(data)

    def close(self, reason_code: int, reason: str, sentence: str) -> None:
        """Close from this side."""
        if self.session.state != CLOSED:
            self.handle(self.session.close(reason_code, reason, sentence))
            self._shared.turn.settle()

    def end(self, reason: str) -> None:
        """Close the socket after what was written; `reason` is that of the session's end, if it was ours.

        Who never spoke MQTT was told nothing that could be lost.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self.is_parting:
            return
        if reason and self.session.version:
            self._paused_for |= PARTING
            half_close(self, transport)
        else:
            transport.close()
