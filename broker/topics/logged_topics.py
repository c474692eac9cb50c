"""The topic table as topic.json in the log says, for who reads the log and does not change it.

How many levels of a key count, and which topics are tables, must be known before records of a topic are read:
at a start, before the broker's rooms load anything, and on a copy of another broker's log all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from broker.topics.core.table import TopicTable
from holdmq.errors import HoldMQError
from holdmq.files.atomic_file import AtomicFile

log = structlog.get_logger("holdmq.broker")


class LoggedTopics:
    """Loads `table` whenever the file `name` is another one; `content` gives files of the log.

    `stop` it before somebody else changes the table.
    """

    def __init__(
        self, table: TopicTable, name: str, path: Path, content: Callable[[str], bytes | None]
    ) -> None:
        self.table = table
        self.loads = self.failures = 0
        self._name = name
        self._path = path
        self._content = content
        self._is_following = True

    def changed(self, name: str) -> None:
        """A file of the log is another one."""
        if name != self._name or not self._is_following:
            return
        for each in (name, name + ".bak"):
            try:
                raw = self._content(each)
                if raw is None:
                    continue
                loaded = AtomicFile(self._path).of_bytes(raw)
                self.table.load(loaded.content, loaded.data_version, str(self._path))
            except HoldMQError as error:
                self._failed(each, error)
            else:
                self.loads += 1
                return

    def stop(self) -> None:
        """Follow no more: the table is changed by its owner from now on."""
        self._is_following = False

    def start(self) -> None:
        """Follow again, from what the log says now on."""
        self._is_following = True
        self.changed(self._name)

    def _failed(self, name: str, error: HoldMQError) -> None:
        # The broker that is to serve it loads it itself, and refuses to start.
        self.failures += 1
        log.error("topics in the log cannot be read", file=name, reason=str(error))
