"""How long a leader may trust its lease: counted from before the renewal was sent, never from its answer."""

from __future__ import annotations

from broker.replication.core.settings import ReplicaSettings


class LeadLease:
    """The lease L as its holder sees it, by its own clock."""

    __slots__ = ("_margin_s", "_ttl_s", "valid_until")

    def __init__(self, settings: ReplicaSettings) -> None:
        self._ttl_s = settings.ttl_s
        self._margin_s = settings.margin_s
        self.valid_until = float("-inf")

    def held(self, sent_at: float) -> None:
        """The coordinator has taken a call that was sent at `sent_at`."""
        self.valid_until = max(self.valid_until, sent_at + self._ttl_s - self._margin_s)

    def end(self) -> None:
        """Trust it no more: the lease is given up, or somebody else has it."""
        self.valid_until = float("-inf")

    def is_valid(self, now: float) -> bool:
        """Whether nobody else can hold L now."""
        return now < self.valid_until
