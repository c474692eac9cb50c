"""The `shared` mode without its sockets: groups, members, deliveries and their deadlines.

A *delivery* is a run of one queue's messages handed to one member at once, with one receipt. Its
messages are bits of an int: handing out, acknowledging and giving back cost per delivery, not per message.
Time is an argument.
What follows from a step is left in `outcome` for the shell: attempts to write down, messages to move
elsewhere, groups that have something to hand out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from broker.kernel.core.deadlines import Deadlines
from broker.shared_groups.core.acknowledged import bits, ranges_of
from broker.shared_groups.core.members import (
    DelayedMessages,
    InFlightMessages,
    Moving,
    ParkedMember,
    SharedGroup,
    SharedGroupMember,
)
from broker.shared_groups.core.queue import SHARED_WINDOW, Claim, QueueKey, SharedQueue

READY_MAX: Final = 65_536
"""Messages in flight at one member at most: a whole window of one queue."""
MOVE_DELAY_MS: Final = 60_000
"""A message that is given back for longer is moved, so that it does not hold the floor."""
CLAIMS_MAX: Final = 256
"""Runs that one pull collects: scattered messages are read run by run."""


class SettlingMember(NamedTuple):
    """Acknowledged by the member, not yet by the log."""

    delivery: InFlightMessages
    mask: int


class Comeback(IntEnum):
    """Why messages in flight came back from their member."""

    GIVEN_BACK = 1
    TIMED_OUT = 2
    LEFT = 3


class MessagesBack(NamedTuple):
    """Messages that came back; `is_again`: they are delivered again, now or later."""

    queue: SharedQueue
    messages: int
    why: Comeback
    is_again: bool


class StepOutcome:
    """What steps left to do; the shell takes it."""

    __slots__ = ("attempted", "back", "behind", "filled", "moving", "woken")

    def __init__(self) -> None:
        self.back: list[MessagesBack] = []
        """To be counted."""
        self.attempted: list[tuple[SharedQueue, int, int, int]] = []
        """(queue, first offset, bits, attempts) to write down."""
        self.behind: list[tuple[SharedQueue, int]] = []
        """(queue, messages) that retention took before they were done."""
        self.filled: list[SharedQueue] = []
        """Queues whose window became full."""
        self.moving: list[Moving] = []
        self.woken: dict[str, SharedGroup] = {}
        """Groups that may have something for a parked pull."""

    def __bool__(self) -> bool:
        return bool(self.attempted or self.back or self.behind or self.filled or self.moving or self.woken)


class SharedCounts:
    """Messages, since the start."""

    __slots__ = ("acknowledged", "behind", "delivered", "expired", "moved", "passed", "redelivered")

    def __init__(self) -> None:
        self.delivered = self.redelivered = self.acknowledged = self.expired = self.moved = 0
        self.passed = 0
        """Rejected by filters, or not to be read."""
        self.behind = 0
        """Taken by retention before they were done."""


Bounds = Callable[[str, int], tuple[int, int]]
Timed = InFlightMessages | DelayedMessages | ParkedMember | Moving


class Shared:
    """All shared groups of a broker. `bounds` says a queue's; `retry_max_times` a group's.

    Receipts count from `first_receipt` on: a start's must not be those of an earlier one.
    """

    def __init__(
        self,
        bounds: Bounds,
        retry_max_times: Callable[[str], int],
        first_receipt: int = 1,
        window: int = SHARED_WINDOW,
    ) -> None:
        self.groups: dict[str, SharedGroup] = {}
        self.members: dict[int, SharedGroupMember] = {}
        self.deliveries: dict[int, InFlightMessages] = {}
        self.deadlines: Deadlines[Timed] = Deadlines()
        self.outcome = StepOutcome()
        self.counts = SharedCounts()
        self.window = window
        self.in_flight = 0
        self.delayed: set[DelayedMessages] = set()
        self.moving: set[Moving] = set()
        self.full: set[QueueKey] = set()
        """Queues whose window was full when they were last asked."""
        self._claims: set[Claim] = set()
        self._bounds = bounds
        self._retry_max_times = retry_max_times
        self._receipt = first_receipt
        self._member_id = 0

    def take_outcome(self) -> StepOutcome:
        """What is left to do since the last call."""
        outcome, self.outcome = self.outcome, StepOutcome()
        return outcome

    # Groups and members

    def group(self, name: str) -> SharedGroup:
        """The group, made at first use."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = SharedGroup(name)
        return group

    def forget(self, name: str) -> None:
        """Forget a group that has no members."""
        group = self.groups.pop(name, None)
        if group is not None:
            self.full.difference_update(queue.key for queue in group.order)

    def add_queue(self, key: QueueKey, floor: int) -> SharedQueue:
        """Begin to consume a queue at `floor`."""
        queue = SharedQueue(key, floor, self.window)
        self.group(key.group).add_queue(queue)
        return queue

    def reset(self, key: QueueKey, floor: int) -> SharedQueue | None:
        """Begin anew at `floor`, whatever was done; None = the group does not read the queue.

        What is in flight is taken back: its receipts are known no more.
        """
        group = self.groups.get(key.group)
        old = None if group is None else group.queues.get((key.topic, key.queue_id))
        if group is None or old is None:
            return None
        old.is_gone = True
        for delivery in [d for d in self.deliveries.values() if d.queue is old]:
            self._give_back(delivery, delivery.left, 0, 0.0, False, Comeback.LEFT)
        for delayed in self.delayed:
            delayed.is_over = delayed.is_over or delayed.queue is old
        for moving in self.moving:
            moving.is_over = moving.is_over or moving.queue is old
        self.delayed = {item for item in self.delayed if not item.is_over}
        self.moving = {item for item in self.moving if not item.is_over}
        new = SharedQueue(key, floor, self.window)
        group.queues[key.topic, key.queue_id] = new
        group.order[group.order.index(old)] = new
        self.full.discard(key)
        self.wake(key.group)
        return new

    def join(
        self, name: str, owner: object, ready_max: int, invisible_ms: int, topics: Iterable[str]
    ) -> SharedGroupMember:
        """A new member of a group that reads these topics; `owner` is what it ends with."""
        group = self.group(name)
        self._member_id += 1
        member = SharedGroupMember(self._member_id, group, owner, ready_max, invisible_ms)
        member.topics = frozenset(topics)
        group.members[member.member_id] = self.members[member.member_id] = member
        return member

    def leave(self, member: SharedGroupMember, now: float, is_attempt: bool) -> None:
        """End a member: what is in flight at it waits again, as an attempt or as if never handed out."""
        if member.is_gone:
            return
        member.is_gone = True
        group = member.group
        del group.members[member.member_id], self.members[member.member_id]
        self.unpark(member)
        for delivery in list(member.deliveries.values()):
            self._give_back(delivery, delivery.left, 0, now, is_attempt, Comeback.LEFT)

    # Handing out

    def claim(self, member: SharedGroupMember, count: int, readable: Callable[[str], bool]) -> list[Claim]:
        """Claim up to `count` messages for a member, from its group's queues in turn.

        `readable` says whether a topic delivers now. Every claim ends with `hand_out`.
        """
        group = member.group
        order = group.order
        left = min(count, member.room)
        claims: list[Claim] = []
        if left <= 0 or not order:
            return claims
        turn = group.turn = (group.turn + 1) % len(order)
        for index in range(len(order)):
            queue = order[(turn + index) % len(order)]
            topic = queue.key.topic
            wanted = group.filters.get(topic)
            if wanted is None or topic not in member.topics or not readable(topic):
                continue
            first, end = self._bounds(topic, queue.key.queue_id)
            while left > 0 and len(claims) < CLAIMS_MAX:
                if first > queue.floor:
                    self._pass_by(queue, first)
                claim = queue.claim(end, left, not wanted.is_all)
                if claim is None:
                    if queue.is_full or self.full:
                        self._note_full(queue)
                    break
                claims.append(claim)
                self._claims.add(claim)
                left -= claim.count
            if left <= 0:
                break
        return claims

    def hand_out(
        self,
        member: SharedGroupMember,
        claim: Claim,
        upto: int,
        groups: list[tuple[int, int]],
        deadline: float,
    ) -> list[InFlightMessages]:
        """End a claim: offsets below `upto` were read; those of `groups` (bits, attempts) go to the member.

        Bit 0 is `claim.first`. A member that has gone meanwhile gets nothing: all waits again.
        """
        queue = claim.queue
        self._claims.discard(claim)
        if member.is_gone or queue.is_gone:
            queue.finish(claim, claim.first, 0)
            self.wake(queue.key.group)
            return []
        handed = 0
        found: list[InFlightMessages] = []
        for mask, attempts in groups:
            handed |= mask
            receipt = self._receipt
            self._receipt += 1
            # Behind a filter's gap the bits begin anew: a mask is as long as its messages lie apart.
            gap = (mask & -mask).bit_length() - 1
            delivery = InFlightMessages(receipt, member, queue, claim.first + gap, mask >> gap, attempts)
            delivery.parts.append((deadline, mask >> gap))
            self.deliveries[receipt] = member.deliveries[receipt] = delivery
            self.deadlines.push(deadline, delivery)
            found.append(delivery)
            count = mask.bit_count()
            self._count(delivery, count)
            self.counts.delivered += count
            if attempts:
                self.counts.redelivered += count
        self.counts.passed += queue.finish(claim, upto, handed)
        return found

    # Settling

    def settle(
        self, member: SharedGroupMember, receipt: int, offset: int, count: int
    ) -> SettlingMember | None:
        """Take messages as acknowledged by the member, until the log has it (`settled`, `unsettled`).

        None: nothing of them is in flight at it any more.
        """
        delivery = member.deliveries.get(receipt)
        if delivery is None:
            return None
        mask = delivery.mask_of(offset, count) & delivery.left
        if not mask:
            return None
        delivery.left &= ~mask
        delivery.settling |= mask
        self._count(delivery, -mask.bit_count())
        self.wake(delivery.queue.key.group)
        return SettlingMember(delivery, mask)

    def settled(self, settling: SettlingMember) -> None:
        """The log has an acknowledgement."""
        delivery, mask = settling
        delivery.settling &= ~mask
        delivery.queue.acknowledge(delivery.first, mask)
        self.counts.acknowledged += mask.bit_count()
        self.wake(delivery.queue.key.group)
        self._end(delivery)

    def unsettled(self, settling: SettlingMember, now: float) -> None:
        """The log refused an acknowledgement: the messages are in flight again, if their time is not over."""
        delivery, mask = settling
        delivery.settling &= ~mask
        delivery.left |= mask
        self._count(delivery, mask.bit_count())
        if delivery.member.is_gone or delivery.queue.is_gone:
            self._give_back(delivery, mask, 0, now, True, Comeback.LEFT)
            return
        for deadline, part in delivery.parts:
            if part & mask:
                self.deadlines.push(deadline, delivery)
        self._expire(delivery, now)

    def nack(
        self, member: SharedGroupMember, receipt: int, offset: int, count: int, delay_ms: int, now: float,
        is_attempt: bool,
    ) -> int:  # fmt: skip
        """Give messages back, to come again after `delay_ms`; how many were in flight at the member."""
        delivery = member.deliveries.get(receipt)
        if delivery is None:
            return 0
        mask = delivery.mask_of(offset, count) & delivery.left
        self._give_back(delivery, mask, delay_ms, now, is_attempt, Comeback.GIVEN_BACK)
        return mask.bit_count()

    def extend(
        self, member: SharedGroupMember, receipt: int, offset: int, count: int, deadline: float
    ) -> int:
        """Move the deadline of messages; how many were in flight at the member."""
        delivery = member.deliveries.get(receipt)
        if delivery is None:
            return 0
        mask = delivery.mask_of(offset, count) & delivery.left
        if mask:
            kept = [(at, part & ~mask) for at, part in delivery.parts if part & ~mask]
            delivery.parts = [*kept, (deadline, mask)]
            self.deadlines.push(deadline, delivery)
        return mask.bit_count()

    def move_failed(self, moving: Moving, retry_at: float) -> None:
        """A message could not be moved: it is tried again at `retry_at`."""
        self.deadlines.push(retry_at, moving)

    def moved(self, moving: Moving) -> None:
        """A message's copy and the record of it are in the log: it is done here."""
        moving.is_over = True
        self.moving.discard(moving)
        self.counts.moved += 1
        moving.queue.acknowledge(moving.offset, 1)
        self.wake(moving.queue.key.group)

    def tried(self) -> dict[QueueKey, list[tuple[int, int, int]]]:
        """Messages that failed before and are not done, by queue: (first offset, bits, attempts)."""
        found: dict[QueueKey, list[tuple[int, int, int]]] = {}
        for group in self.groups.values():
            for queue in group.order:
                runs = [
                    (run.first, bits(run.messages), run.attempts) for run in queue.waiting if run.attempts
                ]
                if runs:
                    found[queue.key] = runs
        failed = [delivery for delivery in self.deliveries.values() if delivery.attempts]
        every: list[tuple[SharedQueue, int, int, int]] = [
            *((d.queue, d.first, d.left | d.settling, d.attempts) for d in failed),
            *((d.queue, d.first, d.mask, d.seen_attempts) for d in self.delayed),
            *((m.queue, m.offset, 1, m.attempts) for m in self.moving),
            *((c.queue, c.first, bits(c.end - c.first), c.attempts) for c in self._claims),
        ]
        for queue, first, mask, attempts in every:
            if attempts:
                found.setdefault(queue.key, []).append((first, mask, attempts))
        return found

    # Deadlines and parked pulls

    def expire(self, now: float) -> list[ParkedMember]:
        """Let go of what is due; the parked pulls whose hold is over are given out, to be answered."""
        held: list[ParkedMember] = []
        for item in self.deadlines.due(now):
            if isinstance(item, InFlightMessages):
                self._expire(item, now)
            elif isinstance(item, ParkedMember):
                self.unpark(item.member)
                held.append(item)
            elif isinstance(item, DelayedMessages):
                item.is_over = True
                self.delayed.discard(item)
                item.queue.delayed -= item.mask.bit_count()
                self._put_back(item.queue, item.first, item.mask, item.seen_attempts)
            else:
                self.outcome.moving.append(item)
        return held

    def park(self, member: SharedGroupMember, owner: object, until: float) -> None:
        """Hold a member's pull until it is served, `until` comes, or the member ends."""
        parked = member.parked = ParkedMember(member, owner)
        group = member.group
        (group.waiting if member.room > 0 else group.full)[member.member_id] = parked
        self.deadlines.push(until, parked)

    def rest(self, parked: ParkedMember) -> None:
        """A parked pull's member has no room (a refused acknowledgement took it): it waits for some."""
        group = parked.member.group
        if group.waiting.pop(parked.member.member_id, None) is not None:
            group.full[parked.member.member_id] = parked

    def unpark(self, member: SharedGroupMember) -> ParkedMember | None:
        """Take a member's parked pull out."""
        parked = member.parked
        if parked is not None:
            parked.is_over = True
            member.parked = None
            member.group.waiting.pop(member.member_id, None)
            member.group.full.pop(member.member_id, None)
        return parked

    # Inside

    def _pass_by(self, queue: SharedQueue, first: int) -> None:
        behind = queue.pass_by(first)
        if behind:
            self.counts.behind += behind
            self.outcome.behind.append((queue, behind))

    def _note_full(self, queue: SharedQueue) -> None:
        if not queue.is_full:
            self.full.discard(queue.key)
        elif queue.key not in self.full:
            self.full.add(queue.key)
            self.outcome.filled.append(queue)

    def _expire(self, delivery: InFlightMessages, now: float) -> None:
        due = 0
        for deadline, part in delivery.parts:
            if deadline <= now:
                due |= part
        due &= delivery.left
        if due:
            self.counts.expired += due.bit_count()
            self._give_back(delivery, due, 0, now, True, Comeback.TIMED_OUT)

    def _give_back(
        self,
        delivery: InFlightMessages,
        mask: int,
        delay_ms: int,
        now: float,
        is_attempt: bool,
        why: Comeback,
    ) -> None:
        if not mask:
            return
        delivery.left &= ~mask
        self._count(delivery, -mask.bit_count())
        queue, first, attempts = delivery.queue, delivery.first, delivery.attempts
        is_attempt = is_attempt or delay_ms > MOVE_DELAY_MS
        if queue.is_gone:
            self._end(delivery)
            return
        is_dead = is_attempt and attempts >= self._retry_max_times(queue.key.group)
        self.outcome.back.append(MessagesBack(queue, mask.bit_count(), why, not is_dead))
        if is_dead:
            self._move(queue, first, mask, attempts, 0)
        elif delay_ms > MOVE_DELAY_MS:
            self._move(queue, first, mask, attempts, delay_ms)
        else:
            if is_attempt:
                attempts += 1
                self.outcome.attempted.append((queue, first, mask, attempts))
            if delay_ms > 0:
                queue.delayed += mask.bit_count()
                delayed = DelayedMessages(queue, first, mask, attempts)
                self.delayed.add(delayed)
                self.deadlines.push(now + delay_ms / 1e3, delayed)
            else:
                self._put_back(queue, first, mask, attempts)
        self.wake(queue.key.group)
        self._end(delivery)

    def _put_back(self, queue: SharedQueue, first: int, mask: int, attempts: int) -> None:
        for begin, count in ranges_of(mask, first):
            queue.put_back(begin, count, attempts)
        self.wake(queue.key.group)

    def _move(self, queue: SharedQueue, first: int, mask: int, attempts: int, delay_ms: int) -> None:
        for begin, count in ranges_of(mask, first):
            for offset in range(begin, begin + count):
                moving = Moving(queue, offset, attempts, delay_ms)
                self.moving.add(moving)
                self.outcome.moving.append(moving)

    def _count(self, delivery: InFlightMessages, change: int) -> None:
        """Messages went in flight, or back; a member that has room again may be served."""
        member = delivery.member
        member.in_flight += change
        delivery.queue.in_flight += change
        self.in_flight += change
        if member.parked is not None and member.room > 0:
            group = member.group
            parked = group.full.pop(member.member_id, None)
            if parked is not None:
                group.waiting[member.member_id] = parked

    def wake(self, name: str) -> None:
        """A group may have something for its parked pulls."""
        group = self.groups.get(name)
        if group is not None and group.waiting:
            self.outcome.woken[group.name] = group

    def _end(self, delivery: InFlightMessages) -> None:
        if not delivery.left and not delivery.settling:
            self.deliveries.pop(delivery.receipt, None)
            delivery.member.deliveries.pop(delivery.receipt, None)
