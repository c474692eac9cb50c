"""One worker put together: every part of its rooms, made in the order in which they need each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from gateway.access.access import Access
from gateway.access.logins import Logins
from gateway.edge.listeners import CertificateWatch, Listener
from gateway.edge.prerequisites import Prerequisites
from gateway.ground.worker_name import worker_name
from gateway.observe.busiest import BusiestClients
from gateway.observe.client_list import ClientList
from gateway.observe.connection_log import ConnectionLog
from gateway.observe.tracing import Tracing
from gateway.persistent.restoring import Restoring
from gateway.persistent.retained_puts import RetainedPuts
from gateway.persistent.rows import SessionWriter
from gateway.persistent.sessions import PersistentSessions
from gateway.persistent.wills import WillPublisher
from gateway.protect.fleet_bans import FlappingBans, FleetBans
from gateway.protect.fleet_quotas import FleetQuotas
from gateway.protect.gate import AdmissionGate
from gateway.protect.metering import Metering
from gateway.protect.overload import OverloadWatch
from gateway.worker.clocks import WorkerClock
from gateway.worker.deliveries import Deliveries
from gateway.worker.draining import Draining
from gateway.worker.foundations import Foundations
from gateway.worker.intake import LiveIntake
from gateway.worker.moving import OrphanMoves
from gateway.worker.parent_socket import ParentCommands
from gateway.worker.reception import Reception
from gateway.worker.reloads import GatewayReloads
from gateway.worker.reporting import Reporting
from gateway.worker.roster import BrokerRoster
from gateway.worker.settings import settings_of
from gateway.worker.shedding import HotWorkerRelief
from holdmq.config.model import Config
from holdmq.credentials.login_failures import LoginFailures


class Worker:
    """The parts of one worker process, for whoever runs it; no part is given the others."""

    def __init__(
        self,
        config: Config,
        index: int,
        listeners: Sequence[Listener],
        report: socket.socket | None,
        login_failures: LoginFailures | None,
    ) -> None:
        """`report` is the socket to the parent, None = there is none. Files of access are read (blocking)."""
        section = config.gateway
        self.index = index
        self.listeners = listeners
        base = Foundations(config, index, report)
        now, turn, context, links = base.now, base.turn, base.context, base.links
        counters, clients, topics, parent = base.counters, base.clients, base.topics, base.parent
        self.now, self.counters = now, counters
        self.clients, self.links, self.routes = clients, links, base.routes
        self.topics, self.parent = topics, parent
        self.turn = turn
        self.ingress = base.ingress
        rows = SessionWriter(links, context, turn)
        retained_puts = self.retained_puts = RetainedPuts(self.routes, links, counters, turn)
        deliveries = self.deliveries = Deliveries(
            links, context, clients, topics, retained_puts, rows, parent, turn, now, section.sys_interval_s
        )

        # Who may come in, and what is said of it
        fleet_quotas = FleetQuotas(counters)
        fleet_quotas.follow(self.routes)
        metering = self.metering = Metering(
            counters, now, section.publish_rate_max, section.publish_bytes_rate_max, fleet_quotas
        )
        count = section.worker_count(os.cpu_count() or 1)
        overload = self.overload = OverloadWatch(section, count, index, links, counters, metering)
        fleet_bans = FleetBans(clients, counters, turn)
        fleet_bans.follow(self.routes)
        gate = self.gate = AdmissionGate(section, counters, now, overload, parent, fleet_bans)
        connection_log = ConnectionLog(section.log_connections, index, counters)
        tracing = self.tracing = Tracing(index, context, clients, counters, now, parent)
        name = worker_name(index)
        ClientList(name, clients, turn, now).answer_in(self.routes.answers)
        busiest = BusiestClients(name, clients)
        busiest.answer_in(self.routes.answers)
        reloads = GatewayReloads(name, parent)
        reloads.answer_in(self.routes.answers)
        FlappingBans(name, gate.bans, now).answer_in(self.routes.answers)
        logins = self.logins = Logins(section, login_failures, counters, now, parent)
        subscriptions = deliveries.subscriptions
        access = self.access = Access(
            config, index, counters, context, clients, logins, turn, now, subscriptions.revoke, base.mounts.of
        )

        # Sessions that outlive their connections
        past, shares = deliveries.past, deliveries.shares
        restoring = Restoring(
            links,
            access,
            rows,
            deliveries.wanted,
            subscriptions,
            shares,
            past.retained,
            past.catchup,
            counters,
        )
        persistent = self.persistent = PersistentSessions(
            self.routes,
            links,
            clients,
            context,
            turn,
            now,
            access,
            rows,
            restoring,
            past.catchup,
            section.drain_will_min_s,
        )
        wills = self.wills = WillPublisher(
            base.mounts.entry,
            topics,
            base.ingress,
            base.smallest,
            retained_puts,
            persistent.will_done,
            counters,
            turn,
            now,
        )

        # Connections
        prerequisites = Prerequisites(access, rows, retained_puts, topics, deliveries.replays)
        reception = self.reception = Reception(
            context,
            clients,
            links,
            turn,
            now,
            gate,
            metering,
            overload,
            access,
            persistent,
            wills,
            base.ingress,
            prerequisites,
            deliveries,
            connection_log,
            tracing,
            busiest,
        )
        self.certificates = CertificateWatch(listeners, section.tls_reload_interval_s, index)

        # Brokers, clocks, the parent
        intake = self.intake = LiveIntake(deliveries.delivery, past, counters, turn)
        roster = self.roster = BrokerRoster(
            index,
            self.routes,
            links,
            turn,
            counters,
            gate,
            intake,
            deliveries.wanted,
            topics,
            retained_puts,
            past.retained,
            shares,
            persistent,
            wills,
        )
        reporting = self.reporting = Reporting(
            index, parent, links, roster, listeners, past, retained_puts, counters
        )
        self.draining = Draining(
            index,
            section,
            reception.connections,
            links,
            gate,
            persistent,
            retained_puts,
            reporting,
            counters,
            now,
        )
        moves = OrphanMoves(persistent.orphans, reception.connections, gate)
        relief = HotWorkerRelief(section, reception.connections, gate, counters)
        settings = settings_of(
            config, context.limits, gate, metering, overload, topics, relief, self.draining, connection_log,
            deliveries.system,
        )  # fmt: skip
        self.commands = ParentCommands(gate, logins, tracing, deliveries.system, settings, reloads, now)
        self.clock = WorkerClock(
            reception.wheel,
            turn,
            on_late=(reporting.late, overload.tick),
            on_tick=(
                reporting.tick,
                metering.tick,
                tracing.tick,
                subscriptions.expire,
                access.tick,
                persistent.tick,
                moves.tick,
                deliveries.system.tick,
            ),
            on_second=(
                connection_log.each_second,
                gate.each_second,
                logins.each_second,
                overload.each_second,
                relief.each_second,
                intake.each_second,
                reception.stragglers.each_second,
                past.catchup.each_second,
                persistent.each_second,
                retained_puts.each_second,
                roster.each_second,
                reporting.each_second,
            ),
        )

    def reload(self) -> None:
        """Look at certificates and files of access now (SIGHUP)."""
        self.certificates.reload_soon()
        self.access.files.reload_soon()
