"""Connections whose clients do not take what is sent: those that stopped, those that are to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.ground.counters import Counters
from gateway.ground.limits import SEND_STALLED_S
from holdmq.mqtt import ReasonCode

if TYPE_CHECKING:
    from gateway.edge.connection import ClientConnection

LINGER_S: Final = 5.0
"""How long a closed connection may take to read its last bytes."""


class Stragglers:
    """Looked at once a second; who is not on it costs nothing."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.lingering: dict[ClientConnection, float] = {}
        """Closed connections that have bytes to take, and until when they may."""
        self.stalled: dict[ClientConnection, tuple[int, float]] = {}
        """Connections that do not take what is sent: how much that was when looked at, and since when."""

    def linger(self, shell: ClientConnection, now: float) -> None:
        """This connection is closed once its last bytes are taken."""
        self.lingering[shell] = now + LINGER_S

    def stall(self, shell: ClientConnection, now: float) -> None:
        """This connection's client has stopped taking what is sent."""
        self.stalled[shell] = shell.unsent_bytes(), now

    def unstall(self, shell: ClientConnection) -> None:
        """Watch a connection no longer: it took enough, or its session is over."""
        self.stalled.pop(shell, None)

    def forget(self, shell: ClientConnection) -> None:
        """Its socket is gone."""
        self.lingering.pop(shell, None)
        self.stalled.pop(shell, None)

    def each_second(self, now: float) -> None:
        """Cut off whose time is over."""
        for shell, deadline in list(self.lingering.items()):
            if deadline <= now and shell.transport is not None:
                if shell.transport.get_write_buffer_size():
                    self._counters.refused["does_not_read"] += 1
                    shell.listener.refused["does_not_read"] += 1
                shell.transport.abort()
                del self.lingering[shell]
        self._close_stalled(now)

    def _close_stalled(self, now: float) -> None:
        """Close who has taken nothing for SEND_STALLED_S; who takes something is alive, however slow."""
        for shell, (before, since) in list(self.stalled.items()):
            unsent = shell.unsent_bytes()
            if unsent < before:
                shell.session.heard_at = since = now  # it takes, though we do not read what it may send
            elif now - since > SEND_STALLED_S:
                del self.stalled[shell]
                shell.close(
                    ReasonCode.QUOTA_EXCEEDED,
                    "send_stalled",
                    f"nothing of {unsent} bytes was taken for {now - since:.0f} s",
                )
                continue
            self.stalled[shell] = unsent, since
