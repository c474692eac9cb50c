"""The registry's four tables, in plain memory; time is an argument.

==================  =========================================  ===============================
table               key                                        value
==================  =========================================  ===============================
topicQueueTable     topic → broker name                        RouteRow
brokerAddrTable     broker name                                cluster, broker id → address
clusterAddrTable    cluster                                    broker names
brokerLiveTable     broker name, broker id                     last seen, connection, its rows
==================  =========================================  ===============================

A broker is in all of them or in none: it enters by `register` and leaves by `unregister`, by
the end of the connection that it registered over, or by silence (`expire`). While a broker's
name has several ids, the lowest one's topics are the name's.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdmq.errors import Code, RemoteError, WireError
from holdmq.topics import is_system_topic, system_topic_fault, topic_fault
from holdmq.wire.headers import BrokerRow, RouteRow, TopicRow

BROKERS_MAX: Final = 1_000
"""Registered brokers (masters and slaves): ten times the largest cluster we think of."""
ROUTES_MAX: Final = 500_000
"""Rows of topicQueueTable: fifty brokers with topics_max topics each, about 150 MiB."""
ROUTE_ANSWER_MAX: Final = 50_000
"""Rows of one ROUTE_GET answer: about 3 MiB, inside the wire's header limit of 4 MiB."""
QUEUES_MAX: Final = 65_536
"""Queues of a topic at one broker: more than any broker can keep open."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ADDRESS: Final = re.compile(r"(?:[^\s:]+|\[[0-9A-Fa-f:.%]+\]|[0-9A-Fa-f:.]+):[0-9]{1,5}\Z|unix:/\S+\Z")
_ADDRESS_MAX_CHARS: Final = 300
_BROKER_ID_MAX: Final = 1 << 31


class BrokerKey(NamedTuple):
    """A registered process: a broker's name and its id in it (0 = master)."""

    broker: str
    broker_id: int


@dataclass(slots=True)
class _Live:
    cluster: str
    address: str
    last_seen: float
    connection: Hashable
    routes: dict[str, RouteRow]


@dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    routes: dict[str, RouteRow] = field(default_factory=dict)


