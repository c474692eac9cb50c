"""Progress of shared groups on disk: records of `%SHARED%`, and the snapshot `shared.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker.core.shared_queue import SharedQueue
from broker.core.shared_records import SHARED_TOPIC, Entry, News, Restored
from broker.journal import Journal, SyncedStore


class SharedJournal(Journal[News]):
    """Writes down what shared groups of the SDK have done (broker.journal)."""

    TOPIC = SHARED_TOPIC
    WHAT = "acknowledgements of shared groups"

    def __init__(
        self,
        store: SyncedStore,
        path: Path,
        capture: Callable[[], list[Entry]],
        unwritten: Callable[[], int],
    ) -> None:
        super().__init__(store, path, News, capture, unwritten)

    def load(self, window: int, accept_backup: bool = False) -> list[SharedQueue]:
        """Read snapshot and log (blocking). StorageError if the snapshot is damaged."""
        restored = Restored()
        self.read(restored, accept_backup)
        return restored.queues(window)
