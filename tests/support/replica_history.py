"""What a simulated shard's clients saw, checked as it happens as Jepsen's Kafka workload does."""

from __future__ import annotations

from collections.abc import Sequence

from model_log import Produced


class Violation(AssertionError):
    """Something that must never happen did."""


class ReplicaHistory:
    """Everything that was confirmed, acknowledged or handed out, by whom, in which epoch."""

    def __init__(self) -> None:
        self.values: dict[int, Produced] = {}
        self.acknowledged = 0
        self.acks = 0
        self.handed_out = 0
        self.serves = 0
        self.forgiven = 0
        self._leaders: dict[int, str] = {}
        self._epoch_handed_out = 0
        self._epoch_served = 0
        self._seen_to = 0

    def leads(self, replica: str, epoch: int) -> None:
        """A replica has begun an epoch."""
        known = self._leaders.setdefault(epoch, replica)
        if known != replica:
            raise Violation(f"two leaders in epoch {epoch}: {known} and {replica}")

    def confirmed(self, replica: str, position: int, record: Produced) -> None:
        """A replica believes a record to be confirmed."""
        known = self.values.setdefault(position, record)
        if known != record:
            raise Violation(f"inconsistent offset {position} at {replica}: {record}, and {known} before")

    def acked(self, replica: str, position: int, record: Produced) -> None:
        """A producer was told that its record is there."""
        self.confirmed(replica, position, record)
        self.acks += 1
        self.acknowledged = max(self.acknowledged, position + 1)

    def serves_from(self, replica: str, epoch: int, confirmed: int) -> None:
        """A leader opens: whatever was acknowledged or seen is there."""
        self.serves += 1
        self._epoch_served = max(self._epoch_served, epoch)
        needed = max(self.acknowledged, self._seen_to)
        if confirmed < needed:
            raise Violation(
                f"lost write: {replica} serves up to {confirmed}, but {needed} was acknowledged or seen"
            )

    def hands_out(self, replica: str, epoch: int, confirmed: int) -> None:
        """A leader hands out a lease, or answers a read, without a write."""
        self.handed_out += 1
        if epoch < self._epoch_served:
            raise Violation(
                f"{replica} hands out in epoch {epoch}, though epoch {self._epoch_served} is served"
            )
        self._epoch_handed_out = max(self._epoch_handed_out, epoch)
        if confirmed < self._seen_to:
            raise Violation(f"non-monotonic poll: {replica} shows {confirmed}, {self._seen_to} was seen")
        self._seen_to = max(self._seen_to, confirmed)

    def forgive(self, first: int, records: Sequence[Produced]) -> None:
        """An operator accepted the loss of whatever a log that begins at `first` lacks."""
        self.forgiven += 1
        end = first + len(records)
        self.values = {
            position: record
            for position, record in self.values.items()
            if position < first or (position < end and records[position - first] == record)
        }
        kept = first
        while kept in self.values:
            kept += 1
        self.acknowledged = min(self.acknowledged, kept)
        self._seen_to = min(self._seen_to, kept)

    def in_order(self, records: Sequence[Produced]) -> None:
        """A log has each producer's records in order and once."""
        last: dict[int, int] = {}
        for record in records:
            if record.sequence != last.get(record.producer, record.sequence - 1) + 1:
                raise Violation(
                    f"producer {record.producer}: {record.sequence} after {last[record.producer]}"
                )
            last[record.producer] = record.sequence
