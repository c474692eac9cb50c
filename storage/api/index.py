"""Searches of a store's messages: by key, id and time, and backwards."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from holdmq.message import MessageId
    from holdmq.record.codec import Record

LATEST_MS: Final = (1 << 63) - 1
"""A time after every message."""
LOG_END: Final = (1 << 63) - 1
"""A position behind every message."""


class MessagePlace(Enum):
    """What a message id names."""

    FOUND = "the message is here"
    OTHER_STORE = "the id is another store's"
    GONE = "retention has passed it"
    AHEAD = "the log has not come so far"
    NO_RECORD = "no record begins there"
    CORRUPT = "the record is damaged"


class Located(NamedTuple):
    """The answer for a message id: `record` when FOUND; else `reason` says it in a sentence."""

    place: MessagePlace
    record: Record | None
    reason: str


class Matches(NamedTuple):
    """Records with a key, newest first. `is_complete`: there are no more.

    What was confirmed within the last flush interval may still be missing.
    """

    records: list[Record]
    is_complete: bool


class MessageIndex(Protocol):
    """Searches of a store's messages. Every method blocks and may run on several threads."""

    @property
    def indexed_position(self) -> int:
        """Messages below this log position are found by their keys and ids; never waits."""

    def by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = LATEST_MS,
        max_count: int = ...,
        *,
        before: int = LOG_END,
        max_bytes: int = ...,
    ) -> Matches:
        """Messages of a topic with this key (KEYS), newest first; at least one if there is one.

        Stored in [begin_ms, end_ms], below the log position `before`. Raises StorageError.
        """

    def by_unique_id(
        self,
        topic: str,
        unique_id: str,
        begin_ms: int = 0,
        end_ms: int = LATEST_MS,
        max_count: int = ...,
        *,
        before: int = LOG_END,
        max_bytes: int = ...,
    ) -> Matches:
        """Messages of a topic with the producer's own id (UNIQ_KEY), as `by_key`: more than one = resent."""

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """The first offset of a queue stored at `store_ms` or later; its end when there is none."""

    def position_at(self, store_ms: int) -> int:
        """The log position of the first record stored at `store_ms` or later; the confirmed end if none is.

        Where the whole log is read from, whatever the topic. Raises StorageError.
        """

    def queue_before(
        self, topic: str, queue_id: int, offset: int, max_count: int = ..., max_bytes: int = ...
    ) -> list[Record]:
        """Records of a queue before a queue offset, newest first; damaged ones are left out."""

    def message(self, message_id: MessageId) -> Located:
        """The message that an id names; what else the id is, if it names none."""
