"""Connections whose clients do not take what is sent: those that stopped, those that are to end."""

from __future__ import annotations

from typing import Final, Protocol

from gateway.edge.listeners import Listener
from gateway.edge.sockets import ClientSocket
from gateway.ground.counters import Counters
from gateway.ground.limits import SEND_STALLED_S
from gateway.session.session import Session
from holdmq.mqtt import ReasonCode

LINGER_S: Final = 5.0
"""How long a closed connection may take to read its last bytes."""


class StragglingConnection(Protocol):
    """A connection whose client may not take what is sent."""

    def __hash__(self) -> int:
        """Connections are told apart as objects."""

    @property
    def session(self) -> Session:
        """The session that it carries."""

    @property
    def listener(self) -> Listener:
        """Where it came in."""

    @property
    def transport(self) -> ClientSocket | None:
        """Its socket; None = that is gone."""

    def unsent_bytes(self) -> int:
        """Bytes that the client's side has not taken; 0 without a socket."""

    def close(self, reason_code: int, reason: str, sentence: str) -> None:
        """Close from this side."""


class Stragglers:
    """Looked at once a second; who is not on it costs nothing."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.lingering: dict[StragglingConnection, float] = {}
        """Closed connections that have bytes to take, and until when they may."""
        self.stalled: dict[StragglingConnection, tuple[int, float]] = {}
        """Connections that do not take what is sent: how much that was when looked at, and since when."""

    def linger(self, connection: StragglingConnection, now: float) -> None:
        """This connection is closed once its last bytes are taken."""
        self.lingering[connection] = now + LINGER_S

    def stall(self, connection: StragglingConnection, now: float) -> None:
        """This connection's client has stopped taking what is sent."""
        self.stalled[connection] = connection.unsent_bytes(), now

    def unstall(self, connection: StragglingConnection) -> None:
        """Watch a connection no longer: it took enough, or its session is over."""
        self.stalled.pop(connection, None)

    def forget(self, connection: StragglingConnection) -> None:
        """Its socket is gone."""
        self.lingering.pop(connection, None)
        self.stalled.pop(connection, None)

    def each_second(self, now: float) -> None:
        """Cut off whose time is over."""
        for connection, deadline in list(self.lingering.items()):
            if deadline <= now and connection.transport is not None:
                if connection.transport.get_write_buffer_size():
                    self._counters.refused["does_not_read"] += 1
                    connection.listener.refused["does_not_read"] += 1
                connection.transport.abort()
                del self.lingering[connection]
        self._close_stalled(now)

    def _close_stalled(self, now: float) -> None:
        """Close who has taken nothing for SEND_STALLED_S; who takes something is alive, however slow."""
        for connection, (before, since) in list(self.stalled.items()):
            unsent = connection.unsent_bytes()
            if unsent < before:
                connection.session.heard_at = since = now  # it takes, though we do not read what it may send
            elif now - since > SEND_STALLED_S:
                del self.stalled[connection]
                connection.close(
                    ReasonCode.QUOTA_EXCEEDED,
                    "send_stalled",
                    f"nothing of {unsent} bytes was taken for {now - since:.0f} s",
                )
                continue
            self.stalled[connection] = unsent, since
