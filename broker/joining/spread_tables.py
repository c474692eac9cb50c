"""Topics and groups as tables of which every broker is to have all rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from broker.groups.core.settings import GroupSetting
from broker.groups.requests import Groups
from broker.kernel.durable import durable
from broker.kernel.spread_table import Taken
from broker.topics.core import changes as topic_changes
from broker.topics.core.table import Topic
from broker.topics.requests import TopicRequests
from broker.topics.topic_file import Staged
from holdmq.errors import RemoteError
from storage.api.store import OrderedStore

TOPICS: Final = "topics"
GROUPS: Final = "groups"


class SpreadTopics:
    """Topics whose spread is all, and that producers see."""

    def __init__(self, topics: TopicRequests, store: OrderedStore) -> None:
        self._topics = topics
        self._table = topics.table
        self._store = store

    @property
    def version(self) -> int:
        return self._table.data_version

    def names(self) -> Collection[str]:
        """Topics that others are to have: not one that is being hidden, which will be deleted."""
        return [topic.name for topic in self._table.all() if topic.is_spread and topic.write_queues]

    def settings_of(self, name: str) -> dict[str, Any] | None:
        topic = self._table.get(name)
        return None if topic is None else topic_changes.settings_to_spread(topic)

    def has(self, name: str) -> bool:
        return self._table.find(name) is not None

    async def take(self, found: Mapping[str, Mapping[str, Any]]) -> Taken:
        """Have these topics, with the settings that they have elsewhere and queues that begin at 0."""
        taken: list[str] = []
        refused = ""

        def plan(staged: Staged) -> None:
            nonlocal refused
            room = self._topics.room(staged)
            position = self._store.confirmed_position
            for name, settings in found.items():
                if staged.get(name) is not None:
                    continue
                try:
                    if len(taken) >= room:
                        raise self._topics.is_full()
                    staged.put(topic_changes.taken_over(name, settings, position))
                except RemoteError as error:
                    refused = error.remark
                    continue
                taken.append(name)

        await durable(lambda done: self._topics.submit(plan, done))
        return Taken(taken, refused)

    async def drop_unused(self, name: str) -> bool:
        """Delete a topic that has no message here."""
        is_held = is_dropped = False

        def plan(staged: Staged) -> None:
            nonlocal is_held, is_dropped
            topic = staged.get(name)
            if topic is not None and not topic.is_leaving and self._is_empty(topic):
                # What producers send until this is durable would be lost with the topic.
                is_held = is_dropped = True
                self._table.hold(name)
                staged.put(topic_changes.delete_topic(topic, True))

        try:
            await durable(lambda done: self._topics.submit(plan, done))
        finally:
            if is_held:
                self._table.release(name)
        return is_dropped

    def _is_empty(self, topic: Topic) -> bool:
        for queue_id in range(topic.queues_in_store):
            first, end = self._store.bounds(topic.name, queue_id)
            if first < end or self._store.is_being_written(topic.name, queue_id):
                return False
        return True


class SpreadGroups:
    """Groups with their settings. One that its first member made here, before the others were asked, and that
    has no settings of its own, takes theirs: `begin` says which there were before, `settle` that they were
    asked."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._table = groups.settings.table
        self._before: frozenset[str] | None = None

    def begin(self) -> None:
        """Groups come by themselves from now on."""
        self._before = frozenset(self._table.groups)

    def settle(self) -> None:
        """The others were asked for all that they have."""
        self._before = None

    @property
    def version(self) -> int:
        return self._table.data_version * 2 + (self._before is None)

    def names(self) -> Collection[str]:
        return [name for name, group in self._table.groups.items() if not self._is_bare(group)]

    def settings_of(self, name: str) -> dict[str, Any] | None:
        group = self._table.groups.get(name)
        return None if group is None else self._table.row_content(group)

    def has(self, name: str) -> bool:
        group = self._table.groups.get(name)
        return group is not None and not self._is_bare(group)

    def _is_bare(self, group: GroupSetting) -> bool:
        is_new = self._before is not None and group.name not in self._before
        return is_new and group == GroupSetting(group.name, group.mode)

    async def take(self, found: Mapping[str, Mapping[str, Any]]) -> Taken:
        """Have these groups' settings."""
        taken: list[str] = []
        refused = ""

        def plan(groups: dict[str, GroupSetting]) -> None:
            nonlocal refused
            for name, settings in found.items():
                known = groups.get(name)
                if known is not None and not self._is_bare(known):
                    continue
                try:
                    self._table.plan_take_over(groups, name, settings)
                except RemoteError as error:
                    refused = error.remark
                    continue
                if groups[name] != known:
                    taken.append(name)

        await durable(lambda done: self._groups.settings.change(plan, done))
        for name in taken:
            self._groups.settings_changed(name)
        return Taken(taken, refused)

    async def drop_unused(self, name: str) -> bool:
        """Forget the settings of a group that has neither members nor offsets here."""
        if not self._groups.is_unused(name):
            return False
        is_dropped = False

        def plan(groups: dict[str, GroupSetting]) -> None:
            nonlocal is_dropped
            if name in groups and self._groups.is_unused(name):
                self._table.plan_delete(groups, name)
                is_dropped = True

        await durable(lambda done: self._groups.settings.change(plan, done))
        return is_dropped
