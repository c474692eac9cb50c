"""A shared group that consumes in clustering from now on goes on where it was: its floors become offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from broker.groups.offsets import OffsetRequests, SharedProgress
from holdmq.errors import Code, HoldMQError, RemoteError
from holdmq.wire.group_headers import MemberRow

log = structlog.get_logger("holdmq.broker")

Done = Callable[[HoldMQError | None], None]


class SharedMembers(SharedProgress, Protocol):
    """Members of shared groups, which do not join here (broker.shared_groups.state)."""

    def groups(self) -> list[str]:
        """Groups that have members."""

    def count(self, group: str) -> int:
        """How many members a group has."""

    def mode(self, group: str) -> str:
        """SHARED if the group has members, else ""."""

    def members(self, group: str) -> list[MemberRow]:
        """The connections that are members of a group."""


def hand_over(group: str, shared: SharedProgress, offsets: OffsetRequests, done: Done) -> None:
    """Call `done` when consumerOffset.json has the group's offsets: below them, all is done.

    What was acknowledged above them comes again. Raises LIMIT_EXCEEDED without room for them, BUSY.
    """
    floors = {
        (topic, queue_id): floor
        for topic in shared.topics(group)
        for queue_id, (floor, _) in shared.queues(group, topic).items()
    }
    table = offsets.table
    new = sum(table.get(group, topic, queue_id) < 0 for topic, queue_id in floors)
    if new > table.room:
        raise RemoteError(
            Code.LIMIT_EXCEEDED, f"{table.size} offsets are kept; there is no room for {new} more"
        )
    for (topic, queue_id), floor in floors.items():
        table.reset(group, topic, queue_id, floor)
    log.info("a shared group consumes in clustering from now on", group=group, queues=len(floors))
    offsets.file.wait(done)


def forgetting(forget: Callable[[str], None], group: str, done: Done) -> Done:
    """Return `done`, which tells `forget` of the group first if there was no error."""

    def told(error: HoldMQError | None) -> None:
        if error is None:
            forget(group)
        done(error)

    return told
