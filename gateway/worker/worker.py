"""What the connections of one worker process share: a link to each broker, and their clocks."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import TYPE_CHECKING, Final

from gateway.access.access import Access
from gateway.access.logins import Logins
from gateway.brokers.link import BrokerLink
from gateway.brokers.turn import Turn
from gateway.deliver.delivery import LiveDelivery
from gateway.deliver.past_delivery import PastDelivery
from gateway.deliver.replay import Replays
from gateway.deliver.retained_delivery import RetainedDelivery
from gateway.deliver.shares import Shares
from gateway.deliver.subscriptions import Subscriptions
from gateway.deliver.system_topics import SystemTopics
from gateway.deliver.wanted import WantedFilters
from gateway.edge.connection import OPENING_PAUSE, ClientConnection
from gateway.edge.layered import LayeredConnection
from gateway.edge.listeners import CertificateWatch, Listener
from gateway.edge.sockets import Acceptor, Sockets
from gateway.edge.stragglers import Stragglers
from gateway.ground.clock import wall_ms
from gateway.ground.counters import Counters
from gateway.ground.entries import TopicEntry, make_entry
from gateway.ground.limits import SessionLimits
from gateway.ground.routes import Route, Routes
from gateway.ground.wheel import TICK_S, Wheel
from gateway.observe.connection_log import ConnectionLog
from gateway.observe.tracing import Tracing
from gateway.persistent.restoring import Restoring
from gateway.persistent.retained_puts import RetainedPuts
from gateway.persistent.rows import SessionWriter
from gateway.persistent.sessions import PersistentSessions
from gateway.persistent.wills import WillPublisher
from gateway.protect.gate import AdmissionGate
from gateway.protect.metering import Metering
from gateway.protect.overload import OverloadWatch
from gateway.publish.ingress import Ingress
from gateway.publish.topics import ClientTopics
from gateway.session.clients import Clients
from gateway.session.connection import close_connection
from gateway.session.context import SessionContext
from gateway.session.events import Closed, Event
from gateway.session.session import CLOSED, Session
from gateway.worker.reporting import Reporting
from holdmq.client.route import Link, RouteTable
from holdmq.config.model import Config
from holdmq.credentials.login_failures import LoginFailures
from holdmq.errors import HoldMQError
from holdmq.mqtt import CheckedTopics, ReasonCode
from holdmq.rpc.connection import Connection
from holdmq.rpc.security import Security
from holdmq.service import telemetry
from holdmq.wire.headers import HelloResponse

if TYPE_CHECKING:
    from collections.abc import Callable

REPORT_S: Final = 1.0
"""How often the parent gets this worker's numbers."""

log = telemetry.get_logger()


