"""What is kept, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from holdmq.config.model import StorageSection


class QueueNeed(NamedTuple):
    """A reader that still wants `offset` of a queue; `seen_ms`: when it was last there (a session: now)."""

    reader: str
    seen_ms: int
    topic: str
    queue_id: int
    offset: int


class LogNeed(NamedTuple):
    """A reader that still wants the log from `position` on; `seen_ms` as in QueueNeed."""

    reader: str
    seen_ms: int
    position: int


Need = QueueNeed | LogNeed


class MessageRetention(Protocol):
    """Keeps messages for those who need them, and topics' own ages."""

    def keep_for(self, needs: Callable[[], Iterable[Need]]) -> None:
        """Keep what these need from now on, when consumed messages alone may go; called on any thread."""

    def reconfigure(self, settings: StorageSection) -> None:
        """Keep by other rules from the next round on; called on the loop."""

    def set_topic_age(self, topic: str, age_ms: int | None) -> None:
        """Keep a topic's messages for so long only; UsageError when the log itself keeps them shorter."""
