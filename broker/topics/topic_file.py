"""Changes of the topic table: planned on what is there, written to topic.json, then made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.state.planned_changes import PlannedChanges
from broker.state.state_file import StateFile
from broker.topics.core.table import Topic, TopicTable

CHANGES_MAX: Final = 1_000
"""Changes waiting for the file; past it BUSY. A write takes some ms, so it is a second of them."""
Applied = Callable[[Topic | None, Topic | None], None]


class Staged:
    """The table as it will be: changes that are planned and not written yet lie over it."""

    def __init__(self, table: TopicTable) -> None:
        self.changed: dict[str, Topic | None] = {}
        self._table = table

    def __len__(self) -> int:
        added = sum(t is not None and self._table.find(n) is None for n, t in self.changed.items())
        return len(self._table) + added

    def get(self, name: str) -> Topic | None:
        """The topic as the changes so far leave it, one that is being deleted included."""
        return self.changed[name] if name in self.changed else self._table.find(name)

    def names(self) -> list[str]:
        """The names of all topics as the changes so far leave them."""
        found = {topic.name for topic in self._table.all()} | self.changed.keys()
        return [name for name in found if self.get(name) is not None]

    def put(self, topic: Topic) -> None:
        """Add a topic or give it new settings; no change is none."""
        if self.get(topic.name) != topic:
            self.changed[topic.name] = topic

    def remove(self, name: str) -> None:
        """Take a topic out."""
        self.changed[name] = None


Plan = Callable[[Staged], None]


class TopicFile(PlannedChanges[Staged]):
    """Runs plans against the table and keeps topic.json.

    `applied(before, after)` is called for each topic that changed, when the change is durable and in the
    table; None = it was, or is, not there. Changes of temporary topics are in no file.
    """

    def __init__(self, file: StateFile, table: TopicTable, applied: Applied) -> None:
        super().__init__(file, lambda: Staged(table), self._content_of, self._make, CHANGES_MAX)
        self.table = table
        self._applied = applied

    def _content_of(self, staged: Staged) -> tuple[dict[str, Any], int] | None:
        durable = sum(not self._is_temporary(name, topic) for name, topic in staged.changed.items())
        return (self.table.content(staged.changed), self.table.data_version + durable) if durable else None

    def _is_temporary(self, name: str, topic: Topic | None) -> bool:
        known = topic or self.table.find(name)
        return known is not None and known.is_temporary

    def _make(self, staged: Staged) -> None:
        for name, topic in staged.changed.items():
            before = self.table.find(name)
            if topic is None:
                self.table.remove(name)
            else:
                self.table.add(topic)
            self._applied(before, topic)
