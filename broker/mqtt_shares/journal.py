"""Progress of MQTT's share groups on disk: records of `%SHARE%`, and the snapshot `shareGroups.json`."""

from __future__ import annotations

from collections.abc import Callable

from broker.kernel.journal import Journal
from broker.kernel.snapshot_file import SnapshotFile
from broker.mqtt_shares.core.records import SHARE_TOPIC, Entry, RestoredShares, ShareNews
from storage.api.log_order import LogOrder
from storage.api.queues import MessageQueues


class ShareJournal(Journal[ShareNews]):
    """Writes down what share groups have done (broker.kernel.journal)."""

    TOPIC = SHARE_TOPIC
    WHAT = "records of MQTT's share groups"

    def __init__(
        self,
        queues: MessageQueues,
        order: LogOrder,
        file: SnapshotFile,
        capture: Callable[[], list[Entry]],
        unwritten: Callable[[], int],
    ) -> None:
        super().__init__(queues, order, file, ShareNews, capture, unwritten)

    def load(self, accept_backup: bool = False) -> RestoredShares:
        """Read snapshot and log (blocking). StorageError if the snapshot is damaged."""
        restored = RestoredShares()
        self.read(restored, accept_backup)
        return restored
