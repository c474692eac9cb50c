"""Receipts: what a session is owed for the publishes of one stretch, in the order they came.

PUBACK and PUBREC leave in the order of their PUBLISH packets [MQTT-4.6.0-2] [MQTT-4.6.0-3], while
brokers answer in any order: a session's receipts form a chain, and only its settled head is
answered. A receipt is one object per connection, batch and QoS, not per message.
"""

from __future__ import annotations

from typing import Final, Protocol

CLOSE: Final = 0x100
"""Added to a reason code: nobody knows whether the log has these, so the connection must end unanswered."""


class Owner(Protocol):
    """Who is owed: a session."""

    def receipt_settled(self, receipt: Receipt) -> None:
        """`receipt.outcome` is known now."""


class Receipt:
    """Packet ids of consecutive publishes of one QoS that share a fate.

    `packet_type` is PUBACK or PUBREC; `outcome` None = not known yet, else a reason code (0 = the
    log has them), with CLOSE added when the connection must end instead of being answered.
    """

    __slots__ = ("next", "outcome", "owner", "packet_ids", "packet_type")

    def __init__(self, owner: Owner, packet_type: int, packet_ids: list[int]) -> None:
        self.owner = owner
        self.packet_type = packet_type
        self.packet_ids = packet_ids
        self.outcome: int | None = None
        self.next: Receipt | None = None

    def settle(self, outcome: int) -> None:
        """Note the outcome and tell the owner; a second call changes nothing."""
        if self.outcome is None:
            self.outcome = outcome
            self.owner.receipt_settled(self)
