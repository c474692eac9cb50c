"""The whole store of a broker, composed of what its rooms need.

Threads: as in `storage.api.queues`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from storage.api.index import MessageIndex
from storage.api.log_order import LogOrder
from storage.api.queues import DeletableQueues, MessageQueues, TemporaryQueues
from storage.api.retention import MessageRetention
from storage.api.tables import TableStore
from storage.api.timer import MessageTimer


class Backlog(NamedTuple):
    """What waits for the writer: bytes, and the age of the oldest in ms (0 = nothing waits)."""

    size_bytes: int
    oldest_ms: float


class StoreState(NamedTuple):
    """Whether the store takes records; if not, why and what to do."""

    ok: bool
    reason: str


class RecordLoss(NamedTuple):
    """Confirmed records that the store has no more: those of the last event, and since when that is known."""

    records: int
    age_s: float


NO_LOSS: Final = RecordLoss(0, float("inf"))
"""Nothing that was confirmed has gone."""


class StoreCondition(Protocol):
    """Which store this is, and how it is."""

    @property
    def store_id(self) -> bytes:
        """8 bytes, for ever the same: StoreHost of every record and half of every MessageId."""

    @property
    def engine(self) -> str:
        """The engine's name, for people."""

    def backlog(self) -> Backlog:
        """What waits for the writer thread; the caller answers BUSY by it."""

    def is_owned(self) -> bool:
        """Whether nobody else can have stored anything since: else what is known here decides nothing.

        Never waits. A store that another process may take over is not when its lease has run out.
        """

    def owned_for_s(self) -> float:
        """How many seconds `is_owned` surely lasts: inf if nobody else can take the store, 0 if it is not."""

    def state(self) -> StoreState:
        """Whether records are taken, for /readyz."""

    def numbers(self) -> Mapping[str, float]:
        """Counters (names end in _total) and gauges; called on any thread."""


class MessageStore(MessageQueues, DeletableQueues, StoreCondition, Protocol):
    """One broker's messages: queues, and what is kept and looked up beside them."""

    @property
    def log_order(self) -> LogOrder | None:
        """The one order of all records; None = this engine orders only within a queue."""

    @property
    def timer(self) -> MessageTimer:
        """Where messages wait that are delayed or retried."""

    @property
    def tables(self) -> TableStore | None:
        """The newest values by key of topics that are tables; None = this store keeps none."""

    @property
    def index(self) -> MessageIndex:
        """Searches by key, id and time, and backwards."""

    @property
    def retention(self) -> MessageRetention:
        """What is kept, and for whom."""

    @property
    def temporary(self) -> TemporaryQueues:
        """The queues of temporary topics."""


class OrderedStore(MessageStore, LogOrder, Protocol):
    """A store whose records have one order."""
