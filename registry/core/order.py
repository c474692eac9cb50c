"""Ordered topics: which brokers' queues the keys of a topic are spread over, whoever is absent.

What a registration says of an ordered topic is learnt, so that the queues of a broker stay in the topic's
routes while it is away; ORDER_SET says it outright. A broker that registers without a topic, or with the
topic's `order` taken back, leaves that topic. The cluster of each broker is kept as well: who asks for one
is told of its absent brokers alone, and of those whose cluster nobody said. A broker that was given up has no
rows, and is remembered in `forgotten`. Pure: `registry.order_file` keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdmq.errors import Code, RemoteError
from holdmq.names.topics import is_system_topic, system_topic_fault, topic_fault
from holdmq.wire.forget_headers import ForgottenRow
from holdmq.wire.headers import OrderRow, RouteRow
from registry.core.forgotten import ForgottenBrokers

ORDER_ROWS_MAX: Final = 50_000
"""Brokers of all ordered topics together (about 200 bytes each): a broker's topics_max on five brokers."""
QUEUES_MAX: Final = 65_536

Orders = dict[str, dict[str, int]]


class OrderTable:
    """Topic → broker → queues. `version` rises with every change; `refused`: brokers beyond the bound."""

    def __init__(self, rows_max: int = ORDER_ROWS_MAX) -> None:
        self.version = 0
        self.rows = 0
        self.refused = 0
        self.forgotten = ForgottenBrokers()
        self._rows_max = rows_max
        self._topics: Orders = {}
        self._clusters: dict[str, str] = {}
        """Of brokers that have rows; a file of before clusters says none."""

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def get(self, topic: str, cluster: str = "") -> Mapping[str, int]:
        """Brokers and queues of an ordered topic; empty for others.

        `cluster`: without the brokers that are known to be of others, "" = all.
        """
        found = self._topics.get(topic, {})
        if not cluster:
            return found
        return {broker: queues for broker, queues in found.items() if self._is_in(broker, cluster)}

    def topics(self) -> list[str]:
        """Names of all ordered topics, sorted."""
        return sorted(self._topics)

    def listed(self, topics: list[str] | None = None, cluster: str = "") -> list[OrderRow]:
        """The rows of these topics, or of all but system topics; what is not ordered is left out.

        `cluster` as for `get`.
        """
        if topics is None:
            names = [topic for topic in self.topics() if not is_system_topic(topic)]
        else:
            names = sorted({str(t) for t in topics} & self._topics.keys())
        found = ((name, dict(self.get(name, cluster))) for name in names)
        return [OrderRow(name, queues) for name, queues in found if queues]

    def rows_of(self, broker: str) -> dict[str, int]:
        """Ordered topics that a broker is of, and its queues of each."""
        return {topic: brokers[broker] for topic, brokers in self._topics.items() if broker in brokers}

    def remember(self, row: ForgottenRow) -> bool:
        """Know that a broker was given up, or is back; what topics it has stays. False = it was known."""
        is_new = self.forgotten.learn(row)
        self.version += is_new
        return is_new

    def forget(self, broker: str) -> frozenset[str]:
        """Take a broker out of all topics; return those that it was of."""
        topics = set(self.rows_of(broker))
        for topic in topics:
            self._remove(topic, broker)
        self._clusters.pop(broker, None)
        return self._told(topics)

    def place(self, broker: str, cluster: str) -> frozenset[str]:
        """A broker is of this cluster: return the topics that it is told for otherwise now."""
        topics = {topic for topic, brokers in self._topics.items() if broker in brokers}
        if not topics:
            self._clusters.pop(broker, None)
        elif self._clusters.get(broker, "") != cluster:
            self._clusters[broker] = cluster
            return self._told(topics)
        return frozenset()

    def learn(
        self, broker: str, before: Mapping[str, RouteRow], routes: Mapping[str, RouteRow]
    ) -> frozenset[str]:
        """Take what a broker registers (`before`: what it had said last); return the topics that changed."""
        changed: set[str] = set()
        for topic, row in routes.items():
            if row.order:
                if self._put(topic, broker, row.write_queues):
                    changed.add(topic)
            elif topic in before and before[topic].order and self._remove(topic, broker):
                changed.add(topic)
        for topic in [t for t, brokers in self._topics.items() if broker in brokers and t not in routes]:
            self._remove(topic, broker)
            changed.add(topic)
        return self._told(changed)

    def replace(self, topic: str, queues: Mapping[Any, Any], cluster: str = "") -> frozenset[str]:
        """Set a topic's brokers, {} to forget it; return it if that changed anything.

        `cluster`: they are of this one, and brokers that are known to be of others stay; "" = all are set.
        Raises RemoteError (TOPIC_INVALID, also for a system topic; LIMIT_EXCEEDED).
        """
        fault = topic_fault(topic)
        if fault is not None:
            raise RemoteError(Code.TOPIC_INVALID, fault)
        before = self._topics.get(topic, {})
        staying = {name: count for name, count in before.items() if not self._is_in(name, cluster)}
        changed = self._replace(topic, {**(staying if cluster else {}), **queues})
        if cluster:
            for broker in queues:
                changed |= self.place(broker, cluster)
        for broker in before.keys() - queues.keys():
            self._forget_unused(broker)
        return changed

    def _replace(self, topic: str, queues: Mapping[Any, Any]) -> frozenset[str]:
        for broker, count in queues.items():
            if not isinstance(broker, str) or not isinstance(count, int) or not 0 < count <= QUEUES_MAX:
                raise RemoteError(
                    Code.LIMIT_EXCEEDED,
                    f"broker {broker!r} with {count!r} queues: 1 to {QUEUES_MAX} are allowed",
                )
        before = self._topics.get(topic, {})
        if dict(queues) == before:
            return frozenset()
        if self.rows - len(before) + len(queues) > self._rows_max:
            raise RemoteError(
                Code.LIMIT_EXCEEDED, f"ORDER_ROWS_MAX: {self._rows_max} brokers of ordered topics are kept"
            )
        self.rows += len(queues) - len(before)
        if queues:
            self._topics[topic] = dict(queues)
        else:
            self._topics.pop(topic, None)
        return self._told({topic})

    def content(self) -> dict[str, Any]:
        """What the file keeps."""
        content: dict[str, Any] = {
            "orderTopics": {topic: dict(queues) for topic, queues in self._topics.items()},
            "clusters": dict(self._clusters),
        }
        if len(self.forgotten):
            content["forgotten"] = self.forgotten.content()
        return content

    def load(self, content: Mapping[str, Any], version: int) -> str:
        """Take a file's content; return what is wrong with it, "" = nothing."""
        found = content.get("orderTopics")
        if not isinstance(found, dict):
            return "orderTopics is missing"
        for topic, queues in found.items():
            if not isinstance(queues, dict):
                return f"topic {topic!r}: no brokers"
            fault = (system_topic_fault if is_system_topic(topic) else topic_fault)(topic)
            if fault is not None:
                return f"topic {topic!r}: {fault}"
            try:
                self._replace(topic, queues)
            except RemoteError as error:
                return f"topic {topic!r}: {error.remark}"
        clusters = content.get("clusters", {})
        if not isinstance(clusters, dict) or not all(isinstance(name, str) for name in clusters.values()):
            return "clusters: not a cluster's name for each broker"
        self._clusters = {str(broker): name for broker, name in clusters.items()}
        fault = self.forgotten.load(content.get("forgotten", []))
        if fault:
            return fault
        self.version = version
        return ""

    def _put(self, topic: str, broker: str, queues: int) -> bool:
        known = self._topics.get(topic)
        if queues <= 0:
            return self._remove(topic, broker)
        if known is not None and broker in known:
            if known[broker] == queues:
                return False
            known[broker] = queues
            return True
        if self.rows >= self._rows_max:
            self.refused += 1
            return False
        self._topics.setdefault(topic, {})[broker] = queues
        self.rows += 1
        return True

    def _remove(self, topic: str, broker: str) -> bool:
        known = self._topics.get(topic)
        if known is None or broker not in known:
            return False
        del known[broker]
        self.rows -= 1
        if not known:
            del self._topics[topic]
        return True

    def _is_in(self, broker: str, cluster: str) -> bool:
        return self._clusters.get(broker, "") in ("", cluster)

    def _forget_unused(self, broker: str) -> None:
        if not any(broker in brokers for brokers in self._topics.values()):
            self._clusters.pop(broker, None)

    def _told(self, changed: set[str]) -> frozenset[str]:
        if changed:
            self.version += 1
        return frozenset(changed)
