"""The clients of a worker: sessions whose CONNECT was accepted, by client id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.ground.counters import Counters

if TYPE_CHECKING:
    from gateway.session.session import Session


class Clients:
    """One session for each client id."""

    __slots__ = ("_counters", "_sessions")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._sessions: dict[str, Session] = {}

    def sessions(self) -> Iterable[Session]:
        """All of them; nothing may change meanwhile."""
        return self._sessions.values()

    def client_ids(self) -> list[str]:
        """Theirs, now: for who looks at all of them in steps, and must not keep those that end meanwhile."""
        return list(self._sessions)

    def session(self, client_id: str) -> Session | None:
        """The session of a client id, once its CONNECT was accepted."""
        return self._sessions.get(client_id)

    def add(self, session: Session) -> None:
        """A client came in; an older session of its client id is not found any more."""
        self._sessions[session.client_id] = session
        self._counters.sessions = len(self._sessions)

    def remove(self, session: Session) -> None:
        """A session ended; one that another has replaced, or that never came in, changes nothing."""
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]
        self._counters.sessions = len(self._sessions)