class Worker:
    """Everything that the connections of one process share."""

    def __init__(
        self,
        config: Config,
        index: int,
        report: socket.socket | None,
        login_failures: LoginFailures | None,
    ) -> None:
        section = config.gateway
        self._loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self._loop.time
        self.index = index
        self.section = section
        self.counters = Counters()
        self.counters.connections_max = section.connections_max
        limits = SessionLimits(section, config.access.anonymous_allowed(section), config.access.authenticates)

        routes = Routes([Route(rule.filter, rule.topic) for rule in section.routes])

        def entry(raw: bytes) -> TopicEntry:
            return make_entry(raw, limits.topic_max_bytes, limits.topic_levels_max, routes)

        self.context = SessionContext(
            CheckedTopics(entry), limits, self.counters, lambda: f"auto-{secrets.token_hex(12)}"
        )
        self.routes = RouteTable(
            config.registries(),
            f"gateway-{socket.gethostname()}-{index}",
            role="gateway",
            follow_all=True,
            security=Security.of(config),
        )
        self.turn = Turn(self.context)
        self.settle = self.turn.settle
        self.reporting = Reporting(self, report)
        self.clients = Clients(self.counters)
        self.links: dict[str, BrokerLink] = {}
        self.topics = ClientTopics(
            self.routes,
            self.links,
            self.counters,
            section.mqtt_topics_max,
            section.topic_creates_per_minute_max,
            routes.topics,
        )
        self.rows = SessionWriter(self.links, self.context, self.turn)
        self.wanted = WantedFilters(
            self.links, self.counters, self.topics.key_levels, lambda: self.topics.trees
        )
        self.delivery = LiveDelivery(self.wanted.trie, self.counters, wall_ms)
        self.retained_delivery = RetainedDelivery(self.counters, wall_ms)
        self.retained_puts = RetainedPuts(self.routes, self.links, self.counters, self.turn)
        self.past = PastDelivery(
            self.links,
            self.wanted,
            self.clients,
            self.context,
            self.delivery,
            self.retained_delivery,
            lambda: self.retained_puts.brokers,
            self.turn,
            self.now,
        )
        self.retained = self.past.retained
        self.catchup = self.past.catchup
        self.shares = Shares(self.links, self.counters, self.delivery, self.turn)
        self.replays = Replays(self.links, self.wanted, self.rows, self.catchup, self.counters, self.turn)
        self.system = SystemTopics(
            section.sys_interval_s,
            self.wanted,
            self.delivery,
            self.counters,
            self.now,
            self.reporting,
            self.turn,
        )
        self.subscriptions = Subscriptions(
            self.wanted,
            self.links,
            self.rows,
            self.retained,
            self.shares,
            self.replays,
            self.system,
            self.counters,
            self.now,
            self.turn.close_when_settled,
        )
        self.ingress = Ingress(self.topics.locate, self.topics.uses_other, self.now)
        self._tls_reload_interval_s = section.tls_reload_interval_s
        self.listeners: list[Listener] = []
        self._certificates: CertificateWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._next_tick: asyncio.TimerHandle | None = None
        self._wheel: Wheel[Session] = Wheel(self.now())
        self.sockets = Sockets(self._loop)
        self.shells: set[ClientConnection] = set()
        self.stragglers = Stragglers(self.counters)
        self._next_second = 0.0
        self.metering = Metering(
            self.counters, self.now, section.publish_rate_max, section.publish_bytes_rate_max
        )
        self.overload = OverloadWatch(
            section,
            section.worker_count(os.cpu_count() or 1),
            index,
            self.links,
            self.counters,
            self.metering,
        )
        self.gate = AdmissionGate(section, self.counters, self.now, self.overload, self.reporting)
        self.connection_log = ConnectionLog(section.log_connections, index, self.counters)
        self.tracing = Tracing(index, self.context, self.clients, self.counters, self.now, self.reporting)
        self.logins = Logins(section, login_failures, self.counters, self.now, self.reporting)
        self.access = Access(
            config,
            index,
            self.counters,
            self.context,
            self.clients,
            self.logins,
            self.turn,
            self.now,
            self.subscriptions.revoke,
        )
        restoring = Restoring(
            self.links,
            self.access,
            self.rows,
            self.wanted,
            self.subscriptions,
            self.shares,
            self.retained,
            self.catchup,
            self.counters,
        )
        self.persistent = PersistentSessions(
            self.routes,
            self.links,
            self.clients,
            self.context,
            self.turn,
            self.now,
            self.access,
            self.rows,
            restoring,
            self.catchup,
            section.drain_will_min_s,
        )
        self.wills = WillPublisher(
            self.context.topics,
            self.topics,
            self.ingress,
            self.retained_puts,
            self.persistent.will_done,
            self.counters,
            self.turn,
            self.now,
        )

    # Life

    def begin(self, listeners: list[Listener]) -> None:
        """Look for brokers, and keep the clocks; no client is accepted yet."""
        self.listeners = listeners
        self._certificates = CertificateWatch(listeners, self._tls_reload_interval_s, self.index)
        self._watching = self._loop.create_task(self._certificates.run(), name="certificates")
        self._watching.add_done_callback(_say_if_failed)
        self.access.start()
        self.routes.on_brokers.append(self._brokers_changed)
        self.routes.on_routes.append(self._routes_changed)
        self.routes.on_up.append(self._link_up)
        self.routes.on_down.append(self._link_down)
        self.routes.on_push += [self.persistent.pushed, self.wills.pushed]
        self.routes.start()
        self.reporting.listen()
        self._next_tick = self._loop.call_later(TICK_S, self._tick, self.now() + TICK_S)

    def end(self) -> None:
        """Stop the clocks, and tell the parent nothing more."""
        if self._next_tick is not None:
            self._next_tick.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self.reporting.close()

    def listen(self, listener: Listener, listening: socket.socket) -> Acceptor:
        """Accept the clients of a listener."""
        make = ClientConnection if listener.is_plain else LayeredConnection
        return self.sockets.listen(listening, lambda: make(self, listener))

    def reload(self) -> None:
        """Look at certificates and files of access now (SIGHUP)."""
        if self._certificates is not None:
            self._certificates.reload_soon()
        self.access.files.reload_soon()

    # Brokers

    def _brokers_changed(self) -> None:
        """Brokers came or went. A link is kept for good: sessions, positions and receipts refer to it, and
        brokers are few; what the route table has forgotten and learnt again is connected again."""
        routed = self.routes.brokers()
        for name in routed:
            link = self.links.get(name)
            if link is None:
                link = self.links[name] = self.make_link(name)
            client = self.routes.link(name).client
            if link.connection is None and client.connection is not None and client.hello is not None:
                link.up(client.connection, client.hello)
                self._linked(link)
        for name, link in self.links.items():
            link.is_routed = name in routed
        self.counters.brokers_known = len(routed)

    def make_link(self, name: str) -> BrokerLink:
        """The way to a broker that was not known yet."""
        return BrokerLink(name, self.turn, self.wanted, self, self.counters, self.routes.refresh_soon)

    @property
    def is_ready(self) -> bool:
        """Whether every broker of the route feeds this worker."""
        routed = [link for link in self.links.values() if link.is_routed]
        return bool(routed) and all(link.reader.is_open for link in routed)

    def _routes_changed(self, topics: frozenset[str]) -> None:
        self.topics.routes_changed(topics)
        self.wanted.routes_changed(topics)
        self.persistent.routes_changed(topics)
        if self.retained_puts.routes_changed(topics):
            self.retained.brokers_known()

    def _link_up(self, link: Link, connection: Connection, hello: HelloResponse) -> None:
        own = self.links.get(link.name)
        if own is not None:
            own.up(connection, hello)
            self._linked(own)
            log.info("broker connected", broker=link.name, worker=self.index)

    def _linked(self, link: BrokerLink) -> None:
        self.persistent.link_up(link)
        self.retained_puts.link_up(link)
        self.retained.brokers_known()
        self.shares.link_up(link)

    def _link_down(self, link: Link, reason: HoldMQError) -> None:
        own = self.links.get(link.name)
        if own is not None:
            own.down()
            self.persistent.link_down(own)
            self.shares.link_down(own)
            if not self.gate.is_draining:
                log.warning("broker lost", broker=link.name, worker=self.index, reason=str(reason))

    def reader_opened(self) -> None:
        """A live reader is open (again): sessions that lag may go on."""
        self.past.reader_opened()

    def live(
        self, link: BrokerLink, body: memoryview, position: int, records: int, is_late: bool = False
    ) -> None:
        """A live reader got records up to `position`; `is_late`: from below it, kept by paused topics."""
        self.counters.reads_total += 1
        self.counters.records_read_total += records
        self.delivery.live(link, body, is_late)
        link.reader.position = position
        self.catchup.fed(link)
        self.settle()

    # Connections

    def opened(self, shell: ClientConnection) -> None:
        """A connection was accepted."""
        self.shells.add(shell)
        shell.listener.connections += 1
        shell.listener.accepted_total += 1
        self.counters.connections = len(self.shells)
        self.gate.opened(shell)
        self._wheel.put(shell.session)

    def connected(self, shell: ClientConnection) -> None:
        """CONNECT may be accepted: its socket waits until who it is is known, and its owner has said so."""
        shell.pause(OPENING_PAUSE)
        self.access.admit(shell)

    def identified(self, shell: ClientConnection) -> None:
        """Ask the owner of the client id, if the gate admits who it is."""
        session = shell.session
        if self.gate.admits(session, session.principal or session.client_id):
            self.persistent.connecting(session)

    def admitted(self, shell: ClientConnection, events: list[Event]) -> None:
        """The owner has decided; an older connection of this client id ends [MQTT-3.1.4-3]."""
        session = shell.session
        if session.state == CLOSED:
            shell.handle(events)
            self.settle()
            return
        older = self.clients.session(session.client_id)
        if older is not None and older is not session:
            self.counters.takeovers_total += 1
            close_connection(
                older, ReasonCode.SESSION_TAKEN_OVER, "taken_over", "this client id connected again"
            )
        self.gate.is_known(shell)
        self.clients.add(session)
        is_outdated = self.access.is_outdated(session)
        self._wheel.put(session)
        self.connection_log.connected(shell)
        meter = self.metering.meter
        if meter is None or meter.received(shell, 0, events):
            shell.handle(events)
        shell.resume(OPENING_PAUSE)
        if is_outdated:
            self.access.look(session)
        self.settle()

    def session_closed(self, shell: ClientConnection, event: Closed) -> None:
        """A session ended: its filters go, its will is published, its socket closes."""
        session = shell.session
        self._wheel.remove(session)
        self.gate.is_known(shell)
        self.stragglers.unstall(shell)
        is_told = self.persistent.closed(session, event)
        self.subscriptions.forget(session)
        self.past.forget(session)
        self.clients.remove(session)
        if event.will is not None and not is_told:
            self.wills.ended(session, event.will)
        if event.reason:
            shell.listener.refused[event.reason] += 1
        self.connection_log.ended(shell, event, self.now())
        if self.tracing.is_on:
            self.tracing.closed(session, event)
        self.counters.disconnects_total += session.began_at > 0
        transport = shell.transport
        if transport is None:
            # Without the cycle a closed connection is freed at once, not at the next full collection.
            session.connection = None
        else:
            shell.write()
            # Nothing more is read: what the peer still sends must not keep the socket busy.
            shell.end(event.reason)
            if transport.get_write_buffer_size() or not transport.is_closing():
                self.stragglers.linger(shell, self.now())

    def lost(self, shell: ClientConnection) -> None:
        """The socket is gone."""
        self.shells.discard(shell)
        shell.listener.connections -= 1
        self.stragglers.forget(shell)
        self.gate.closed(shell)
        self.overload.forget(shell)
        if self.metering.meter is not None:
            self.metering.meter.forget(shell)
        for link in self.links.values():
            link.held.pop(shell, None)
        self._wheel.remove(shell.session)
        if shell.waiting is None:
            shell.session.connection = None
        self.counters.connections = len(self.shells)

    def window_opened(self, session: Session) -> None:
        """A session's window or socket takes more."""
        self.past.ready(session)
        self.shares.ready(session)

    # Clocks

    def _tick(self, due: float) -> None:
        now = self.now()
        self.reporting.tick(now, now - due)
        self.overload.tick(now - due)
        if self.metering.meter is not None:
            self.metering.meter.tick(now)
        if self.tracing.is_on:
            self.tracing.tick(now)
        for session in self._wheel.advance(now):
            if session.connection is not None:
                session.connection.handle(session.handle_deadline(now))
            if session.state != CLOSED:
                self._wheel.put(session)
        self.subscriptions.expire(now)
        self.access.tick(now)
        self.persistent.tick(now)
        self.system.tick(now)
        if now >= self._next_second:
            self._next_second = now + REPORT_S
            self._each_second(now)
        self.settle()
        self._next_tick = self._loop.call_later(TICK_S, self._tick, now + TICK_S)

    def _each_second(self, now: float) -> None:
        self.connection_log.each_second()
        self.gate.each_second(now)
        self.logins.each_second(now)
        self.overload.each_second(now)
        self.delivery.malformed_logged = 0
        self.stragglers.each_second(now)
        self.catchup.each_second(now)
        self.persistent.each_second(now)
        self.retained_puts.each_second(now)
        for link in self.links.values():
            link.each_second(now, is_resting=self.routes.is_resting(link.name, now))
        self.reporting.send_report()


def _say_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("nobody looks at certificates any more", exc_info=task.exception())
