"""What changed since a version: whether the holder of an older answer must be told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CHANGES_MAX: Final = 1_000_000
"""Topics whose last change is remembered (about 150 bytes each): twice the routes there may be."""


class Changes:
    """Versions of topics and of the brokers. `version` begins at `first` and rises with every change.

    Registries begin at numbers of their own, so that none takes another's version for one of its own.
    """

    def __init__(self, first: int = 0, changes_max: int = CHANGES_MAX) -> None:
        self.version = first
        self._floor = first
        self._changes_max = changes_max
        self._brokers = first
        self._topics: dict[str, int] = {}

    def note(self, topics: Iterable[str], brokers: bool) -> None:
        """These topics' rows changed, and perhaps which brokers live, or where."""
        self.version += 1
        if brokers:
            self._brokers = self.version
        for topic in topics:
            self._topics[topic] = self.version
        if len(self._topics) > self._changes_max:
            # Whoever knows less than now is told everything once.
            self._topics.clear()
            self._floor = self.version

    def since(self, version: int, topics: Iterable[str] | None) -> bool:
        """Whether an answer of `version` for these topics (None = all) may be wrong by now."""
        if not self._floor <= version <= self.version or self._brokers > version:
            return True
        if topics is None:
            return version != self.version
        known = self._topics
        return any(known.get(topic, 0) > version for topic in topics)
