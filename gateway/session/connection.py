"""What a session asks of the rooms above: of the connection that carries it, and of who keeps its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.session.events import Event

if TYPE_CHECKING:
    from gateway.session.session import Session


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


class OwnerRows(Protocol):
    """The owner of a session, a broker by its `name`, which keeps the session's rows."""

    @property
    def name(self) -> str:
        """The name of the broker."""

    @property
    def is_up(self) -> bool:
        """Whether the broker can be asked."""

    def open(self, session: Session) -> None:
        """Ask for the session; who it came from hears of it."""

    def change(
        self,
        session: Session,
        kind: str,
        name: str,
        value: bytes,
        on_written: Callable[[bool], None] | None = None,
    ) -> bool:
        """Have a row changed; False: too much waits."""

    def want_state(self, session: Session) -> None:
        """Have the session's state written, as it is when it leaves."""

    def forget(self, session: Session) -> None:
        """The connection is gone: its state goes with its end, if at all."""


def close_connection(session: Session, reason_code: int, reason: str, sentence: str) -> None:
    """Close a session from this side, if its connection is still there."""
    connection = session.connection
    if connection is not None:
        connection.close(reason_code, reason, sentence)
