"""What a shared group is made of: members, their deliveries and parked pulls, messages that wait or move."""

from __future__ import annotations

from broker.shared_groups.core.acknowledged import bits
from broker.shared_groups.core.queue import SharedQueue
from broker.shared_groups.core.subscriptions import SubscriptionFilter


class Moving:
    """A message on its way to a retry or dead-letter topic; its offset is done when it is there.

    `attempts` are those that failed before this one; `delay_ms` 0 = it is dead.
    """

    __slots__ = ("attempts", "delay_ms", "is_over", "offset", "queue")

    def __init__(self, queue: SharedQueue, offset: int, attempts: int, delay_ms: int) -> None:
        self.queue = queue
        self.offset = offset
        self.attempts = attempts
        self.delay_ms = delay_ms
        self.is_over = False


class DelayedMessages:
    """Messages that were given back with a delay."""

    __slots__ = ("first", "is_over", "mask", "queue", "seen_attempts")

    def __init__(self, queue: SharedQueue, first: int, mask: int, attempts: int) -> None:
        self.queue = queue
        self.first = first
        self.mask = mask
        self.seen_attempts = attempts
        self.is_over = False


class ParkedMember:
    """A pull that waits for messages; `owner` is whatever its shell needs to answer it."""

    __slots__ = ("is_over", "member", "owner")

    def __init__(self, member: SharedGroupMember, owner: object) -> None:
        self.member = member
        self.owner = owner
        self.is_over = False


class InFlightMessages:
    """Messages in flight: bits `left` wait for the member, bits `settling` for the log; bit 0 is `first`.

    `parts` are (deadline, bits): one, until some are extended.
    """

    __slots__ = ("attempts", "first", "left", "member", "parts", "queue", "receipt", "settling")

    def __init__(
        self,
        receipt: int,
        member: SharedGroupMember,
        queue: SharedQueue,
        first: int,
        mask: int,
        attempts: int,
    ) -> None:
        self.receipt = receipt
        self.member = member
        self.queue = queue
        self.first = first
        self.left = mask
        self.settling = 0
        self.attempts = attempts
        self.parts: list[tuple[float, int]] = []

    @property
    def is_over(self) -> bool:
        return not self.left

    def mask_of(self, offset: int, count: int) -> int:
        """The bits of a range of offsets; those outside of the delivery are left out."""
        begin, end = max(offset, self.first), offset + count
        end = min(end, self.first + self.left.bit_length())
        return bits(end - begin) << (begin - self.first) if begin < end else 0


class SharedGroupMember:
    """One consumer of a group, on one connection. `parked` is its pull in hand, if it waits."""

    __slots__ = (
        "deliveries", "group", "in_flight", "invisible_ms", "is_gone", "is_pulling", "joined_ms", "member_id",
        "owner", "parked", "ready_max", "topics",
    )  # fmt: skip

    def __init__(
        self, member_id: int, group: SharedGroup, owner: object, ready_max: int, invisible_ms: int
    ) -> None:
        self.member_id = member_id
        self.group = group
        self.owner = owner
        self.ready_max = ready_max
        self.invisible_ms = invisible_ms
        self.joined_ms = 0
        self.in_flight = 0
        self.deliveries: dict[int, InFlightMessages] = {}
        self.parked: ParkedMember | None = None
        self.topics: frozenset[str] = frozenset()
        """What it subscribed to: it gets nothing else."""
        self.is_pulling = False
        self.is_gone = False

    @property
    def room(self) -> int:
        """Messages that it may still be given."""
        return self.ready_max - self.in_flight


class SharedGroup:
    """One group: its queues in the order in which they are asked, its members and their parked pulls."""

    __slots__ = ("filters", "full", "left_ms", "members", "name", "order", "queues", "turn", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[tuple[str, int], SharedQueue] = {}
        self.order: list[SharedQueue] = []
        self.filters: dict[str, SubscriptionFilter] = {}
        """By topic, of the topics that members subscribe to; kept when the last member has gone."""
        self.members: dict[int, SharedGroupMember] = {}
        self.waiting: dict[int, ParkedMember] = {}
        """Parked pulls of members with room, the longest parked first."""
        self.full: dict[int, ParkedMember] = {}
        """Parked pulls of members without room: an acknowledgement moves them."""
        self.turn = 0
        self.left_ms = 0
        """When it last had a member, in ms since the epoch; 0 = never yet, as far as is known."""

    def add_queue(self, queue: SharedQueue) -> None:
        """Consume one more queue."""
        self.queues[queue.key.topic, queue.key.queue_id] = queue
        self.order.append(queue)
