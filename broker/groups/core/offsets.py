"""How far each group has come in each queue: the next offset to consume.

Reports only raise an offset; a reset alone lowers it. What is saved is a snapshot of all of them, of
which only the parts that changed are made anew. Groups and topics that end in `#tmp` are kept in
memory only. Source: broker.md, Offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

from holdmq.errors import StoreFormatError
from holdmq.names.topics import GROUP_BYTES_MAX, TEMPORARY_SUFFIX, TOPIC_BYTES_MAX

OFFSETS_MAX: Final = 1_000_000
"""Offsets of one broker: some 200 MB of memory and 20 MB of consumerOffset.json at the most."""
TABLE: Final = "offsetTable"
GENERATION: Final = "generation"
SEEN: Final = "seenMs"


class Reported(Enum):
    """What a report did."""

    RAISED = "the offset is higher now"
    FIRST = "the group had no offset in this queue"
    KEPT = "the offset was as high already"
    FULL = "OFFSETS_MAX is reached"


class GroupTopic(NamedTuple):
    """A group in a topic: what one entry of the file is about."""

    group: str
    topic: str

    @property
    def is_kept(self) -> bool:
        """Whether it may be saved."""
        return not (self.group.endswith(TEMPORARY_SUFFIX) or self.topic.endswith(TEMPORARY_SUFFIX))

    @property
    def name(self) -> str:
        """Its name in the file: topic@group."""
        return f"{self.topic}@{self.group}"


class GroupOffset(NamedTuple):
    """One group's offset in one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int


Content = dict[str, dict[str, int]]
"""`topic@group` → queue id → offset: the file's table. Never changed once made."""


class OffsetTable:
    """All offsets of one broker, in memory, and what of them was saved last."""

    def __init__(self, offsets_max: int = OFFSETS_MAX) -> None:
        self.size = 0
        self.saved: Content = {}
        self.change = 0
        """Rises with every change of what is to be saved."""
        self.ground = 0
        """The last `change` that was no raise: an older file would let a group jump, not only go back."""
        self._offsets_max = offsets_max
        self._offsets: dict[GroupTopic, dict[int, int]] = {}
        self._topics: dict[str, set[str]] = {}
        self._content: Content = {}
        self._stale: set[GroupTopic] = set()

    @property
    def room(self) -> int:
        """How many offsets may still be added."""
        return self._offsets_max - self.size

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """A group's offset; -1 = it has none."""
        return self._offsets.get(GroupTopic(group, topic), {}).get(queue_id, -1)

    def get_saved(self, group: str, topic: str, queue_id: int) -> int:
        """A group's offset as the file has it; -1 = none."""
        return self.saved.get(GroupTopic(group, topic).name, {}).get(str(queue_id), -1)

    def topics(self, group: str) -> list[str]:
        """Topics in which a group has offsets."""
        return sorted(self._topics.get(group, ()))

    def groups_in(self, topic: str) -> list[str]:
        """Groups that have offsets in a topic."""
        return [key.group for key in self._offsets if key.topic == topic]

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """A group's offsets in a topic by queue id (a copy)."""
        return dict(self._offsets.get(GroupTopic(group, topic), {}))

    def report(self, group: str, topic: str, queue_id: int, offset: int) -> Reported:
        """A group has come as far as `offset`; less than it had changes nothing."""
        key = GroupTopic(group, topic)
        before = self._offsets.get(key, {}).get(queue_id)
        if before is not None and offset <= before:
            return Reported.KEPT
        if before is None and self.size >= self._offsets_max:
            return Reported.FULL
        self._set(key, queue_id, offset)
        return Reported.FIRST if before is None else Reported.RAISED

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set an offset, lower or higher; False = OFFSETS_MAX is reached."""
        key = GroupTopic(group, topic)
        if queue_id not in self._offsets.get(key, {}) and self.size >= self._offsets_max:
            return False
        self._set(key, queue_id, offset)
        return True

    def drop_group(self, group: str) -> int:
        """A group was deleted: forget its offsets. Returns how many."""
        dropped = 0
        for topic in self.topics(group):
            key = GroupTopic(group, topic)
            dropped += len(self._offsets[key])
            self._drop(key)
        return dropped

    def drop_queue(self, topic: str, queue_id: int) -> list[str]:
        """A queue was deleted: forget every group's offset in it. Returns the groups."""
        groups = [
            key.group for key, queues in self._offsets.items() if key.topic == topic and queue_id in queues
        ]
        for group in groups:
            key = GroupTopic(group, topic)
            queues = self._offsets[key]
            del queues[queue_id]
            self.size -= 1
            if not queues:
                self._drop(key)
            self._touch(key)
        return groups

    def __iter__(self) -> Iterator[GroupOffset]:
        for key, queues in self._offsets.items():
            for queue_id, offset in queues.items():
                yield GroupOffset(key.group, key.topic, queue_id, offset)

    def snapshot(self) -> Content:
        """Everything that is to be saved, as it is now; later changes leave it alone."""
        if self._stale:
            content = dict(self._content)
            for key in self._stale:
                queues = self._offsets.get(key)
                if queues:
                    content[key.name] = {str(q): offset for q, offset in sorted(queues.items())}
                else:
                    content.pop(key.name, None)
            self._stale.clear()
            self._content = content
        return self._content

    def load(self, content: dict[str, Any], path: str) -> None:
        """Fill the table from the file's; StoreFormatError names the entry that is none."""
        for name, queues in content.items():
            topic, separator, group = name.rpartition("@")
            if (
                not separator
                or not 0 < len(topic) <= TOPIC_BYTES_MAX
                or not 0 < len(group) <= GROUP_BYTES_MAX
            ):
                raise _damaged(path, name, "its name is not topic@group")
            if not isinstance(queues, dict):
                raise _damaged(path, name, "it is not an object")
            for queue_id, offset in queues.items():
                if not queue_id.isdecimal() or not _is_offset(offset):
                    raise _damaged(path, name, f"queue {queue_id!r} at {offset!r}")
                self._set(GroupTopic(group, topic), int(queue_id), offset)
        self.saved = self.snapshot()

    def _set(self, key: GroupTopic, queue_id: int, offset: int) -> None:
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
            self._topics.setdefault(key.group, set()).add(key.topic)
        before = queues.get(queue_id)
        self.size += before is None
        queues[queue_id] = offset
        self._touch(key, is_raise=before is not None and offset >= before)

    def _drop(self, key: GroupTopic) -> None:
        self.size -= len(self._offsets.pop(key))
        topics = self._topics[key.group]
        topics.discard(key.topic)
        if not topics:
            del self._topics[key.group]
        self._touch(key)

    def _touch(self, key: GroupTopic, *, is_raise: bool = False) -> None:
        if key.is_kept:
            self._stale.add(key)
            self.change += 1
            if not is_raise:
                self.ground = self.change


def positions(content: Content, groups: Iterable[str] | None = None) -> Iterator[GroupOffset]:
    """The offsets of a snapshot, of all groups or of these; on any thread."""
    wanted = None if groups is None else set(groups)
    for name, queues in content.items():
        topic, _, group = name.rpartition("@")
        if wanted is None or group in wanted:
            for queue_id, offset in queues.items():
                yield GroupOffset(group, topic, int(queue_id), offset)


def clamp(offset: int, first: int, end: int) -> int:
    """The offset inside a queue's bounds that is nearest."""
    return max(first, min(offset, end))


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _damaged(path: str, name: str, why: str) -> StoreFormatError:
    return StoreFormatError(
        f"the entry {name!r} is no group's offsets: {why}",
        operation="read",
        path=path,
        hint="restore the file",
    )
