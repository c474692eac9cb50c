"""The topic table: what topic.json says, and the rules for changing it. Pure; `broker.topics` stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from holdmq.errors import Code, RemoteError, StorageError, StoreFormatError
from holdmq.topics import is_temporary, system_topic_fault, topic_fault
from holdmq.wire.headers import TopicRow

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
QUEUES_MAX: Final = 1024
"""Queues of one topic on one broker: each costs files and an entry in every route."""
KEY_LEVELS_MAX: Final = 8
KIND_LOG: Final = "log"
KINDS: Final = frozenset({KIND_LOG})


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as topic.json keeps it. `perm` is the sum of 4 read, 2 write, 1 inherit."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "tag"
    sys_flag: int = 0
    order: bool = False
    kind: str = KIND_LOG
    key_levels: int = 1

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def row(self) -> TopicRow:
        """The wire's form."""
        return TopicRow(
            self.name,
            self.read_queues,
            self.write_queues,
            self.perm,
            self.kind,
            self.key_levels,
            self.order,
        )


class TopicTable:
    """All topics of a broker. `data_version` rises with every change."""

    def __init__(self, topics_max: int, queues_default: int) -> None:
        self.data_version = 0
        self._topics: dict[str, Topic] = {}
        self._topics_max = topics_max
        self._queues_default = queues_default

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> Topic | None:
        """The topic, or None."""
        return self._topics.get(name)

    def key_levels(self, name: str) -> int:
        """Levels of the tag that the high half of its hash covers; 1 for an unknown topic."""
        topic = self._topics.get(name)
        return 1 if topic is None else topic.key_levels

    def rows(self, include_system: bool = True) -> list[TopicRow]:
        """All topics by name."""
        names = sorted(n for n in self._topics if include_system or not n.startswith("%"))
        return [self._topics[n].row() for n in names]

    def plan_create(
        self, name: str, queues: int, key_levels: int, kind: str, adding: int = 0
    ) -> Topic | None:
        """The topic to add for a request, or None when it exists with these settings.

        `queues` 0 = the default; `adding` more topics are about to be added.
        Raises RemoteError: TOPIC_INVALID, TOPIC_LIMIT, TOPIC_EXISTS.
        """
        queues = queues or self._queues_default
        fault = topic_fault(name)
        if fault is None and is_temporary(name):
            fault = "temporary topics are not kept by this broker"
        if fault is None and kind not in KINDS:
            fault = f"kind {kind!r} is not one of {', '.join(sorted(KINDS))}"
        if fault is None and not 1 <= queues <= QUEUES_MAX:
            fault = f"{queues} queues; 1 to {QUEUES_MAX} are possible"
        if fault is None and not 1 <= key_levels <= KEY_LEVELS_MAX:
            fault = f"key_levels {key_levels}; 1 to {KEY_LEVELS_MAX} are possible"
        if fault is not None:
            raise RemoteError(Code.TOPIC_INVALID, f"topic {name!r}: {fault}")
        known = self._topics.get(name)
        if known is not None:
            if (known.write_queues, known.key_levels, known.kind) == (queues, key_levels, kind):
                return None
            raise RemoteError(
                Code.TOPIC_EXISTS,
                f"topic {name!r} exists with {known.write_queues} queues, "
                f"key_levels {known.key_levels}, kind {known.kind}",
            )
        if len(self._topics) + adding >= self._topics_max:
            raise RemoteError(
                Code.TOPIC_LIMIT,
                f"broker.topics_max ({self._topics_max}) topics exist; delete some or raise it",
            )
        return Topic(name, queues, queues, key_levels=key_levels, kind=kind)

    def add(self, topic: Topic) -> None:
        """Take a topic into the table (its file is written already)."""
        self._topics[topic.name] = topic
        self.data_version += 1

    def content(self, adding: Mapping[str, Topic]) -> dict[str, Any]:
        """What topic.json holds: the table, and with it the topics about to be added."""
        topics = {**self._topics, **adding}
        return {name: asdict(topic) for name, topic in sorted(topics.items())}

    def load(self, content: dict[str, Any], data_version: int, path: str) -> None:
        """Fill the table from topic.json; StoreFormatError names the entry that is no topic."""
        known = {f.name for f in fields(Topic)}
        for name, entry in content.items():
            try:
                if not isinstance(entry, dict):
                    raise TypeError("it is not an object")
                topic = Topic(**{k: v for k, v in entry.items() if k in known})
                _check_types(topic)
                fault = topic_fault(name) if not name.startswith("%") else system_topic_fault(name)
                if fault is not None or topic.name != name:
                    raise TypeError(fault or f"it is named {topic.name!r}")
            except TypeError as e:
                raise _damaged(path, name, e) from e
            self._topics[name] = topic
        self.data_version = data_version


def _check_types(topic: Topic) -> None:
    numbers: tuple[object, ...] = (
        topic.read_queues,
        topic.write_queues,
        topic.perm,
        topic.key_levels,
        topic.sys_flag,
    )
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise TypeError(f"{number!r} is no count")
    if not (1 <= topic.write_queues <= QUEUES_MAX and 1 <= topic.read_queues <= QUEUES_MAX):
        raise TypeError(f"its queue counts are outside 1 to {QUEUES_MAX}")
    if not 1 <= topic.key_levels <= KEY_LEVELS_MAX or topic.kind not in KINDS:
        raise TypeError("its key_levels or kind is not known to this version")


def _damaged(path: str, name: str, cause: Exception) -> StorageError:
    return StoreFormatError(
        f"the entry {name!r} is no topic: {cause}",
        operation="read",
        path=path,
        hint="restore the file, or start once with its .bak (--accept-backup)",
    )
