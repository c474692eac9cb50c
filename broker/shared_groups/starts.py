"""Where shared groups begin: in topics that they subscribe to, and in queues that appear later."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from broker.shared_groups.core.members import SharedGroup
from broker.shared_groups.core.queue import QueueKey, SharedQueue
from broker.shared_groups.core.shared import Shared
from broker.shared_groups.core.subscriptions import SubscriptionFilter
from broker.topics.core.table import TopicTable
from holdmq.names.topics import is_temporary
from holdmq.record.origin import retry_topic
from holdmq.wire.shared_headers import EARLIEST, LATEST, SharedStart
from holdmq.wire.topic_headers import FIRST_GROUP_BEGINNING
from storage.api.queues import MessageQueues

KeptOffset = Callable[[str, str, int], int]

log = structlog.get_logger("holdmq.broker")


def is_volatile(queue: SharedQueue) -> bool:
    """Whether nothing of it is kept: it goes with the broker, or with its group's last member."""
    return is_temporary(queue.key.group) or is_temporary(queue.key.topic)


class SharedStarts:
    """Takes up queues. `unsaved` are those whose beginning is not yet known to be in the log.

    `kept_offset(group, topic, queue id)` is what is kept of a group that consumed in another mode, or was
    made as a clone; -1 = nothing.
    """

    def __init__(
        self, core: Shared, store: MessageQueues, topics: TopicTable, kept_offset: KeptOffset
    ) -> None:
        self.unsaved: set[QueueKey] = set()
        self.kept_offset = kept_offset
        self._core = core
        self._store = store
        self._topics = topics
        self._groups_of: dict[str, set[str]] = {}
        self._seen: dict[str, int] = {}

    def groups_of(self, topic: str) -> set[str] | tuple[()]:
        """Names of the groups that subscribe to a topic."""
        return self._groups_of.get(topic, ())

    def subscribe(
        self,
        group: SharedGroup,
        wanted: dict[str, SubscriptionFilter],
        start: str,
        is_own_start: bool,
        begun: Collection[str] = (),
    ) -> list[SharedStart]:
        """Let a group read these topics with these filters; where it begins in queues that are new to it.

        `is_own_start`: a member said where, and not only what groups do by default. In topics that it has
        `begun` at other brokers it begins at the beginning: they came here since.
        """
        started: list[SharedStart] = []
        if not group.members:
            self._unsubscribe(group)
        for topic, subscription in wanted.items():
            group.filters[topic] = subscription
            self._groups_of.setdefault(topic, set()).add(group.name)
            is_first = not is_own_start and self._is_first(group.name, topic)
            started += self.take_up(group, topic, EARLIEST if is_first or topic in begun else start)
        self._seen.pop(group.name, None)
        return started

    def _is_first(self, group: str, topic: str) -> bool:
        """Whether a group was the first of a topic whose first group begins at the beginning."""
        known = self._topics.get(topic)
        return (
            known is not None and known.first_group == FIRST_GROUP_BEGINNING and known.first_reader == group
        )

    def forget(self, group: SharedGroup) -> None:
        """A group is gone."""
        self._unsubscribe(group)
        self._seen.pop(group.name, None)
        self.unsaved.difference_update([queue.key for queue in group.order])

    def _unsubscribe(self, group: SharedGroup) -> None:
        for topic in group.filters:
            groups = self._groups_of.get(topic, set())
            groups.discard(group.name)
            if not groups:
                self._groups_of.pop(topic, None)
        group.filters.clear()

    def take_up(self, group: SharedGroup, topic: str, start: str) -> list[SharedStart]:
        """Take up the queues of a topic that the group does not read yet; where it begins in them."""
        known = self._topics.get(topic)
        is_known = any(queue.key.topic == topic for queue in group.order)
        is_retry = topic == retry_topic(group.name)
        if known is None and (is_known or is_retry):
            return []
        started: list[SharedStart] = []
        for queue_id in range(1 if known is None else known.read_queues):
            if (topic, queue_id) in group.queues:
                continue
            first, end = self._store.bounds(topic, queue_id)
            # Queues that a topic gains belong to what the group wanted all along.
            floor = end if start == LATEST and not is_known and not is_retry else first
            kept = self.kept_offset(group.name, topic, queue_id)
            if kept >= 0:
                floor = max(first, min(kept, end))
            queue = self._core.add_queue(QueueKey(group.name, topic, queue_id), floor)
            if not is_known and not is_retry and not is_volatile(queue):
                self.unsaved.add(queue.key)
            started.append(SharedStart(topic, queue_id, floor))
        if started and not is_known and not is_retry:
            log.info("a shared group begins", group=group.name, topic=topic, start=start, queues=len(started))
        return started

    def refresh(self, group: SharedGroup) -> None:
        """Take up queues and topics that appeared since the last look."""
        version = self._topics.data_version
        if self._seen.get(group.name) != version:
            self._seen[group.name] = version
            for topic in list(group.filters):
                self.take_up(group, topic, EARLIEST)
