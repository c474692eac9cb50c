"""Receipts: what a session is owed for the publishes of one stretch, in the order they came.

PUBACK and PUBREC leave in the order of their PUBLISH packets [MQTT-4.6.0-2] [MQTT-4.6.0-3], while
brokers answer in any order: a session's receipts form a chain, and only its settled head is
answered. A receipt is one object per connection, batch and QoS, not per message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

CLOSE: Final = 0x100
"""Added to a reason code: nobody knows whether the log has these, so the connection must end unanswered."""


class ReceiptOwner(ABC):
    """Owns receipts: a session."""

    __slots__ = ()

    @abstractmethod
    def receipt_settled(self, receipt: PublishReceipt) -> None:
        """`receipt.outcome` is known now."""


class PublishReceipt:
    """Packet ids of consecutive publishes of one QoS that share a fate: `packet_id` and, behind it, `more`.

    `packet_type` is PUBACK or PUBREC, 0 with packet id 0 where no packet answers; `outcome` None = not
    known yet, else a reason code (0 = the log has them), with CLOSE added when the connection must end
    instead of being answered.
    """

    __slots__ = ("more", "next", "outcome", "owner", "packet_id", "packet_type")

    def __init__(self, owner: ReceiptOwner, packet_type: int, packet_id: int) -> None:
        self.owner = owner
        self.packet_type = packet_type
        self.packet_id = packet_id
        self.more: list[int] | None = None
        self.outcome: int | None = None
        self.next: PublishReceipt | None = None

    def add(self, packet_id: int) -> None:
        """Add one more publish."""
        if self.more is None:
            self.more = [packet_id]
        else:
            self.more.append(packet_id)

    @property
    def count(self) -> int:
        """How many publishes it is for."""
        return 1 if self.more is None else 1 + len(self.more)

    @property
    def packet_ids(self) -> list[int]:
        """All of them, in order."""
        return [self.packet_id] if self.more is None else [self.packet_id, *self.more]

    def settle(self, outcome: int) -> None:
        """Note the outcome and tell the owner; a second call changes nothing."""
        if self.outcome is None:
            self.outcome = outcome
            self.owner.receipt_settled(self)
