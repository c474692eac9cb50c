"""Log topics as the gateway's clients need them: where a client's messages go, and creating by use."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.ground.counters import Counters
from gateway.ground.limits import TOPIC_WAIT_S, TOPIC_WAITERS_MAX
from gateway.ground.rates import Allowances
from gateway.ground.targets import Target
from holdmq.client.route import RouteTable
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.mqtt import ReasonCode
from holdmq.names.tenants import split_tenant
from holdmq.names.topics import (
    OTHER_KEY_LEVELS,
    TREE_PREFIX,
    is_other,
    is_system_topic,
    is_whole,
    rank_queues,
)
from holdmq.service import telemetry

if TYPE_CHECKING:
    from gateway.brokers.link import BrokerLink

REFUSED_S: Final = 30.0
"""How long a topic that brokers refused is not asked for again: as long as routes live."""
TREES_READ_MAX: Final = 16
"""Topics of routing rules that are read: twice what the rules of one gateway may name."""
REFUSED_MAX: Final = 10_000
"""Refused topics remembered; past it all are forgotten, which costs a question each."""

log = telemetry.get_logger()


class ClientTopics:
    """Queues of topics for clients, and the topics that are being created."""

    def __init__(
        self,
        routes: RouteTable,
        links: Mapping[str, BrokerLink],
        counters: Counters,
        mqtt_topics_max: int,
        creates_per_minute_max: int,
        own_trees: Sequence[str] = (),
    ) -> None:
        self._routes = routes
        self._links = links
        self._counters = counters
        self.mqtt_topics_max = mqtt_topics_max
        self._allowances = Allowances(creates_per_minute_max)
        self._loop = asyncio.get_running_loop()
        self._known: Counter[str] = Counter()
        """Topics that clients may have made, by tenant; "" = nobody's. None takes another's places."""
        self._own_trees = tuple(own_trees)
        self._tree_names = list(own_trees)
        self.trees: tuple[tuple[str, int], ...] = tuple((name, OTHER_KEY_LEVELS) for name in own_trees)
        """Topics that subscriptions are looked for in beside their own, with `key_levels`."""
        self._waiting: dict[str, list[tuple[Callable[[], None], Callable[[], None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: dict[str, tuple[int, float]] = {}
        self._full: dict[str, float] = {}
        """Topics that got TOPIC_LIMIT: their messages go to the shared topic."""

    def routes_changed(self, topics: frozenset[str]) -> None:
        """Count again what mqtt_topics_max bounds; retire queues of these topics that are hidden now.

        Queues of a broker that no registry calls live are not hidden: it may come back.
        """
        live = self._routes.brokers()
        shown: set[tuple[str, str, int]] = set()
        for topic in topics:
            route = self._routes.get(topic)
            if route is not None:
                shown.update((topic, queue.broker, queue.queue_id) for queue in route.write_queues)
        for name, link in self._links.items():
            if name in live:
                for target in link.producer.targets():
                    if target.topic in topics:
                        target.is_retired = (target.topic, name, target.queue_id) not in shown
        self._known = Counter(
            split_tenant(route.topic)[0]
            for route in self._routes.all()
            if not is_system_topic(route.topic) and not is_whole(route.topic)
        )
        self._find_trees()

    def _find_trees(self) -> None:
        """Know the topics of routing rules: our own, whether they exist or not, and other gateways'."""
        others = sorted({route.topic for route in self._routes.all() if route.topic.startswith(TREE_PREFIX)})
        names = list(dict.fromkeys((*self._own_trees, *others)))
        if len(names) > TREES_READ_MAX and names != self._tree_names:
            log.error("topics of routing rules that are not read", topics=names[TREES_READ_MAX:])
        self._tree_names = names
        found: list[tuple[str, int]] = []
        for name in names[:TREES_READ_MAX]:
            route = self._routes.get(name)
            found.append((name, OTHER_KEY_LEVELS if route is None else route.key_levels))
        self.trees = tuple(found)

    def key_levels(self, topic: str) -> int:
        """`key_levels` of a log topic, 1 while it is not known."""
        route = self._routes.get(topic)
        return 1 if route is None else route.key_levels

    def uses_other(self, topic: str, client_id: str) -> bool:
        """Whether a client's messages of this topic go to the shared one: it does not exist and may not be
        created, or not so soon by this client."""
        if self._routes.get(topic) is not None:
            return False
        now = self._loop.time()
        if self._known[split_tenant(topic)[0]] >= self.mqtt_topics_max or self._full.get(topic, 0.0) > now:
            return True
        refused = self._refused.get(topic)
        if topic in self._waiting or (refused is not None and refused[1] > now):
            return False
        if self._allowances.try_take(client_id, now):
            return False
        self._counters.topics_diverted_total += 1
        return True

    def locate(self, topic: str, client_id: str, bound: tuple[str, int] | None = None) -> Target | int | None:
        """The queue of a client: the bound one, else the first in rank whose broker is not resting.

        Of a bound one that is there no more the broker stays, if it has others. None = the topic must be
        created first; a reason code = it was refused.
        """
        refused = self._refused.get(topic)
        if refused is not None and refused[1] > self._loop.time():
            return refused[0]
        route = self._routes.get(topic)
        if route is None or not route.write_queues:
            if len(self._waiting) >= TOPIC_WAITERS_MAX:
                return ReasonCode.QUOTA_EXCEEDED
            return None
        queues = [(queue.broker, queue.queue_id) for queue in route.write_queues]
        if bound is not None and bound[0] in self._links:
            kept = [bound] if bound in queues else [queue for queue in queues if queue[0] == bound[0]]
            if kept:
                broker, queue_id = rank_queues(client_id, kept)[0]
                return self._links[broker].producer.target(topic, queue_id)
        ranked = rank_queues(client_id, queues)
        now = self._loop.time()
        for broker, queue_id in ranked:
            link = self._links.get(broker)
            if link is not None and not self._routes.is_resting(broker, now):
                return link.producer.target(topic, queue_id)
        for broker, queue_id in ranked:
            link = self._links.get(broker)
            if link is not None:
                return link.producer.target(topic, queue_id)
        return ReasonCode.QUOTA_EXCEEDED

    def create(self, topic: str, on_known: Callable[[], None], on_failed: Callable[[], None]) -> None:
        """Have a topic created; one of the callbacks runs later, once."""
        self._counters.topics_waiting += 1
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append((on_known, on_failed))
            return
        self._waiting[topic] = [(on_known, on_failed)]
        task = self._loop.create_task(self._create(topic), name=f"topic {topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is being created."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _create(self, topic: str) -> None:
        failed = False
        levels = OTHER_KEY_LEVELS if is_whole(topic) else 1
        try:
            wait_s = max(TOPIC_WAIT_S, self._routes.failover_s)
            route = await self._routes.ensure_topic(topic, levels, wait_s)
            if not route.write_queues:
                raise RemoteError(Code.TOPIC_PERM, f"topic {topic!r} may not be written")
            async with asyncio.timeout(wait_s):
                await self._retired_idle(topic)
        except TimeoutError:
            log.warning("a hidden queue does not settle what was sent to it", topic=topic)
            failed = True
        except RemoteError as error:
            self._refuse(topic, error)
        except HoldMQError as error:
            log.warning("a topic could not be created", topic=topic, reason=str(error))
            failed = True
        finally:
            waiting = self._waiting.pop(topic)
            self._counters.topics_waiting -= len(waiting)
        for on_known, on_failed in waiting:
            (on_failed if failed else on_known)()

    async def _retired_idle(self, topic: str) -> None:
        """Wait until everything that was sent to hidden queues of a topic is answered."""
        busy = [
            target
            for link in self._links.values()
            for target in link.producer.targets()
            if target.topic == topic and target.is_retired and target.runs
        ]
        for target in busy:
            idle: asyncio.Future[None] = self._loop.create_future()
            target.on_idle = partial(_set, idle)
            if target.runs:
                await idle

    def _refuse(self, topic: str, error: RemoteError) -> None:
        log.warning("a topic may not be created", topic=topic, reason=str(error))
        until = self._loop.time() + REFUSED_S
        is_full = error.code in (Code.TOPIC_LIMIT, Code.QUOTA_EXCEEDED)
        if is_full and not is_other(topic):
            if len(self._full) >= REFUSED_MAX:
                self._full.clear()
            self._full[topic] = until
            return
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused[topic] = (ReasonCode.QUOTA_EXCEEDED if is_full else ReasonCode.NOT_AUTHORIZED, until)


def _set(idle: asyncio.Future[None]) -> None:
    if not idle.done():
        idle.set_result(None)
