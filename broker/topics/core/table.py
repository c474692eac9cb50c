"""The topic table: what topic.json says of each topic. Pure; `broker.topics.requests` stores it.

Queues of a topic, from the lowest id on::

    0 ........ write_queues ........ read_queues ........ stored_queues
    | producers and consumers | consumers only | nobody: not yet given up |

`broker.topics.core.changes` has the rules by which these counts move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeGuard

from holdmq.errors import StorageError, StoreFormatError
from holdmq.names.search import names_found
from holdmq.names.topics import is_temporary, system_topic_fault, topic_fault
from holdmq.wire.headers import TopicRow
from holdmq.wire.topic_headers import FIRST_GROUP_OWN, FIRST_GROUPS, SPREAD_ALL, SPREAD_FIXED, SPREADS

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_MAX: Final = PERM_INHERIT | PERM_WRITE | PERM_READ
QUEUES_MAX: Final = 1024
"""Queues of one topic on one broker: each costs files and an entry in every route."""
KEY_LEVELS_MAX: Final = 8
KIND_LOG: Final = "log"
KIND_TABLE: Final = "table"
KIND_TEMPORARY: Final = "temporary"
KINDS: Final = frozenset({KIND_LOG, KIND_TABLE, KIND_TEMPORARY})
PAUSES_MAX: Final = 16
"""Past pauses that a topic remembers: readers that come back from within one get what it kept. Older
ones matter only to a reader that has been away over sixteen pauses."""
NOT_PAUSED: Final = -1
NOT_DELETING: Final = -1


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as topic.json keeps it. `perm` is the sum of 4 read, 2 write, 1 inherit.

    `retention_ms` 0 = as long as the log. `deleting_to`: a deletion is under way after which so many
    queues remain, NOT_DELETING = none is; 0 removes the topic itself. `paused_at`: the log position from
    which it keeps what it gets, NOT_PAUSED = it delivers; `pauses` are past ones, (from, to), oldest first.
    `first_group` as in TopicRow; `first_reader` is the group that was the first, "" = none is known.
    `spread`: SPREAD_ALL, or SPREAD_FIXED as everything is that is ordered or no log.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "tag"
    sys_flag: int = 0
    order: bool = False
    kind: str = KIND_LOG
    key_levels: int = 1
    retention_ms: int = 0
    stored_queues: int = 0
    deleting_to: int = NOT_DELETING
    paused_at: int = NOT_PAUSED
    pauses: tuple[tuple[int, int], ...] = ()
    first_group: str = FIRST_GROUP_OWN
    first_reader: str = ""
    spread: str = SPREAD_ALL

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    @property
    def is_paused(self) -> bool:
        """Whether it takes and keeps, and delivers nothing."""
        return self.paused_at != NOT_PAUSED

    @property
    def is_temporary(self) -> bool:
        """Whether it lives in memory only: no delay, no retry, no saved offset, no MQTT."""
        return self.kind == KIND_TEMPORARY

    @property
    def is_table(self) -> bool:
        """Whether its newest records by key are rows of a table."""
        return self.kind == KIND_TABLE

    @property
    def is_spread(self) -> bool:
        """Whether every broker of the cluster is to have it."""
        return (
            self.spread == SPREAD_ALL
            and may_spread(self.kind, self.order)
            and not (self.is_leaving or self.name.startswith("%"))
        )

    @property
    def queues_in_store(self) -> int:
        """Queues that may hold something, hidden ones included."""
        return max(self.read_queues, self.stored_queues)

    @property
    def is_leaving(self) -> bool:
        """Whether the whole topic is being deleted: nobody sees it any more."""
        return self.deleting_to == 0

    def row(self) -> TopicRow:
        """The topic as the wire has it."""
        return TopicRow(
            self.name,
            self.read_queues,
            self.write_queues,
            self.perm,
            self.kind,
            self.key_levels,
            self.order,
            self.filter_type,
            self.sys_flag,
            self.retention_ms,
            self.is_paused,
            self.queues_in_store,
            self.first_group,
            self.first_reader,
            SPREAD_ALL if self.is_spread else SPREAD_FIXED,
        )


FIELDS: Final = tuple(field.name for field in fields(Topic))
"""What topic.json has of each topic. Every change writes all topics: asdict, which copies, takes ten times as
long."""


def may_spread(kind: str, order: bool) -> bool:
    """Whether brokers may get a topic by themselves: keys of tables and ordered topics would move to them."""
    return kind == KIND_LOG and not order


def spread_of(kind: str, order: bool) -> str:
    """How far a topic is spread if nobody says it."""
    return SPREAD_ALL if may_spread(kind, order) else SPREAD_FIXED


class TopicTable:
    """All topics of a broker. `data_version` rises with every change of what topic.json holds."""

    def __init__(self, topics_max: int, queues_default: int) -> None:
        self.data_version = 0
        self.topics_max = topics_max
        self.queues_default = queues_default
        self._topics: dict[str, Topic] = {}
        self._leaving: dict[str, Topic] = {}
        self._grace: dict[str, float] = {}
        self._held: set[str] = set()
        self._pausing: set[str] = set()

    def __len__(self) -> int:
        return len(self._topics) + len(self._leaving)

    def get(self, name: str) -> Topic | None:
        """The topic, or None; a topic that is being deleted is not there."""
        return self._topics.get(name)

    def leaving(self) -> list[Topic]:
        """Topics whose deletion is under way."""
        return list(self._leaving.values())

    def find(self, name: str) -> Topic | None:
        """As `get`, but also a topic that is being deleted."""
        return self._topics.get(name) or self._leaving.get(name)

    def all(self) -> list[Topic]:
        """Every topic that is there."""
        return list(self._topics.values())

    def key_levels(self, name: str) -> int:
        """Levels of the tag that the high half of its hash covers; 1 for an unknown topic."""
        topic = self._topics.get(name) or self._leaving.get(name)
        return 1 if topic is None else topic.key_levels

    def is_table(self, name: str) -> bool:
        """Whether the store is to keep the topic's newest values by key."""
        topic = self._topics.get(name)
        return topic is not None and topic.is_table

    def rows(self) -> list[TopicRow]:
        """All topics by name, as the wire has them."""
        return [topic.row() for topic in self.found()]

    def found(
        self, include_system: bool = True, names: Collection[str] | None = None, search: str = ""
    ) -> list[Topic]:
        """Topics by name: only `names` (None = all), only those that have `search` in their names."""
        found = names_found(self._topics, names, search)
        return [self._topics[name] for name in found if include_system or not name.startswith("%")]

    def add(self, topic: Topic) -> None:
        """Take a topic, or its new settings, into the table (its file is written already)."""
        if topic.is_leaving:
            self._topics.pop(topic.name, None)
            self._pausing.discard(topic.name)
            self._leaving[topic.name] = topic
        else:
            self._leaving.pop(topic.name, None)
            self.set(topic)
        if topic.write_queues == topic.read_queues or topic.is_leaving:
            self._grace.pop(topic.name, None)
        if not topic.is_temporary:
            self.data_version += 1

    def remove(self, name: str) -> None:
        """Take a topic out of the table."""
        known = self._topics.pop(name, None) or self._leaving.pop(name, None)
        self._grace.pop(name, None)
        self._pausing.discard(name)
        if known is not None and not known.is_temporary:
            self.data_version += 1

    def set(self, topic: Topic) -> None:
        """Give a topic that is there other settings, which the file need not have yet."""
        self._topics[topic.name] = topic
        if topic.is_paused or topic.pauses:
            self._pausing.add(topic.name)
        else:
            self._pausing.discard(topic.name)

    def pausing(self) -> list[Topic]:
        """Topics that are paused, or remember pauses."""
        return [self._topics[name] for name in self._pausing]

    # Records that wait for a change

    def hold(self, name: str) -> None:
        """Take no record for a topic until `release`: its keys are about to move."""
        self._held.add(name)

    def release(self, name: str) -> None:
        """Let the topic take records again."""
        self._held.discard(name)

    def is_held(self, name: str) -> bool:
        """Whether producers of a topic are to come again in a moment."""
        return name in self._held

    # What old routes are still good for

    def allow_until(self, name: str, until: float) -> None:
        """Take records for queues that are hidden from producers until then: not every route is new yet."""
        self._grace[name] = until

    def grace_s(self, name: str, now: float) -> float:
        """How long hidden queues of a topic are still taken records for."""
        return max(0.0, self._grace.get(name, now) - now)

    def takes_records(self, topic: Topic, queue_id: int, now: float) -> bool:
        """Whether a producer may write to this queue now."""
        if 0 <= queue_id < topic.write_queues:
            return True
        return 0 <= queue_id < topic.read_queues and self.grace_s(topic.name, now) > 0

    # The file

    def content(self, changed: Mapping[str, Topic | None]) -> dict[str, Any]:
        """What topic.json holds: the table, and with it changes about to be made (None = removed)."""
        topics: dict[str, Topic | None] = {**self._topics, **self._leaving, **changed}
        return {
            name: {field: getattr(topic, field) for field in FIELDS}
            for name, topic in sorted(topics.items())
            if topic is not None and not topic.is_temporary
        }

    def load(self, content: dict[str, Any], data_version: int, path: str) -> None:
        """Make the table what topic.json says; StoreFormatError names the entry that is no topic."""
        for known in [*self.all(), *self.leaving()]:
            if known.name not in content and not known.is_temporary:
                self.remove(known.name)
        for name, entry in content.items():
            try:
                topic = topic_of(name, entry)
            except TypeError as e:
                raise _damaged(path, name, e) from e
            if topic.is_leaving:
                self._topics.pop(name, None)
                self._pausing.discard(name)
                self._leaving[name] = topic
            else:
                self._leaving.pop(name, None)
                self.set(topic)
        self.data_version = data_version


