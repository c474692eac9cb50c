"""The brokers of a worker: a link to each that the route table names, and who hears what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.brokers.link import BrokerLink
from gateway.ground.limits import REROUTE_S
from holdmq.client.route import Link, RouteTable
from holdmq.errors import HoldMQError
from holdmq.rpc.connection import Connection
from holdmq.service import telemetry
from holdmq.wire.headers import HelloResponse

if TYPE_CHECKING:
    from gateway.brokers.reader import LiveFeed
    from gateway.brokers.turn import Turn
    from gateway.deliver.retained_answers import RetainedAnswers
    from gateway.deliver.shares import Shares
    from gateway.deliver.wanted import WantedFilters
    from gateway.ground.counters import Counters
    from gateway.persistent.retained_puts import RetainedPuts
    from gateway.persistent.sessions import PersistentSessions
    from gateway.persistent.wills import WillPublisher
    from gateway.protect.gate import AdmissionGate
    from gateway.publish.topics import ClientTopics

log = telemetry.get_logger()


class BrokerRoster:
    """Keeps `links` as the route table wants them; a lost broker is no news once the gate is draining."""

    def __init__(
        self,
        index: int,
        routes: RouteTable,
        links: dict[str, BrokerLink],
        turn: Turn,
        counters: Counters,
        gate: AdmissionGate,
        feed: LiveFeed,
        wanted: WantedFilters,
        topics: ClientTopics,
        retained_puts: RetainedPuts,
        retained: RetainedAnswers,
        shares: Shares,
        persistent: PersistentSessions,
        wills: WillPublisher,
    ) -> None:
        self._index = index
        self._routes = routes
        self._links = links
        self._turn = turn
        self._counters = counters
        self._gate = gate
        self._feed = feed
        self._wanted = wanted
        self._topics = topics
        self._retained_puts = retained_puts
        self._retained = retained
        self._shares = shares
        self._persistent = persistent
        self._wills = wills

    def begin(self) -> None:
        """Look for brokers from now on."""
        routes = self._routes
        routes.on_brokers.append(self._brokers_changed)
        routes.on_routes.append(self._routes_changed)
        routes.on_up.append(self._link_up)
        routes.on_down.append(self._link_down)
        routes.on_push += [self._persistent.pushed, self._wills.pushed]
        routes.start()

    @property
    def is_ready(self) -> bool:
        """Whether every broker of the route feeds this worker."""
        routed = [link for link in self._links.values() if link.is_routed]
        return bool(routed) and all(link.reader.is_open for link in routed)

    def link_to(self, name: str) -> BrokerLink:
        """The way to a broker, made if it was not known yet."""
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = BrokerLink(
                name, self._turn, self._wanted, self._feed, self._counters, self._routes.refresh_soon
            )
        return link

    def each_second(self, now: float) -> None:
        """Give up what brokers have not taken for long."""
        for link in self._links.values():
            link.each_second(
                now,
                patience_s=max(REROUTE_S, self._routes.patience_s(link.name)),
                is_resting=self._routes.is_resting(link.name, now),
            )

    def _brokers_changed(self) -> None:
        """Brokers came or went. A link is kept for good: sessions, positions and receipts refer to it, and
        brokers are few; what the route table has forgotten and learnt again is connected again."""
        routed = self._routes.brokers()
        for name in routed:
            link = self.link_to(name)
            client = self._routes.link(name).client
            if link.connection is None and client.connection is not None and client.hello is not None:
                link.up(client.connection, client.hello)
                self._linked(link)
        for name, link in self._links.items():
            link.is_routed = name in routed
        self._counters.brokers_known = len(routed)

    def _routes_changed(self, topics: frozenset[str]) -> None:
        self._topics.routes_changed(topics)
        self._wanted.routes_changed(topics)
        self._persistent.routes_changed(topics)
        if self._retained_puts.routes_changed(topics):
            self._retained.brokers_known()

    def _link_up(self, link: Link, connection: Connection, hello: HelloResponse) -> None:
        own = self._links.get(link.name)
        if own is not None:
            own.up(connection, hello)
            self._linked(own)
            log.info("broker connected", broker=link.name, worker=self._index)

    def _linked(self, link: BrokerLink) -> None:
        self._persistent.link_up(link)
        self._retained_puts.link_up(link)
        self._retained.brokers_known()
        self._shares.link_up(link)

    def _link_down(self, link: Link, reason: HoldMQError) -> None:
        own = self._links.get(link.name)
        if own is not None:
            own.down()
            self._persistent.link_down(own)
            self._shares.link_down(own)
            if not self._gate.is_draining:
                log.warning("broker lost", broker=link.name, worker=self._index, reason=str(reason))
