"""The end of a turn: what became sendable is written, and who could not be served is closed."""

from __future__ import annotations

from gateway.ground.targets import QueueRecords
from gateway.session.session import CLOSED, Session, SessionContext, close_connection
from holdmq.mqtt import ReasonCode


class Turn:
    """Settles the sessions that said in their context what they need."""

    __slots__ = ("_context", "_is_settling")

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._is_settling = False

    def close_when_settled(self, session: Session) -> None:
        """Close a session whose owner did not take what it wants, when this turn settles."""
        self._context.unserved.append(session)

    def answer(self, runs: list[QueueRecords]) -> None:
        """Tell the receipts of settled runs, and write.

        A session that is owed nothing more is written at once, while what that takes is in the cache; one
        that is gets its answers together.
        """
        context = self._context
        for run in runs:
            outcome = run.outcome
            assert outcome is not None
            for receipt in run.receipts:
                receipt.settle(outcome)
                dirty = context.dirty
                if dirty and not dirty[-1].is_owed:
                    _write(dirty.pop())
        self.settle()

    def settle(self) -> None:
        """Write what sessions have to send, and close those whose broker did not take their messages."""
        if self._is_settling:
            return
        self._is_settling = True
        context = self._context
        try:
            while context.dirty or context.unserved or context.planning:
                if context.planning:
                    planning, context.planning = context.planning, []
                    for session in planning:
                        if session.owner is not None and session.state != CLOSED:
                            session.owner.want_state(session)
                dirty = context.dirty
                context.dirty = []
                for session in dirty:
                    _write(session)
                unserved = context.unserved
                context.unserved = []
                for session in unserved:
                    if session.state != CLOSED:
                        close_connection(
                            session,
                            ReasonCode.SERVER_BUSY,
                            "broker_unavailable",
                            "a broker did not take a message",
                        )
        finally:
            self._is_settling = False


def _write(session: Session) -> None:
    connection = session.connection
    if connection is not None:
        connection.write()
