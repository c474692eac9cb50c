"""What all rooms of a worker stand on: its numbers, its parent, its sessions, brokers and their topics."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable

from gateway.brokers.link import BrokerLink
from gateway.brokers.turn import Turn
from gateway.ground.counters import Counters
from gateway.ground.entries import TopicEntry, make_entry
from gateway.ground.limits import SessionLimits
from gateway.ground.mounts import TenantMounts
from gateway.ground.routes import Route, Routes
from gateway.ground.smallest import SmallestMessage
from gateway.publish.ingress import Ingress
from gateway.publish.topics import ClientTopics
from gateway.session.clients import Clients
from gateway.session.session import SessionContext
from gateway.worker.parent_socket import ParentSocket
from holdmq.client.route import Link, RouteTable
from holdmq.config.model import Config
from holdmq.rpc.security import Security
from holdmq.wire.headers import HelloResponse


class Foundations:
    """The parts of the lower rooms, for the composition alone; `links` are the brokers by name."""

    def __init__(self, config: Config, index: int, report: socket.socket | None) -> None:
        section = config.gateway
        self.now: Callable[[], float] = asyncio.get_running_loop().time
        self.counters = Counters()
        self.counters.connections_max = section.connections_max
        self.parent = ParentSocket(report)
        limits = SessionLimits(section, config.access.anonymous_allowed(section), config.access.authenticates)
        rules = Routes([Route(rule.filter, rule.topic) for rule in section.routes])

        def entry(raw: bytes, mount: str) -> TopicEntry:
            return make_entry(raw, limits.topic_max_bytes, limits.topic_levels_max, rules, mount)

        self.mounts = TenantMounts(entry)
        self.context = SessionContext(self.mounts.topics, limits, self.counters, _new_client_id)
        self.turn = Turn(self.context)
        self.clients = Clients(self.counters)
        self.links: dict[str, BrokerLink] = {}
        self.routes = RouteTable(
            config.registries(),
            f"gateway-{socket.gethostname()}-{index}",
            role="gateway",
            follow_all=True,
            security=Security.of(config),
            cluster=config.client.cluster,
        )
        self.topics = ClientTopics(
            self.routes,
            self.links,
            self.counters,
            section.mqtt_topics_max,
            section.topic_creates_per_minute_max,
            rules.topics,
        )
        self.smallest = SmallestMessage()
        self.routes.on_up.append(lambda link, _connection, hello: self._hear_bounds(link, hello))
        self.routes.on_bounds.append(self._hear_bounds)
        self.ingress = Ingress(self.topics.locate, self.topics.uses_other, self.smallest, self.now)

    def _hear_bounds(self, link: Link, hello: HelloResponse) -> None:
        self.smallest.told(link.name, hello.message_bytes_min)


def _new_client_id() -> str:
    return f"auto-{secrets.token_hex(12)}"