def topic_of(name: str, entry: Any) -> Topic:
    """The topic that an entry of topic.json says; TypeError if it is none."""
    if not isinstance(entry, dict):
        raise TypeError("it is not an object")
    topic = Topic(**{k: v for k, v in entry.items() if k in FIELDS})
    if "spread" not in entry:  # the file of a build that knew no spread
        topic = replace(topic, spread=spread_of(topic.kind, topic.order))
    _check_types(topic)
    fault = topic_fault(name) if not name.startswith("%") else system_topic_fault(name)
    if fault is None and is_temporary(name):
        fault = "temporary topics are in no file"
    if fault is not None or topic.name != name:
        raise TypeError(fault or f"it is named {topic.name!r}")
    return replace(topic, pauses=_pauses(topic.pauses))


def _check_types(topic: Any) -> None:
    counts: dict[str, int] = {
        "read_queues": 0,
        "write_queues": 0,
        "perm": 0,
        "key_levels": 0,
        "sys_flag": 0,
        "retention_ms": 0,
        "stored_queues": 0,
        "deleting_to": NOT_DELETING,
        "paused_at": NOT_PAUSED,
    }
    for name, least in counts.items():
        value: object = getattr(topic, name)
        if not _is_int(value) or value < least:
            raise TypeError(f"its {name} is {value!r}")
    if not 0 <= topic.write_queues <= topic.read_queues <= topic.queues_in_store <= QUEUES_MAX:
        raise TypeError(f"its queue counts are not in order and at most {QUEUES_MAX}")
    if not 1 <= topic.key_levels <= KEY_LEVELS_MAX or topic.kind not in KINDS - {KIND_TEMPORARY}:
        raise TypeError("its key_levels or kind is not known to this version")
    if not isinstance(topic.order, bool) or not isinstance(topic.filter_type, str):
        raise TypeError("its order or filter_type is of a wrong type")
    if topic.first_group not in FIRST_GROUPS or not isinstance(topic.first_reader, str):
        raise TypeError(f"its first_group is {topic.first_group!r}, its first_reader {topic.first_reader!r}")
    if topic.spread not in SPREADS:
        raise TypeError(f"its spread is {topic.spread!r}")


def _pauses(found: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(found, (list, tuple)):
        raise TypeError("its pauses are no list")
    pauses = []
    for pause in found:
        if not isinstance(pause, (list, tuple)) or len(pause) != 2 or not all(map(_is_int, pause)):
            raise TypeError(f"{pause!r} is no pause")
        pauses.append((pause[0], pause[1]))
    return tuple(pauses)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _damaged(path: str, name: str, cause: Exception) -> StorageError:
    return StoreFormatError(
        f"the entry {name!r} is no topic: {cause}",
        operation="read",
        path=path,
        hint="restore the file, or start once with its .bak (--accept-backup)",
    )
