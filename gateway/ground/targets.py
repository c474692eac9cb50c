"""Places to send to: the queues of brokers as publishes find them, and the records that leave for them.

What sends them is above (gateway.brokers): here it says what it needs to be, so that sessions can keep the
queue of each of their topics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gateway.ground.receipts import PublishReceipt


class HeldSocket(Protocol):
    """A client's socket that is not read until a broker takes more."""

    __slots__ = ()

    def broker_is_back(self) -> None:
        """Read it again: the broker takes more."""

    def close(self, reason_code: int, reason: str, sentence: str) -> None:
        """End its connection: the broker is away for long."""


class ProducerLink(Protocol):
    """The way to the broker of a producer, by its `name`."""

    __slots__ = ()

    name: str

    def added(self, size_bytes: int) -> None:
        """Send what was appended to runs of the open batch, when this turn of the loop ends."""

    def hold(self, socket: HeldSocket) -> None:
        """Call `broker_is_back` when the broker takes more."""


class RecordProducer(ABC):
    """Takes records for one broker; `record_max_bytes` is what that accepts, 0 = not known yet."""

    __slots__ = ("link", "record_max_bytes")

    def __init__(self, link: ProducerLink) -> None:
        self.link = link
        self.record_max_bytes = 0

    @property
    @abstractmethod
    def must_hold(self) -> bool:
        """Whether sockets that publish here must not be read now."""

    @abstractmethod
    def open_run(self, target: Target, now: float, is_delayed: bool = False) -> QueueRecords:
        """The target's run in the open batch, begun if there is none. The caller appends at least one record
        (and receipts), and then calls `link.added`."""


class Target:
    """One queue at one broker, as a place to send to; `run` is its part of the open batch.

    `delayed_run` is the part whose records the broker keeps until they are due: one more, so that messages
    of both kinds that take turns make no run each. `runs` are those not settled, oldest first; `progress_at`
    is when one was settled last, or began to wait. `is_retired`: routes do not show the queue to producers
    any more. Who sent here goes elsewhere once `runs` is empty, so that nothing overtakes; `on_idle` is
    called then, once.
    """

    __slots__ = (
        "delayed_run",
        "is_retired",
        "next_sequence",
        "on_idle",
        "producer",
        "progress_at",
        "queue_id",
        "run",
        "runs",
        "topic",
    )

    def __init__(self, producer: RecordProducer, topic: str, queue_id: int) -> None:
        self.producer = producer
        self.topic = topic
        self.queue_id = queue_id
        self.next_sequence = 0
        self.progress_at = 0.0
        self.run: QueueRecords | None = None
        self.delayed_run: QueueRecords | None = None
        self.runs: deque[QueueRecords] = deque()
        self.is_retired = False
        self.on_idle: Callable[[], None] | None = None


class QueueRecords:
    """Consecutive records of one queue, and who is owed for them.

    `may_be_stored`: it was sent, and the connection was lost before the answer. `outcome` is what its
    receipts are told, None = not known yet; once it is, nobody is owed for it any more, whatever becomes of
    it. `is_delayed`: its records wait until they are due. `is_noted`: of some the broker is to see whether it
    has them already.
    """

    __slots__ = (
        "first_sequence",
        "is_delayed",
        "is_noted",
        "may_be_stored",
        "outcome",
        "receipts",
        "records",
        "target",
    )

    def __init__(self, target: Target, is_delayed: bool = False) -> None:
        self.target = target
        self.is_delayed = is_delayed
        self.is_noted = False
        self.records: list[bytes] = []
        self.receipts: list[PublishReceipt] = []
        self.first_sequence = 0
        self.outcome: int | None = None
        self.may_be_stored = False

    @property
    def is_settled(self) -> bool:
        """Whether it is known what became of it."""
        return self.outcome is not None
