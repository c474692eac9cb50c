"""What brings messages to subscribers, put together: live, from the past, retained, shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
from gateway.ground.clock import wall_ms
from gateway.ground.parent_port import ParentPort
from gateway.persistent.retained_puts import RetainedPuts
from gateway.persistent.rows import SessionWriter
from gateway.publish.topics import ClientTopics
from gateway.session.clients import Clients
from gateway.session.session import SessionContext


class Deliveries:
    """The parts of the room `deliver`, for the composition alone."""

    def __init__(
        self,
        links: Mapping[str, BrokerLink],
        context: SessionContext,
        clients: Clients,
        topics: ClientTopics,
        retained_puts: RetainedPuts,
        rows: SessionWriter,
        parent: ParentPort,
        turn: Turn,
        now: Callable[[], float],
        sys_interval_s: float,
    ) -> None:
        counters = context.counters
        self.wanted = WantedFilters(links, counters, topics.key_levels, lambda: topics.trees)
        self.delivery = LiveDelivery(self.wanted.trie, counters, wall_ms)
        self.retained_delivery = RetainedDelivery(counters, wall_ms)
        self.past = PastDelivery(
            links,
            self.wanted,
            clients,
            context,
            self.delivery,
            self.retained_delivery,
            lambda: retained_puts.brokers,
            turn,
            now,
        )
        self.shares = Shares(links, counters, self.delivery, turn)
        self.replays = Replays(links, self.wanted, rows, self.past.catchup, counters, turn)
        self.system = SystemTopics(sys_interval_s, self.wanted, self.delivery, counters, now, parent, turn)
        self.subscriptions = Subscriptions(
            self.wanted,
            links,
            rows,
            self.past.retained,
            self.shares,
            self.replays,
            self.system,
            counters,
            now,
            turn.close_when_settled,
        )
