"""What is known of one client's permissions, between its packets and whoever decides."""

from __future__ import annotations

from typing import Final, Protocol

from gateway.ground.entries import TopicEntry
from holdmq.mqtt import ReasonCode

PUBLISHES_MAX: Final = 64
"""Topics of one client whose answers are kept beside it: a device repeats few."""
ALLOWED: Final = 0
REFUSED: Final = int(ReasonCode.NOT_AUTHORIZED)
UNASKED: Final = -1
"""There is no answer yet: ask, and let the client's packets wait in order."""


class Decider(Protocol):
    """Decides what a client may do."""

    version: int
    """Rises when what was decided counts no more."""

    def publish_verdict(self, permit: Permit, topic: str) -> int:
        """ALLOWED, REFUSED or UNASKED, of a topic as the client says it."""


class Permit:
    """One client's: `publishes` are verdicts, good until `until` (s) and for the decider's `version`.

    `client` is what plug-ins are asked with, `identity` stands for it in their answers' keys.
    """

    __slots__ = (
        "client",
        "client_id",
        "decider",
        "filters",
        "identity",
        "publishes",
        "until",
        "user",
        "version",
    )

    def __init__(self, decider: Decider, user: str, client_id: str, client: object, identity: bytes) -> None:
        self.decider = decider
        self.user = user
        self.client_id = client_id
        self.client = client
        self.identity = identity
        self.publishes: dict[TopicEntry, int] | None = None
        self.filters: dict[str, bool] | None = None
        """Answers to the filters that were just asked for, while they are made use of."""
        self.until = 0.0
        self.version = decider.version

    def forget(self, until: float) -> None:
        """Have everything decided anew; what is decided from now on counts until then."""
        self.publishes = None
        self.until = until
        self.version = self.decider.version

    def verdict(self, entry: TopicEntry) -> int:
        """Whether the client may publish to a topic: ALLOWED, REFUSED or UNASKED."""
        publishes = self.publishes
        if publishes is None:
            publishes = self.publishes = {}
        found = publishes.get(entry)
        if found is None:
            found = self.decider.publish_verdict(self, entry.said)
            if found != UNASKED:
                if len(publishes) >= PUBLISHES_MAX:
                    publishes.clear()
                publishes[entry] = found
        return found
