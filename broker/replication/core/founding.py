"""A shard is founded once: by its first replica, when every other one has said that it has nothing.

Without that question a first replica whose disk was emptied, and a coordinator that was wiped, would begin
an empty shard beside copies that have everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.replication.core.actions import Action, Say
from broker.replication.core.messages import CopyQuestion, CopyReport
from broker.replication.core.settings import ReplicaSettings


class Founding:
    """One attempt to found a shard: all other replicas are asked until each has answered."""

    def __init__(self, replica: str, replicas: Sequence[str], settings: ReplicaSettings, now: float) -> None:
        self._settings = settings
        self._asks = [peer for peer in replicas if peer != replica]
        self._reports: dict[str, CopyReport] = {}
        self._asked_at = now

    def begin(self) -> list[Action]:
        """Ask everybody who has not answered."""
        return [Say(peer, CopyQuestion()) for peer in self._asks if peer not in self._reports]

    def tick(self, now: float) -> list[Action]:
        """Ask again who is silent: a shard is founded only when all of its replicas have been seen."""
        if now - self._asked_at < self._settings.timeout_s:
            return []
        self._asked_at = now
        return self.begin()

    def reported(self, peer: str, report: CopyReport) -> None:
        """A replica says what it has."""
        self._reports[peer] = report

    @property
    def is_decided(self) -> bool:
        """Whether everybody has answered."""
        return len(self._reports) == len(self._asks)

    @property
    def may_found(self) -> bool:
        """Whether nobody else has anything."""
        return all(report.end == 0 for report in self._reports.values())