class Tables:
    """The four tables. Methods that change them return what changed; `version` rises with every change."""

    def __init__(self, brokers_max: int = BROKERS_MAX, routes_max: int = ROUTES_MAX) -> None:
        self.version = 0
        self.route_count = 0
        self._brokers_max = brokers_max
        self._routes_max = routes_max
        self._topic_queues: dict[str, dict[str, RouteRow]] = {}
        self._broker_addresses: dict[str, _Broker] = {}
        self._cluster_brokers: dict[str, set[str]] = {}
        self._live: dict[BrokerKey, _Live] = {}
        self._keys_of: dict[Hashable, set[BrokerKey]] = {}

    @property
    def broker_count(self) -> int:
        """Registered brokers, slaves included."""
        return len(self._live)

    @property
    def topic_count(self) -> int:
        """Topics that any broker holds."""
        return len(self._topic_queues)

    # Changes

    def register(
        self,
        row: BrokerRow,
        topics: Sequence[TopicRow],
        connection: Hashable,
        now: float,
    ) -> str | None:
        """Enter a broker with all its topics, in place of what it said before.

        `connection` is what it registered over; when that ends, call `connection_closed`.
        Returns the address that it had before if that was another one, else None.

        Raises WireError (MISSING_FIELD) or RemoteError (TOPIC_INVALID, NOT_PERMITTED for a
        name of another cluster, LIMIT_EXCEEDED); nothing has changed then.
        """
        routes = _check(row, topics)
        known = self._broker_addresses.get(row.broker)
        if known is not None and known.cluster != row.cluster:
            raise RemoteError(
                Code.NOT_PERMITTED,
                f"broker name {row.broker!r} belongs to cluster {known.cluster!r}; take another",
            )
        key = BrokerKey(row.broker, row.broker_id)
        before = self._live.get(key)
        if before is None and len(self._live) >= self._brokers_max:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"BROKERS_MAX: {self._brokers_max} brokers are registered")
        held = len(before.routes) if before is not None else 0
        if self.route_count - held + len(routes) > self._routes_max:
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"ROUTES_MAX: the routes of all brokers would be over {self._routes_max}"
            )
        if before is not None:
            self._forget_connection(before.connection, key)
        self._keys_of.setdefault(connection, set()).add(key)
        self._live[key] = _Live(row.cluster, row.address, now, connection, routes)
        self.route_count += len(routes) - held
        if known is None:
            known = self._broker_addresses[row.broker] = _Broker(row.cluster)
            self._cluster_brokers.setdefault(row.cluster, set()).add(row.broker)
        known.addresses[row.broker_id] = row.address
        if before is None or before.address != row.address or before.routes != routes:
            self._rebuild(row.broker)
        return before.address if before is not None and before.address != row.address else None

    def unregister(self, broker: str, broker_id: int) -> bool:
        """Take a broker out of every table; False if it was in none."""
        return self._drop(BrokerKey(broker, broker_id))

    def connection_closed(self, connection: Hashable) -> list[BrokerKey]:
        """Drop the brokers whose last registration came over this connection; return them."""
        keys = sorted(self._keys_of.get(connection, ()))
        for key in keys:
            self._drop(key)
        return keys

    def expire(self, now: float, silence_s: float) -> list[BrokerKey]:
        """Drop the brokers that have not registered for more than `silence_s`; return them."""
        keys = [key for key, live in self._live.items() if now - live.last_seen > silence_s]
        for key in keys:
            self._drop(key)
        return keys

    # Questions

    def routes(self, topics: Iterable[str] | None = None) -> tuple[list[RouteRow], list[BrokerRow]]:
        """Routes of these topics (None = all), and all live brokers.

        Unknown topics have no rows. Raises RemoteError (LIMIT_EXCEEDED) past ROUTE_ANSWER_MAX.
        """
        names = self._topic_queues if topics is None else dict.fromkeys(topics)
        found: list[RouteRow] = []
        for name in names:
            found.extend(self._topic_queues.get(name, {}).values())
            if len(found) > ROUTE_ANSWER_MAX:
                raise RemoteError(
                    Code.LIMIT_EXCEEDED,
                    f"ROUTE_ANSWER_MAX: more than {ROUTE_ANSWER_MAX} routes; ask for fewer topics by name",
                )
        return found, self.brokers()

    def brokers(self) -> list[BrokerRow]:
        """All live brokers, by name and id."""
        return [
            BrokerRow(live.cluster, key.broker, key.broker_id, live.address)
            for key, live in sorted(self._live.items())
        ]

    def silent_ms(self, now: float) -> dict[str, int]:
        """Per broker name the milliseconds since any of its ids registered."""
        silent: dict[str, int] = {}
        for key, live in self._live.items():
            passed = max(0, int((now - live.last_seen) * 1000))
            silent[key.broker] = min(passed, silent.get(key.broker, passed))
        return silent

    def clusters(self) -> dict[str, list[str]]:
        """Broker names by cluster."""
        return {cluster: sorted(names) for cluster, names in self._cluster_brokers.items()}

    def topics(self) -> list[str]:
        """Names of all topics, sorted."""
        return sorted(self._topic_queues)

    def size(self) -> int:
        """Entries of all tables and their indexes together: 0 when nobody is registered."""
        return sum(
            len(table)
            for table in (
                self._topic_queues,
                self._broker_addresses,
                self._cluster_brokers,
                self._live,
                self._keys_of,
            )
        )

    # Inside

    def _drop(self, key: BrokerKey) -> bool:
        live = self._live.pop(key, None)
        if live is None:
            return False
        self.route_count -= len(live.routes)
        self._forget_connection(live.connection, key)
        del self._broker_addresses[key.broker].addresses[key.broker_id]
        self._rebuild(key.broker)
        return True

    def _forget_connection(self, connection: Hashable, key: BrokerKey) -> None:
        keys = self._keys_of[connection]
        keys.discard(key)
        if not keys:
            del self._keys_of[connection]

    def _rebuild(self, name: str) -> None:
        """Bring the three tables of a broker's name in line with brokerLiveTable."""
        self.version += 1
        broker = self._broker_addresses[name]
        ids = sorted(broker.addresses)
        routes = self._live[BrokerKey(name, ids[0])].routes if ids else {}
        for topic in broker.routes.keys() - routes.keys():
            rows = self._topic_queues[topic]
            del rows[name]
            if not rows:
                del self._topic_queues[topic]
        for topic, row in routes.items():
            self._topic_queues.setdefault(topic, {})[name] = row
        broker.routes = routes
        if ids:
            return
        del self._broker_addresses[name]
        names = self._cluster_brokers[broker.cluster]
        names.discard(name)
        if not names:
            del self._cluster_brokers[broker.cluster]


def _check(row: BrokerRow, topics: Sequence[TopicRow]) -> dict[str, RouteRow]:
    for what, name in (("cluster", row.cluster), ("broker", row.broker)):
        if not _NAME.match(name):
            raise WireError(
                f"{what} name {name[:70]!r} must be 1 to 64 letters, digits, _ and -", Code.MISSING_FIELD
            )
    if not 0 <= row.broker_id < _BROKER_ID_MAX:
        raise WireError(f"broker id {row.broker_id} must be 0 or more", Code.MISSING_FIELD)
    if len(row.address) > _ADDRESS_MAX_CHARS or not _ADDRESS.match(row.address):
        raise WireError(f"address {row.address[:70]!r} is not host:port", Code.MISSING_FIELD)
    routes: dict[str, RouteRow] = {}
    for topic in topics:
        fault = (system_topic_fault if is_system_topic(topic.topic) else topic_fault)(topic.topic)
        if fault is not None:
            raise RemoteError(Code.TOPIC_INVALID, fault)
        if not (0 <= topic.read_queues <= QUEUES_MAX and 0 <= topic.write_queues <= QUEUES_MAX):
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"QUEUES_MAX: topic {topic.topic!r} has over {QUEUES_MAX} queues"
            )
        routes[topic.topic] = RouteRow(
            topic.topic,
            row.broker,
            topic.read_queues,
            topic.write_queues,
            topic.perm,
            topic.kind,
            topic.key_levels,
            topic.order,
        )
    return routes
