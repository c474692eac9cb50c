"""Consumers that still have messages of a queue to read: what a safe removal waits for.

Counted are groups that keep an offset in the topic, those that a `clustering` member subscribes to it for,
and `shared` groups that read it. Members of `broadcast` groups keep their own offsets, which no broker
knows. A group that never began with a queue has all of it before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from broker.groups.requests import Groups
from broker.shared_groups.requests import SharedMode
from holdmq.wire.group_headers import CLUSTERING


class QueueStore(Protocol):
    """What is asked of the store."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First offset and next confirmed offset of a queue."""


class Progress:
    """What consumer groups of every mode have consumed: `broker.topics.queue_deletion.GroupOffsets`."""

    def __init__(self, store: QueueStore, groups: Groups, shared: SharedMode | None = None) -> None:
        self._store = store
        self._groups = groups
        self._shared = shared

    def behind(self, topic: str, queue_id: int, end_offset: int) -> list[tuple[str, int]]:
        """Groups that have not consumed a queue up to `end_offset`, and the offsets at which they are."""
        first_offset = self._store.bounds(topic, queue_id)[0]
        if first_offset >= end_offset:
            return []
        table = self._groups.offsets.table
        shared = self._shared
        reading = [] if shared is None else _reading(shared, topic)
        # What offsets say of a shared group is where it was reset to.
        names = {*table.groups_in(topic), *self._subscribed(topic)}.difference(reading)
        found = self._those_behind(
            names, lambda name: table.get(name, topic, queue_id), first_offset, end_offset
        )
        if shared is not None:
            found += self._those_behind(
                reading,
                lambda name: shared.floor(name, topic, queue_id) or 0,
                first_offset,
                end_offset,
            )
        return found

    def begun(self, topic: str) -> set[str]:
        """Groups that have read a topic, as far as it is known where they are."""
        reading = [] if self._shared is None else _reading(self._shared, topic)
        return {*self._groups.offsets.table.groups_in(topic), *reading}

    def queue_deleted(self, topic: str, queue_id: int) -> None:
        """Forget offsets in a queue that is gone."""
        self._groups.queue_deleted(topic, queue_id)

    def _subscribed(self, topic: str) -> set[str]:
        members = self._groups.members
        return {
            name
            for name in members.groups()
            if members.mode(name) == CLUSTERING and topic in self._groups.subscribed_topics(name)
        }

    @staticmethod
    def _those_behind(
        names: Iterable[str], offset_of: Callable[[str], int], first_offset: int, end_offset: int
    ) -> list[tuple[str, int]]:
        # What retention took is nobody's to consume.
        at = [(name, max(first_offset, offset_of(name))) for name in sorted(names)]
        return [(name, offset) for name, offset in at if offset < end_offset]


def _reading(shared: SharedMode, topic: str) -> list[str]:
    """`shared` groups that read, or have read, a topic."""
    groups = shared.core.groups
    return [name for name, group in groups.items() if any(key[0] == topic for key in group.queues)]
