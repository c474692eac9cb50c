"""The registry's four tables, in plain memory; time is an argument.

==================  =========================================  ===============================
table               key                                        value
==================  =========================================  ===============================
topicQueueTable     topic → broker name                        RouteRow
brokerAddrTable     broker name                                cluster, broker id → address
clusterAddrTable    cluster                                    broker names
brokerLiveTable     broker name, broker id                     last seen, connection, its rows
==================  =========================================  ===============================

Beside them `order` keeps what ordered topics are spread over: brokers of it that are absent have
rows in the routes (queues to write, none to read), so that no key moves while they are away.
Who asks for one cluster is answered as if there were no other.

A broker is in all of them or in none: it enters by `register` and leaves by `unregister`, by
the end of the connection that it registered over, or by silence (`expire`). A name whose epoch is
known is that of one process, who has the highest; without epochs it may have several ids, and the lowest
one's topics are the name's.

An absent broker can be given up (`forget`): it leaves `order`, and only a store that was made later may have
its name. Who was not told hears of it from brokers (`hear_forgotten`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdmq.errors import Code, RemoteError, WireError
from holdmq.names.rooms import room_fault
from holdmq.names.topics import is_system_topic, system_topic_fault, topic_fault
from holdmq.wire.forget_headers import (
    TIME_MAX_MS,
    UNKNOWN,
    BrokerForgetResponse,
    ForgottenRow,
    LostTopicRow,
    is_newer,
)
from holdmq.wire.headers import BrokerRow, OrderRow, RouteRow, TopicRow
from registry.core.changes import Changes
from registry.core.order import OrderTable

BROKERS_MAX: Final = 1_000
"""Registered brokers (masters and slaves): ten times the largest cluster we think of."""
EPOCHS_MAX: Final = 10_000
"""Names whose highest epoch is remembered, also while nobody of them lives: ten times BROKERS_MAX."""
ROUTES_MAX: Final = 500_000
"""Rows of topicQueueTable: fifty brokers with topics_max topics each, about 150 MiB."""
PAGE_MAX_BYTES: Final = 2 << 20
"""Rows of one ROUTE_GET answer: half of the wire's header limit of 4 MiB, which brokers and names share."""
ROW_OVERHEAD_BYTES: Final = 40
"""What a RouteRow takes beside its names, at most."""
QUEUES_MAX: Final = 65_536
"""Queues of a topic at one broker: more than any broker can keep open."""
ABSENT_MAX: Final = 100
"""Brokers of whom is remembered what they had, while they are away: for who wants to give one up."""
LOST_TOPICS_MAX: Final = 1_000
"""Topics of a lost broker that one answer names."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ADDRESS: Final = re.compile(r"(?:[^\s:]+|\[[0-9A-Fa-f:.%]+\]|[0-9A-Fa-f:.]+):[0-9]{1,5}\Z|unix:/\S+\Z")
_ADDRESS_MAX_CHARS: Final = 300
_BROKER_ID_MAX: Final = 1 << 31
_PERM: Final = 6


class BrokerKey(NamedTuple):
    """A registered process: a broker's name and its id in it (0 = master)."""

    broker: str
    broker_id: int


class KeptHere(NamedTuple):
    """What a broker says of its store: when it was made (ms, 0 = not known), and rows of both kinds in it."""

    made_ms: int = 0
    sessions: int = UNKNOWN
    retained: int = UNKNOWN


KEPT_UNKNOWN: Final = KeptHere()


@dataclass(slots=True)
class _Live:
    cluster: str
    address: str
    last_seen: float
    connection: Hashable
    routes: dict[str, RouteRow]
    epoch: int
    room: str
    kept: KeptHere


@dataclass(slots=True)
class _BrokerEntry:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    routes: dict[str, RouteRow] = field(default_factory=dict)


