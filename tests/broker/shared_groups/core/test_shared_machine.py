"""Any order of steps of shared groups beside a simple model that knows every message by itself."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.shared_groups.core.acknowledged import ranges_of
from broker.shared_groups.core.members import InFlightMessages, Moving, SharedGroupMember
from broker.shared_groups.core.queue import Claim, QueueKey
from broker.shared_groups.core.records import ProgressNews, RestoredShared, snapshot_entry
from broker.shared_groups.core.shared import SettlingMember, Shared
from broker.shared_groups.core.subscriptions import SubscriptionFilter

GROUP = "g"
WINDOW = 8
RETRY_MAX = 3
ALL, SOME = "all", "some"
Place = tuple[str, int, int]


def is_wanted(place: Place) -> bool:
    """In the topic with a filter every fifth message is rejected."""
    return place[0] == ALL or place[2] % 5 != 4


class Flight(NamedTuple):
    member: SharedGroupMember
    delivery: InFlightMessages
    deadline: float


class Known:
    """What the model knows of one message. `low` and `high` bound its attempts: a crash may forget some."""

    def __init__(self) -> None:
        self.low = self.high = self.durable = 0
        self.flight: Flight | None = None
        self.is_settling = False
        self.is_moving = False
        self.is_done = False
        self.not_before = 0.0


class Effect(NamedTuple):
    place: Place
    attempts: int
    """-1 = it is acknowledged."""


class Record(NamedTuple):
    """One append on its way: its bodies, what the model reads in it, and what the core waits for."""

    bodies: list[bytes]
    effects: list[Effect]
    settlings: list[SettlingMember]
    moved: list[Moving]


class SharedMachine(RuleBasedStateMachine):
    """Members join, leave and crash; reads are late or partial; the log is late or refuses; brokers crash."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.ends: dict[tuple[str, int], int] = {(ALL, 0): 0, (SOME, 0): 0}
        self.messages: dict[Place, Known] = {}
        self.log: list[bytes] = []
        self.pending: list[Record] = []
        self.snapshot: tuple[int, str] = (0, "[]")
        self.starts = 0
        self.start(RestoredShared())
        for topic in (ALL, SOME):
            self.produce(topic, 0, 7)

    def start(self, restored: RestoredShared) -> None:
        self.starts += 1
        self.core = Shared(self.bounds, lambda _: RETRY_MAX, self.starts << 40, WINDOW)
        for queue in restored.queues(WINDOW):
            self.core.group(GROUP).add_queue(queue)
        group = self.core.group(GROUP)
        group.filters = {ALL: SubscriptionFilter("*"), SOME: SubscriptionFilter("a")}
        self.members: list[SharedGroupMember] = []
        self.claims: list[tuple[SharedGroupMember, Claim]] = []
        self.moving: list[Moving] = []
        self.overfull: set[SharedGroupMember] = set()
        """Members that got messages back, as the log refused that they are done with them."""
        self.records_at_start = len(self.log)
        self.settle_queues()
        self.join(12)
        self.join(5)

    def settle_queues(self) -> None:
        group = self.core.group(GROUP)
        for topic, queue_id in self.ends:
            if (topic, queue_id) not in group.queues:
                self.core.add_queue(QueueKey(GROUP, topic, queue_id), 0)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, self.ends[topic, queue_id]

    def flying(self) -> list[Place]:
        return [place for place, known in self.messages.items() if known.flight is not None]

    # The log and its messages

    @rule(topic=st.sampled_from([ALL, SOME]), queue=st.integers(0, 2), count=st.integers(1, 12))
    def produce(self, topic: str, queue: int, count: int) -> None:
        queues = sum(name == topic for name, _ in self.ends)
        key = (topic, min(queue, queues))
        first = self.ends.get(key, 0)
        self.ends[key] = first + count
        for offset in range(first, first + count):
            self.messages[(*key, offset)] = Known()
        self.settle_queues()

    # Members

    @rule(ready_max=st.integers(1, 12))
    def join(self, ready_max: int) -> None:
        if len(self.members) < 5:
            self.members.append(self.core.join(GROUP, None, ready_max, 10_000, (ALL, SOME)))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), crashes=st.booleans())
    def leave(self, data: Any, crashes: bool) -> None:
        member = self.members.pop(data.draw(st.integers(0, len(self.members) - 1)))
        for place in self.flying():
            flight = self.messages[place].flight
            if flight is not None and flight.member is member:
                self.failed(place, 0.0, crashes)
        self.core.leave(member, self.now, crashes)
        self.take_outcome()

    def failed(self, place: Place, delay_s: float, is_attempt: bool) -> None:
        known = self.messages[place]
        known.flight = None
        if (is_attempt and known.low >= RETRY_MAX) or delay_s > 60:
            known.is_moving = True
            return
        known.low += is_attempt
        known.high += is_attempt
        known.not_before = self.now + delay_s

    # Handing out

    @precondition(lambda self: self.members)
    @rule(data=st.data(), count=st.integers(1, 10))
    def claim(self, data: Any, count: int) -> None:
        member = data.draw(st.sampled_from(self.members))
        if any(other is member for other, _ in self.claims):
            return  # a member has one pull at a time
        for claim in self.core.claim(member, count, lambda _: True):
            self.claims.append((member, claim))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), share=st.floats(0, 1))
    def read(self, data: Any, share: float) -> None:
        """A read ends: it gave all of its claim, or a part."""
        member, claim = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        self.hand_out(member, claim, claim.first + round(share * (claim.end - claim.first)))

    def hand_out(self, member: SharedGroupMember, claim: Claim, upto: int) -> list[Place]:
        key = claim.queue.key
        offsets = [o for o in range(claim.first, upto) if is_wanted((key.topic, key.queue_id, o))]
        offsets = offsets[: claim.count]
        if len(offsets) == claim.count and offsets:
            upto = offsets[-1] + 1
        mask = sum(1 << (offset - claim.first) for offset in offsets)
        groups = [(mask, claim.attempts)] if mask else []
        deadline = self.now + 10
        deliveries = self.core.hand_out(member, claim, upto, groups, deadline)
        if not deliveries:
            assert member.is_gone or not mask
            return []
        places = [(key.topic, key.queue_id, offset) for offset in offsets]
        for place in places:
            known = self.messages[place]
            assert known.flight is None, "in flight at two members"
            is_settled = known.is_done or known.is_settling or known.is_moving
            assert not is_settled, "done, and handed out"
            assert known.not_before <= self.now, "handed out before its delay was over"
            assert known.low <= claim.attempts <= known.high, "attempts are exact, or a crash forgot some"
            known.low = known.high = claim.attempts
            known.flight = Flight(member, deliveries[0], deadline)
        assert member.in_flight <= member.ready_max or member in self.overfull
        return places

    @precondition(lambda self: self.members)
    @rule(data=st.data(), count=st.integers(1, 10))
    def pull(self, data: Any, count: int) -> None:
        """Claim and read in one step, as from memory."""
        member = data.draw(st.sampled_from(self.members))
        if not any(other is member for other, _ in self.claims):
            for claim in self.core.claim(member, count, lambda _: True):
                self.hand_out(member, claim, claim.end)

    # Settling

    @precondition(lambda self: self.flying())
    @rule(data=st.data(), count=st.integers(1, 6), is_confirmed=st.booleans())
    def ack(self, data: Any, count: int, is_confirmed: bool) -> None:
        self.acknowledge([self.draw_flying(data) for _ in range(count)])
        while is_confirmed and self.pending:
            self.confirm()

    def acknowledge(self, places: list[Place]) -> None:
        news = ProgressNews()
        settlings: list[SettlingMember] = []
        effects: list[Effect] = []
        for place in dict.fromkeys(places):
            known = self.messages[place]
            assert known.flight is not None
            member, delivery, _ = known.flight
            settling = self.core.settle(member, delivery.receipt, place[2], 1)
            assert settling is not None
            assert settling.mask.bit_count() == 1
            assert self.core.settle(member, delivery.receipt, place[2], 1) is None
            settlings.append(settling)
            effects.append(Effect(place, -1))
            news.acknowledged(delivery.queue, delivery.first, settling.mask)
            known.is_settling = True
            known.not_before = known.flight.deadline
            known.flight = None
        self.pending.append(Record(list(news.bodies()), effects, settlings, []))
        self.take_outcome()

    def draw_flying(self, data: Any) -> Place:
        place: Place = data.draw(st.sampled_from(sorted(self.flying())))
        return place

    @precondition(lambda self: self.flying())
    @rule(data=st.data(), delay_s=st.sampled_from([0.0, 0.0, 5.0, 61.0]), is_attempt=st.booleans())
    def nack(self, data: Any, delay_s: float, is_attempt: bool) -> None:
        place = self.draw_flying(data)
        flight = self.messages[place].flight
        assert flight is not None
        self.failed(place, delay_s, is_attempt)
        given = self.core.nack(
            flight.member, flight.delivery.receipt, place[2], 1, round(delay_s * 1000), self.now, is_attempt
        )
        assert given == 1
        self.take_outcome()

    @precondition(lambda self: self.flying())
    @rule(data=st.data(), invisible_s=st.sampled_from([1.0, 30.0]))
    def extend(self, data: Any, invisible_s: float) -> None:
        place = self.draw_flying(data)
        known = self.messages[place]
        assert known.flight is not None
        member, delivery, _ = known.flight
        assert self.core.extend(member, delivery.receipt, place[2], 1, self.now + invisible_s) == 1
        known.flight = Flight(member, delivery, self.now + invisible_s)

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for place in self.flying():
            flight = self.messages[place].flight
            if flight is not None and flight.deadline <= self.now:
                self.failed(place, 0.0, True)
        self.core.expire(self.now)
        self.take_outcome()

    # The log

    def take_outcome(self) -> None:
        outcome = self.core.take_outcome()
        self.moving += outcome.moving
        news = ProgressNews()
        effects: list[Effect] = []
        for queue, first, mask, attempts in outcome.attempted:
            news.attempted(queue, first, mask, attempts)
            for begin, count in ranges_of(mask, first):
                effects += [
                    Effect((queue.key.topic, queue.key.queue_id, offset), attempts)
                    for offset in range(begin, begin + count)
                ]
        if news:
            self.pending.append(Record(list(news.bodies()), effects, [], []))

    @precondition(lambda self: self.pending)
    @rule()
    def confirm(self) -> None:
        record = self.pending.pop(0)
        self.log += record.bodies
        self.note(record)
        for settling in record.settlings:
            self.core.settled(settling)
        for moving in record.moved:
            self.core.moved(moving)
        self.take_outcome()

    def note(self, record: Record) -> None:
        for place, attempts in record.effects:
            known = self.messages[place]
            if attempts < 0:
                known.is_done = True
                known.is_settling = known.is_moving = False
            else:
                known.durable = max(known.durable, attempts)

    @precondition(lambda self: self.pending)
    @rule()
    def refuse(self) -> None:
        """The log refuses what is on its way, all of it."""
        refused, self.pending = self.pending, []
        for record in refused:
            for (place, attempts), settling in zip(record.effects, record.settlings, strict=False):
                known = self.messages[place]
                assert attempts < 0
                known.is_settling = False
                delivery = settling.delivery
                deadline = known.not_before
                known.not_before = 0.0
                known.flight = Flight(delivery.member, delivery, deadline)
                self.overfull.add(delivery.member)
                if delivery.member.is_gone or deadline <= self.now:
                    self.failed(place, 0.0, True)
                self.core.unsettled(settling, self.now)
            self.moving += record.moved
        self.take_outcome()

    @precondition(lambda self: self.moving)
    @rule(fails=st.booleans())
    def move(self, fails: bool) -> None:
        moving = self.moving.pop(0)
        if fails:
            self.core.move_failed(moving, self.now + 1)
            return
        key = moving.queue.key
        assert moving.attempts >= RETRY_MAX or moving.delay_ms
        news = ProgressNews()
        news.acknowledged(moving.queue, moving.offset, 1)
        effects = [Effect((key.topic, key.queue_id, moving.offset), -1)]
        self.pending.append(Record(list(news.bodies()), effects, [], [moving]))

    @rule()
    def save(self) -> None:
        tried = self.core.tried()
        entries = [snapshot_entry(queue, tried.get(queue.key, ())) for queue in self.core.group(GROUP).order]
        self.snapshot = (len(self.log), json.dumps(entries))

    @precondition(lambda self: len(self.log) > self.records_at_start or self.pending)
    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        """The broker ends: of what was on its way to the log the first ones may be there."""
        survived = data.draw(st.integers(0, len(self.pending)))
        for record in self.pending[:survived]:
            self.log += record.bodies
            self.note(record)
        self.pending.clear()
        for known in self.messages.values():
            known.flight = None
            known.is_settling = known.is_moving = False
            known.not_before = 0.0
            known.low = min(known.low, known.durable)
        restored = RestoredShared()
        seen, entries = self.snapshot
        restored.apply(json.loads(entries))
        for body in self.log[seen:]:
            restored.apply_body(body)
        self.start(restored)

    # What always holds

    @invariant()
    def counts_agree(self) -> None:
        self.core.deadlines.next()  # as a timer would: what is over is forgotten
        flying = self.flying()
        assert self.core.in_flight == len(flying)
        for member in self.members:
            mine = [p for p in flying if (f := self.messages[p].flight) is not None and f.member is member]
            assert member.in_flight == len(mine)
        for queue in self.core.group(GROUP).order:
            assert queue.next_offset <= queue.floor + WINDOW
        assert len(self.core.deadlines) <= 2_048

    def teardown(self) -> None:
        """Nothing is lost, and nothing is stuck: a patient member gets all that is left."""
        for member, claim in self.claims:
            self.hand_out(member, claim, claim.end)
        self.claims.clear()
        member = self.core.join(GROUP, None, 1_000, 10_000, (ALL, SOME))
        self.members.append(member)
        for _ in range(60 + len(self.messages)):
            self.wait(11.0)
            while self.moving:
                self.move(False)
            while self.pending:
                self.confirm()
            places: list[Place] = []
            for claim in self.core.claim(member, 1_000, lambda _: True):
                places += self.hand_out(member, claim, claim.end)
            if places:
                self.acknowledge(places)
            if all(known.is_done or not is_wanted(place) for place, known in self.messages.items()):
                break
        for place, known in self.messages.items():
            assert known.is_done or not is_wanted(place), f"{place} is lost or stuck"
        while self.core.claim(member, 1, lambda _: True):
            raise AssertionError("something is left")
        for queue in self.core.group(GROUP).order:
            assert queue.floor >= self.ends[queue.key.topic, queue.key.queue_id] - 1
        assert not self.core.deliveries
        assert not self.core.moving


TestSharedMachine = pytest.mark.timeout(400)(SharedMachine.TestCase)
TestSharedMachine.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
