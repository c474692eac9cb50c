"""The cursor of a persistent session: what its row must say before the client is told. Sans-IO.

A QoS 2 message is *planned* (log position and packet id are in the row) before its first PUBLISH, and a
PUBREC is in the row before its PUBREL: whatever dies, the client gets the message once. Everything else is
written lazily.
"""

from __future__ import annotations

from gateway.session.received import ReceivedQueues, ReceivedWrite


class WrittenState:
    """What may be sent once a state is in the log; `received` is what it says of the session's publishes."""

    __slots__ = ("publishes", "received", "released")

    def __init__(
        self,
        publishes: list[tuple[bytes, int, bytes]],
        released: list[int],
        received: ReceivedWrite | None = None,
    ) -> None:
        self.publishes = publishes
        self.released = released
        self.received = received


class SessionCursor:
    """`uid` is the session's own number.

    `is_stale`: the row lags behind, and is written again soon. `publishes` and `released` wait for the next
    state; `again` are packet ids, by broker, whose messages must be sent again. `written_at` is the sum of
    the log positions that the row has. `received` is there once the session published with QoS 2.
    """

    __slots__ = ("again", "is_stale", "publishes", "received", "released", "uid", "written_at")

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.is_stale = False
        self.publishes: list[tuple[bytes, int, bytes]] | None = None
        self.released: list[int] | None = None
        self.again: dict[str, list[int]] | None = None
        self.written_at = 0
        self.received: ReceivedQueues | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether something waits for a state to be written."""
        return self.publishes is not None or self.released is not None

    def hold(self, head: bytes, packet_id: int, tail: bytes) -> None:
        """A QoS 2 PUBLISH leaves when its plan is written."""
        if self.publishes is None:
            self.publishes = []
        self.publishes.append((head, packet_id, tail))

    def release(self, packet_id: int) -> None:
        """A PUBREL leaves when its PUBREC is written."""
        if self.released is None:
            self.released = []
        self.released.append(packet_id)

    def begin_write(self, unreleased: dict[int, bool] | None = None) -> WrittenState:
        """The state as it is now is on its way: what its arrival sets free.

        `unreleased` are packet ids of QoS 2 publishes → whether the log surely has them.
        """
        received = None if self.received is None else self.received.begin_write(unreleased)
        taken = WrittenState(self.publishes or [], self.released or [], received)
        self.publishes = self.released = None
        self.is_stale = False
        return taken

    def failed(self, taken: WrittenState) -> None:
        """Take a state back that did not arrive: the next one tells it, too."""
        self.publishes = [*taken.publishes, *(self.publishes or [])] or None
        self.released = [*taken.released, *(self.released or [])] or None
        if self.received is not None and taken.received is not None:
            self.received.failed(taken.received)


def is_binding(cursor: SessionCursor | None) -> bool:
    """Whether a publish of this session waits for its queue to be written down."""
    return cursor is not None and cursor.received is not None and cursor.received.is_binding
