"""What wants a session to itself at its owner: a connect, a claim, a drop, an end. Sans-IO."""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

from broker.sessions.core.rows import Meta, RowChange
from broker.sessions.core.wills import WillKey
from holdmq.wire.session_headers import Content, SessionOpened, SessionOpening

O = TypeVar("O")  # noqa: E741 - whoever has a session: a gateway's connection


class Kind(Enum):
    """Why a session's rows are read."""

    CONNECT = 0
    CLAIM = 1
    DROP = 2
    EXPIRE = 3
    ENDED = 4


class Opening(Generic[O]):
    """Something that needs a session to itself; `answer` is filled when it is done."""

    __slots__ = (
        "answer",
        "cancelled",
        "changes",
        "connected",
        "content",
        "counted",
        "is_stored",
        "kind",
        "meta",
        "owner",
        "stored_change",
        "wanted",
        "was_open",
    )

    def __init__(self, kind: Kind, wanted: SessionOpening, owner: O | None) -> None:
        self.kind = kind
        self.wanted = wanted
        self.owner = owner
        self.answer: SessionOpened | None = None
        self.content: Content | None = None
        self.meta: Meta | None = None
        self.changes: list[RowChange] = []
        self.connected: tuple[str, ...] = ()
        """Whose connection it is counted as already."""
        self.stored_change = 0
        self.was_open: Meta | None = None
        """What it was when it was taken over."""
        self.is_stored = False
        self.counted: tuple[str | None, str | None] | None = None
        """Whose its row was and is to be, as counted; None = that does not change."""
        self.cancelled: list[WillKey] = []
        """Wills that end when this is written down."""

    @property
    def was_present(self) -> bool:
        """Whether there was a session to drop."""
        return self.was_open is not None or self.stored_change < 0


class OpeningCounts:
    """What happened so far."""

    def __init__(self) -> None:
        self.opens = self.takeovers = self.takeover_timeouts = 0
        self.fenced = self.expired = self.dropped = self.kicked = self.foreign = self.refused = 0
        self.foreign_ended = self.user_full = 0


def is_anothers(meta: Meta, wanted: SessionOpening) -> bool:
    """Whether a session belongs to somebody else; an anonymous client's is taken by whoever says his name."""
    return bool(meta.principal) and meta.principal != wanted.principal


def is_foreign(meta: Meta, wanted: SessionOpening) -> bool:
    """Whether a session keeps this client away: another's does, unless the client id is this one's."""
    return is_anothers(meta, wanted) and not wanted.owns_id
