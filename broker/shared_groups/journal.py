"""Progress of shared groups on disk: records of `%SHARED%`, and the snapshot `shared.json`."""

from __future__ import annotations

from collections.abc import Callable

from broker.kernel.journal import Journal
from broker.kernel.snapshot_file import SnapshotFile
from broker.shared_groups.core.queue import SharedQueue
from broker.shared_groups.core.records import SHARED_TOPIC, Entry, ProgressNews, RestoredShared
from storage.api.log_order import LogOrder
from storage.api.queues import MessageQueues


class SharedJournal(Journal[ProgressNews]):
    """Writes down what shared groups of the SDK have done (broker.kernel.journal)."""

    TOPIC = SHARED_TOPIC
    WHAT = "acknowledgements of shared groups"

    def __init__(
        self,
        queues: MessageQueues,
        order: LogOrder,
        file: SnapshotFile,
        capture: Callable[[], list[Entry]],
        unwritten: Callable[[], int],
    ) -> None:
        super().__init__(queues, order, file, ProgressNews, capture, unwritten)

    def load(self, window: int, accept_backup: bool = False) -> list[SharedQueue]:
        """Read snapshot and log (blocking). StorageError if the snapshot is damaged."""
        restored = RestoredShared()
        self.read(restored, accept_backup)
        return restored.queues(window)
