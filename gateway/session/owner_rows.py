"""What a session asks of its owner: the broker that keeps its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.session.session import Session


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
