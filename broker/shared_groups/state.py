"""What is shown and said of shared groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog

from broker.kernel.request_family import HelloOf
from broker.shared_groups.core.members import SharedGroup, SharedGroupMember
from broker.shared_groups.core.queue import QueueKey, SharedQueue
from broker.shared_groups.core.shared import Bounds, Shared
from holdmq.record.origin import retry_topic
from holdmq.rpc.connection import Connection
from holdmq.wire.group_headers import SHARED, GroupSubscription, MemberRow
from holdmq.wire.shared_headers import SharedMemberRow, SharedQueueRow, SharedStateResponse

log = structlog.get_logger("holdmq.broker")


class SharedRows:
    """What those who ask for members and offsets of any group are told of shared ones."""

    def __init__(self, core: Shared, hello_of: HelloOf) -> None:
        self._core = core
        self._hello_of = hello_of

    def groups(self) -> list[str]:
        """Groups that have members."""
        return [name for name, group in self._core.groups.items() if group.members]

    def count(self, group: str) -> int:
        """How many members a group has."""
        known = self._core.groups.get(group)
        return 0 if known is None else len(known.members)

    def mode(self, group: str) -> str:
        """SHARED if the group has members here, else ""."""
        return SHARED if self.count(group) else ""

    def members(self, group: str) -> list[MemberRow]:
        """A group's members; they lease no queues."""
        known = self._core.groups.get(group)
        return [] if known is None else [self._row(member) for member in known.members.values()]

    def topics(self, group: str) -> set[str]:
        """Topics that a group reads, its retries among them."""
        known = self._core.groups.get(group)
        return set() if known is None else {topic for topic, _ in known.queues}

    def queues(self, group: str, topic: str) -> dict[int, tuple[int, int]]:
        """By queue id: the offset below which all is done, and messages done from there on."""
        known = self._core.groups.get(group)
        if known is None:
            return {}
        own = [queue for queue in known.order if queue.key.topic == topic]
        return {queue.key.queue_id: (queue.floor, queue.acknowledged.count) for queue in own}

    def _row(self, member: SharedGroupMember) -> MemberRow:
        connection = member.owner
        assert isinstance(connection, Connection)
        hello = self._hello_of(connection)
        filters = member.group.filters
        wanted = sorted(member.topics & filters.keys() - {retry_topic(member.group.name)})
        return MemberRow(
            "" if hello is None else hello.client_id,
            connection.address,
            connection.context or "",
            "" if hello is None else hello.software,
            SHARED,
            "",
            member.joined_ms,
            0,
            [GroupSubscription(topic, filters[topic].text) for topic in wanted],
        )


def state_of(
    groups: Sequence[SharedGroup], full: Collection[QueueKey], bounds: Bounds, hello_of: HelloOf
) -> SharedStateResponse:
    """The answer to SHARED_STATE; `full` are the queues whose window is."""
    return SharedStateResponse(
        [_queue_row(queue, queue.key in full, bounds) for group in groups for queue in group.order],
        [_member_row(member, hello_of) for group in groups for member in group.members.values()],
    )


def _queue_row(queue: SharedQueue, is_full: bool, bounds: Bounds) -> SharedQueueRow:
    return SharedQueueRow(
        *queue.key,
        queue.floor,
        bounds(queue.key.topic, queue.key.queue_id)[1],
        queue.acknowledged.count,
        queue.in_flight,
        queue.waiting_count() + queue.delayed,
        is_full,
    )


def _member_row(member: SharedGroupMember, hello_of: HelloOf) -> SharedMemberRow:
    connection = member.owner
    assert isinstance(connection, Connection)
    hello = hello_of(connection)
    return SharedMemberRow(
        member.group.name,
        "" if hello is None else hello.client_id,
        connection.address,
        member.in_flight,
        member.ready_max,
        member.parked is not None,
    )


def warn_of_full(queue: SharedQueue) -> None:
    """Say that a queue's window is full: somebody should look at the message at its floor."""
    log.warning(
        "a shared group hands out nothing new of a queue: its window is full",
        group=queue.key.group,
        topic=queue.key.topic,
        queue_id=queue.key.queue_id,
        floor=queue.floor,
        shared_window=queue.window,
        hint="the message at the floor is in flight or waits: its consumer should acknowledge it",
    )


def warn_of_behind(queue: SharedQueue, messages: int) -> None:
    """Say that messages went before they were done."""
    log.warning(
        "retention took messages before a shared group was done with them",
        group=queue.key.group,
        topic=queue.key.topic,
        queue_id=queue.key.queue_id,
        messages=messages,
        floor=queue.floor,
    )