class RegistryTables:
    """The four tables, and `order`. `changes` knows what changed since a version.

    `take_changed` says what changed since it was called last: whoever waits for it is told then.
    """

    def __init__(
        self, brokers_max: int = BROKERS_MAX, routes_max: int = ROUTES_MAX, first_version: int = 0
    ) -> None:
        self.changes = Changes(first_version)
        self.order = OrderTable()
        self.route_count = 0
        self._changed: set[str] = set()
        self._are_brokers_changed = False
        self._sorted: list[str] | None = None
        self._brokers_max = brokers_max
        self._routes_max = routes_max
        self._topic_queues: dict[str, dict[str, RouteRow]] = {}
        self._broker_addresses: dict[str, _BrokerEntry] = {}
        self._cluster_brokers: dict[str, set[str]] = {}
        self._live: dict[BrokerKey, _Live] = {}
        self._keys_of: dict[Hashable, set[BrokerKey]] = {}
        self._epochs: dict[str, int] = {}
        self._gone: dict[str, _Live] = {}
        """What brokers were that are away now, the last ones."""

    @property
    def version(self) -> int:
        """Rises with every change of any table."""
        return self.changes.version

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
        kept: KeptHere = KEPT_UNKNOWN,
    ) -> str | None:
        """Enter a broker with all its topics, in place of what it said before.

        `connection` is what it registered over; when that ends, call `connection_closed`.
        Returns the address that it had before if that was another one, else None.

        Raises WireError (MISSING_FIELD) or RemoteError (TOPIC_INVALID, NOT_PERMITTED for a
        name of another cluster, NOT_LEADER for an epoch that is over, BROKER_FORGOTTEN for a store that was
        given up, LIMIT_EXCEEDED); nothing has changed then.
        """
        routes = _check(row, topics)
        self._check_forgotten(row.broker, kept.made_ms)
        known = self._broker_addresses.get(row.broker)
        self._check_epoch(row)
        if known is not None and known.cluster != row.cluster:
            raise RemoteError(
                Code.NOT_PERMITTED,
                f"broker name {row.broker!r} belongs to cluster {known.cluster!r}; take another",
            )
        key = BrokerKey(row.broker, row.broker_id)
        before = self._live.get(key)
        ousted = self._ousted_by(row, known)
        if before is None and len(self._live) - len(ousted) >= self._brokers_max:
            raise RemoteError(Code.LIMIT_EXCEEDED, f"BROKERS_MAX: {self._brokers_max} brokers are registered")
        replaced = [self._live[one] for one in ousted] + ([before] if before is not None else [])
        held = sum(len(live.routes) for live in replaced)
        if self.route_count - held + len(routes) > self._routes_max:
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"ROUTES_MAX: the routes of all brokers would be over {self._routes_max}"
            )
        spoken = known.routes if known is not None else {}
        for one in ousted:
            self._drop(one)
        known = self._broker_addresses.get(row.broker)
        if before is not None:
            self._forget_connection(before.connection, key)
        self._keys_of.setdefault(connection, set()).add(key)
        self._live[key] = _Live(row.cluster, row.address, now, connection, routes, row.epoch, row.room, kept)
        self._gone.pop(row.broker, None)
        self._come_back(row.broker)
        if row.epoch:
            self._epochs[row.broker] = row.epoch
        self.route_count += len(routes) - (len(before.routes) if before is not None else 0)
        if known is None:
            known = self._broker_addresses[row.broker] = _BrokerEntry(row.cluster)
            self._cluster_brokers.setdefault(row.cluster, set()).add(row.broker)
        known.addresses[row.broker_id] = row.address
        is_new_place = before is None or (
            (before.address, before.epoch, before.room) != (row.address, row.epoch, row.room)
        )
        if is_new_place or (before is not None and before.routes != routes):
            self._rebuild(row.broker, is_new_place)
            if row.broker_id == min(known.addresses):
                self._note(self.order.learn(row.broker, spoken, routes))
                self._note(self.order.place(row.broker, row.cluster))
        return next((live.address for live in replaced if live.address != row.address), None)

    def unregister(self, broker: str, broker_id: int, epoch: int = 0) -> bool:
        """Take a broker out of every table; False if it was in none, or another process leads by now."""
        if epoch < self._epochs.get(broker, 0):
            return False
        return self._drop(BrokerKey(broker, broker_id))

    def _check_forgotten(self, broker: str, made_ms: int) -> None:
        """Refuse a store that is older than the forgetting of its broker: others keep what was its by now."""
        row = self.order.forgotten.get(broker)
        if row is None or made_ms > row.forgotten_ms:
            return
        made = (
            f"was made {max(0, row.forgotten_ms - made_ms) // 1000} s before that"
            if made_ms
            else "does not say when it was made"
        )
        raise RemoteError(
            Code.BROKER_FORGOTTEN,
            f"broker {broker!r} was given up (holdmq broker forget), and its store {made}; start it with an "
            "empty directory, under this name or another one",
            {"forgotten_ms": row.forgotten_ms},
        )

    def _come_back(self, broker: str) -> None:
        row = self.order.forgotten.get(broker)
        if row is not None and self.order.remember(row._replace(is_back=True)):
            self._note((), True)

    def _check_epoch(self, row: BrokerRow) -> None:
        """Refuse a process whose lead is over, however long the one that leads now is silent."""
        highest = self._epochs.get(row.broker, 0)
        if row.epoch < highest:
            entry = self._broker_addresses.get(row.broker)
            leader = "" if entry is None else ", ".join(entry.addresses.values())
            where = f" at {leader}" if leader else ""
            hint = "" if row.epoch else ". If it has no copies any more, restart the registries"
            raise RemoteError(
                Code.NOT_LEADER,
                f"broker {row.broker!r} is led in epoch {highest}{where}; this process says "
                f"{row.epoch}{hint}",
                {"epoch": highest, "leader": leader},
            )
        if row.epoch and row.broker not in self._epochs and len(self._epochs) >= EPOCHS_MAX:
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"EPOCHS_MAX: {EPOCHS_MAX} names of brokers have led copies"
            )

    def _ousted_by(self, row: BrokerRow, known: _BrokerEntry | None) -> list[BrokerKey]:
        """Processes of other ids whose lead ends with this registration."""
        if known is None or not row.epoch:
            return []
        keys = (BrokerKey(row.broker, broker_id) for broker_id in known.addresses)
        return [key for key in keys if key.broker_id != row.broker_id and self._live[key].epoch < row.epoch]

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

    # Brokers that are given up

    def lost(self, broker: str, now: float) -> BrokerForgetResponse:
        """What is lost when an absent broker is given up.

        Raises WireError (MISSING_FIELD) for what is no name, RemoteError (NOT_PERMITTED) while it is
        registered, or if it has copies.
        """
        if not _NAME.match(broker):
            raise WireError(f"broker {broker[:70]!r} is no broker's name", Code.MISSING_FIELD)
        entry = self._broker_addresses.get(broker)
        if entry is not None:
            where = ", ".join(entry.addresses.values())
            raise RemoteError(
                Code.NOT_PERMITTED,
                f"broker {broker!r} is registered, at {where}: it lives; stop it first",
            )
        if self._epochs.get(broker, 0):
            raise RemoteError(
                Code.NOT_PERMITTED,
                f"broker {broker!r} has copies: another leads, or can be made to (holdmq replica promote)",
            )
        gone, forgotten, ordered = self._gone.get(broker), self.order.forgotten.get(broker), self.order
        rows = [
            LostTopicRow(topic, queues, True, len(ordered.get(topic)) - 1)
            for topic, queues in sorted(ordered.rows_of(broker).items())
        ]
        if gone is not None:
            rows += [
                LostTopicRow(row.topic, row.write_queues, False, len(self._topic_queues.get(row.topic, ())))
                for row in gone.routes.values()
                if not row.order
            ]
        is_over = forgotten is not None and not forgotten.is_back
        kept = KEPT_UNKNOWN if gone is None else gone.kept
        return BrokerForgetResponse(
            broker,
            bool(rows) or gone is not None or forgotten is not None,
            forgotten.forgotten_ms if forgotten is not None and is_over else 0,
            "" if gone is None else gone.cluster,
            UNKNOWN if gone is None else max(0, int((now - gone.last_seen) * 1000)),
            kept.sessions,
            kept.retained,
            len(rows),
            sum(row.queues for row in rows),
            rows[:LOST_TOPICS_MAX],
        )

    def forget(self, broker: str, at_ms: int) -> bool:
        """Give an absent broker up, as of a time in ms since the epoch; False = it was before.

        Call `lost` first, which refuses. Raises WireError (MISSING_FIELD) for what is no time.
        """
        known = self.order.forgotten.get(broker)
        if known is not None and not known.is_back:
            return False
        if not 0 < at_ms < TIME_MAX_MS:
            raise WireError(f"{at_ms} is no time in ms", Code.MISSING_FIELD)
        # It may have been given up before, by a clock that was ahead.
        at_ms = max(at_ms, 0 if known is None else known.forgotten_ms + 1)
        self.order.remember(ForgottenRow(broker, at_ms))
        self._gone.pop(broker, None)
        self._note(self.order.forget(broker), True)
        return True

    def hear_forgotten(self, found: Iterable[ForgottenRow]) -> tuple[list[str], list[BrokerKey]]:
        """Take what another registry was told; return the brokers that are given up here now, too, and the
        processes of older stores that leave the tables with that.

        Raises WireError (MISSING_FIELD) for what is no broker's name, or no time.
        """
        over: list[str] = []
        dropped: list[BrokerKey] = []
        for row in found:
            if not _NAME.match(row.broker) or not 0 < row.forgotten_ms < TIME_MAX_MS:
                raise WireError(f"{row!r:.200} is no broker that was given up", Code.MISSING_FIELD)
            known = self.order.forgotten.get(row.broker)
            if not is_newer(row, known):
                continue
            entry = self._broker_addresses.get(row.broker)
            keys = [] if entry is None else [BrokerKey(row.broker, each) for each in entry.addresses]
            last = self._live[keys[0]] if keys else self._gone.get(row.broker)
            if last is not None and last.kept.made_ms > row.forgotten_ms:
                self.order.remember(row._replace(is_back=True))
                continue
            for key in keys:
                self._drop(key)
            dropped += keys
            self.order.remember(row)
            self._gone.pop(row.broker, None)
            if known is None or known.forgotten_ms < row.forgotten_ms:
                over.append(row.broker)
                self._note(self.order.forget(row.broker), True)
            else:
                self._note((), True)
        return over, dropped

    # Questions

    def set_order(self, row: OrderRow, cluster: str = "") -> bool:
        """Make a topic ordered at these brokers, or not any more; whether that changed anything.

        `cluster`: at those of this one alone. Raises RemoteError: TOPIC_UNKNOWN for a registered broker
        without the topic, NOT_PERMITTED for one of another cluster, else as `OrderTable.replace`.
        """
        for broker in row.queues:
            known = self._broker_addresses.get(broker)
            if known is not None and row.topic not in known.routes:
                raise RemoteError(Code.TOPIC_UNKNOWN, f"broker {broker!r} has no topic {row.topic!r}")
            if known is not None and cluster not in ("", known.cluster):
                raise RemoteError(
                    Code.NOT_PERMITTED, f"broker {broker!r} is of cluster {known.cluster!r}, not {cluster!r}"
                )
        changed = self.order.replace(row.topic, row.queues, cluster)
        for broker in row.queues:
            if broker in self._broker_addresses:
                changed |= self.order.place(broker, self._broker_addresses[broker].cluster)
        self._note(changed)
        return bool(changed)

    def take_changed(self) -> tuple[set[str], bool]:
        """Topics that changed since the last call, and whether a broker came, went or moved."""
        found = self._changed, self._are_brokers_changed
        self._changed, self._are_brokers_changed = set(), False
        return found

    def routes(
        self,
        topics: Iterable[str] | None = None,
        after: str = "",
        max_bytes: int = PAGE_MAX_BYTES,
        sees: Callable[[str], bool] | None = None,
        cluster: str = "",
    ) -> tuple[list[RouteRow], str]:
        """Routes of these topics (None = all) by name, from the one that follows `after` on.

        Unknown topics have no rows. The rows take about `max_bytes` at most, but always those of one topic;
        second is the last topic of the page if more follow, else "". `sees`: who asks knows
        no others; None = all. `cluster`: only at brokers of this one; "" = at all.
        """
        names = self._names() if topics is None else sorted(set(topics))
        if sees is not None:
            names = list(filter(sees, names))
        found: list[RouteRow] = []
        size_bytes = 0
        last = after
        for index in range(bisect_right(names, after), len(names)):
            rows = self._rows_of(names[index], cluster)
            size_bytes += sum(len(row.topic) + len(row.broker) + ROW_OVERHEAD_BYTES for row in rows)
            if rows and found and size_bytes > max_bytes:
                return found, last
            found += rows
            last = names[index]
        return found, ""

    def brokers(self, cluster: str = "") -> list[BrokerRow]:
        """All live brokers, or those of a cluster, by name and id."""
        return [
            BrokerRow(live.cluster, key.broker, key.broker_id, live.address, live.epoch, live.room)
            for key, live in sorted(self._live.items())
            if cluster in ("", live.cluster)
        ]

    def silent_ms(self, now: float, cluster: str = "") -> dict[str, int]:
        """Per broker name, of all or of a cluster, the milliseconds since any of its ids registered."""
        silent: dict[str, int] = {}
        for key, live in self._live.items():
            if cluster not in ("", live.cluster):
                continue
            passed = max(0, int((now - live.last_seen) * 1000))
            silent[key.broker] = min(passed, silent.get(key.broker, passed))
        return silent

    def clusters(self) -> dict[str, list[str]]:
        """Broker names by cluster."""
        return {cluster: sorted(names) for cluster, names in self._cluster_brokers.items()}

    def names_in(self, cluster: str) -> int:
        """How many brokers a cluster has by name; replicas of one count once."""
        return len(self._cluster_brokers.get(cluster, ()))

    def topics(self, cluster: str = "") -> list[str]:
        """Names of all topics, or of those that a cluster's brokers have, sorted."""
        if not cluster:
            return sorted(self._topic_queues)
        names = self._cluster_brokers.get(cluster, set())
        return sorted(topic for topic, rows in self._topic_queues.items() if not names.isdisjoint(rows))

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
        self._gone.pop(key.broker, None)
        self._gone[key.broker] = live
        if len(self._gone) > ABSENT_MAX:
            del self._gone[next(iter(self._gone))]
        del self._broker_addresses[key.broker].addresses[key.broker_id]
        self._rebuild(key.broker, True)
        return True

    def _forget_connection(self, connection: Hashable, key: BrokerKey) -> None:
        keys = self._keys_of[connection]
        keys.discard(key)
        if not keys:
            del self._keys_of[connection]

    def _names(self) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self._topic_queues.keys() | set(self.order.topics()))
        return self._sorted

    def _rows_of(self, topic: str, cluster: str) -> list[RouteRow]:
        rows = list(self._topic_queues.get(topic, {}).values())
        if cluster:
            rows = [row for row in rows if self._broker_addresses[row.broker].cluster == cluster]
        ordered = self.order.get(topic, cluster)
        if not ordered:
            return rows
        rows = [row if row.order else row._replace(order=True) for row in rows]
        like = rows[0] if rows else RouteRow(topic, "", 0, 0, _PERM, "log", 1, True)
        return rows + [
            like._replace(broker=broker, read_queues=0, write_queues=queues)
            for broker, queues in ordered.items()
            if broker not in self._broker_addresses
        ]

    def _note(self, topics: Iterable[str], brokers: bool = False) -> None:
        topics = set(topics)
        if not topics and not brokers:
            return
        self._sorted = None
        self.changes.note(topics, brokers)
        self._changed |= topics
        self._are_brokers_changed |= brokers

    def _rebuild(self, name: str, is_place_changed: bool) -> None:
        """Bring the three tables of a broker's name in line with brokerLiveTable."""
        broker = self._broker_addresses[name]
        ids = sorted(broker.addresses)
        routes = self._live[BrokerKey(name, ids[0])].routes if ids else {}
        both = broker.routes.keys() | routes.keys()
        self._note((t for t in both if broker.routes.get(t) != routes.get(t)), is_place_changed)
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
    if (fault := room_fault(row.room)) is not None:
        raise WireError(fault, Code.MISSING_FIELD)
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
