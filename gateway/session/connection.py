"""What a session asks of the connection that carries it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.session.events import Event


class SessionConnection(Protocol):
    """The connection of one session: carries its packets, and does what its events say."""

    __slots__ = ()

    def write(self) -> None:
        """Write what the session has to send."""

    def handle(self, events: Sequence[Event]) -> None:
        """Do what the session's events say, in order."""

    def close(self, reason_code: int, reason: str, sentence: str) -> None:
        """Close from this side."""

    def identified(self) -> None:
        """Ask the owner of the client id."""

    def admitted(self, events: list[Event]) -> None:
        """Handle the events of `admit` or `refuse`: the client comes in, or not."""
