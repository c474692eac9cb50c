from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.groups.core.leases import Ended, LeaseKey, Leases
from broker.groups.core.members import Members
from holdmq.client import rebalance as module
from holdmq.client.allocation import strategy_of
from holdmq.client.rebalance import (
    ASK_AGAIN_S,
    JOIN_AGAIN_S,
    Action,
    Ask,
    Drop,
    Join,
    Phase,
    Rebalance,
    ReleaseLease,
    Start,
    Stop,
)
from holdmq.errors import Code
from holdmq.message import TopicQueue
from holdmq.wire.group_headers import CLUSTERING, GroupSubscription, LeasedQueue, WantedQueue

LEASE_S = 20.0
QUEUES = [TopicQueue("t", "b", i) for i in range(4)]


def granted(queue: TopicQueue, generation: int, offset: int = 0) -> LeasedQueue:
    return LeasedQueue(queue.topic, queue.queue_id, Code.OK, generation, offset, 1, "me")


def refused(queue: TopicQueue, code: Code = Code.BUSY) -> LeasedQueue:
    return LeasedQueue(queue.topic, queue.queue_id, code, 0, -1, 1, "other")


def member(members: Iterable[str] = ("me",), now: float = 0.0) -> Rebalance:
    core = Rebalance("me", strategy_of("average"))
    core.set_queues(QUEUES, now)
    core.broker_up("b", now)
    assert core.actions() == [Join("b")]
    core.join_answered("b", now)
    core.joined("b", 1, list(members), False, now)
    return core


def asked(core: Rebalance) -> list[WantedQueue]:
    (ask,) = [a for a in core.actions() if isinstance(a, Ask)]
    return ask.queues


def holding(now: float = 0.0) -> Rebalance:
    core = member(now=now)
    rows = asked(core)
    core.leased("b", [granted(q, 10 + q.queue_id) for q in QUEUES[: len(rows)]], LEASE_S, now)
    assert [a.lease.queue for a in core.actions() if isinstance(a, Start)] == QUEUES
    return core


def of_kind(kind: type[Any], actions: list[Action]) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def test_leases_are_asked_for_once_a_member_and_only_the_own_ones() -> None:
    assert asked(member(["a", "me"])) == [WantedQueue("t", 2, 0), WantedQueue("t", 3, 0)]
    core = Rebalance("me", strategy_of("average"))
    core.set_queues(QUEUES, 0.0)
    core.broker_up("b", 0.0)
    core.actions()
    core.handle_deadline(0.5)
    assert core.actions() == []


def test_a_refused_lease_is_asked_for_again_later_or_when_it_is_free() -> None:
    core = member()
    asked(core)
    core.leased("b", [refused(q) for q in QUEUES], LEASE_S, 0.1)
    assert core.actions() == []
    assert core.next_deadline() == 0.1 + ASK_AGAIN_S
    core.joined("b", 2, ["me"], True, 0.2)
    assert len(asked(core)) == 4
    core.joined("b", 3, ["me"], True, 0.3)
    core.leased("b", [refused(q) for q in QUEUES], LEASE_S, 0.4)
    assert len(asked(core)) == 4


def test_leases_are_renewed_in_time_with_their_generations() -> None:
    core = holding()
    core.handle_deadline(LEASE_S / 4)
    assert asked(core) == [WantedQueue("t", i, 10 + i) for i in range(4)]
    core.leased("b", [granted(q, 10 + q.queue_id) for q in QUEUES], LEASE_S, 6.0)
    assert core.actions() == []
    assert {lease.expires_at for lease in core.leases.values()} == {5.0 + LEASE_S}


def test_a_lease_that_is_not_renewed_is_lost_before_the_broker_gives_it_away() -> None:
    core = holding()
    core.handle_deadline(5.0)
    core.actions()
    core.handle_deadline(LEASE_S)
    actions = core.actions()
    assert [d.queue for d in of_kind(Drop, actions)] == QUEUES
    assert [r.generation for r in of_kind(ReleaseLease, actions)] == [10, 11, 12, 13]
    assert all(lease.phase is Phase.WANTED for lease in core.leases.values())


def test_a_lost_connection_loses_every_lease_and_a_new_one_asks_anew() -> None:
    core = holding()
    core.broker_down("b", 1.0)
    assert len(of_kind(Drop, core.actions())) == 4
    core.broker_up("b", 2.0)
    assert core.actions() == [Join("b")]
    core.joined("b", 1, ["me"], False, 2.1)
    assert all(row.generation == 0 for row in asked(core))


def test_a_queue_that_goes_elsewhere_drains_before_it_is_released() -> None:
    core = holding()
    core.joined("b", 2, ["me", "z"], False, 1.0)
    assert core.actions() == [Stop(QUEUES[2]), Stop(QUEUES[3])]
    core.drained(QUEUES[2])
    assert core.actions() == [ReleaseLease(QUEUES[2], 12)]
    core.handle_deadline(5.0)
    assert [row.queue_id for row in asked(core)] == [0, 1, 3]  # what drains is renewed too
    core.released(QUEUES[2], 12, 5.1)
    assert QUEUES[2] not in core.leases


def test_work_that_does_not_end_holds_a_queue_for_a_bounded_time() -> None:
    core = Rebalance("me", strategy_of("average"), release_wait_s=3.0)
    core.set_queues(QUEUES[:1], 0.0)
    core.broker_up("b", 0.0)
    core.joined("b", 1, ["me"], False, 0.0)
    core.actions()
    core.leased("b", [granted(QUEUES[0], 5)], LEASE_S, 0.0)
    core.joined("b", 2, ["a", "me"], False, 1.0)
    core.actions()
    assert core.next_deadline() == 4.0
    core.handle_deadline(4.0)
    assert of_kind(ReleaseLease, core.actions()) == [ReleaseLease(QUEUES[0], 5)]


def test_a_reset_ends_the_lease_and_the_new_one_starts_elsewhere() -> None:
    core = holding()
    core.fenced(QUEUES[1], 11, 1.0)
    actions = core.actions()
    assert [d.queue for d in of_kind(Drop, actions)] == [QUEUES[1]]
    (ask,) = of_kind(Ask, actions)
    assert WantedQueue("t", 1, 0) in ask.queues
    core.leased("b", [granted(q, 20 + q.queue_id if q == QUEUES[1] else 10 + q.queue_id, 3) for q in QUEUES],
                LEASE_S, 1.1)  # fmt: skip
    (start,) = of_kind(Start, core.actions())
    assert (start.lease.queue, start.generation, start.offset) == (QUEUES[1], 21, 3)


def test_an_old_fence_changes_nothing() -> None:
    core = holding()
    core.fenced(QUEUES[1], 9, 1.0)
    assert core.actions() == []


def test_a_lease_granted_after_it_was_given_up_goes_back() -> None:
    core = member()
    asked(core)
    core.joined("b", 2, ["a", "me"], False, 0.1)
    core.leased("b", [granted(q, 10) for q in QUEUES], LEASE_S, 0.2)
    actions = core.actions()
    assert [s.lease.queue for s in of_kind(Start, actions)] == QUEUES[2:]
    assert of_kind(ReleaseLease, actions) == [ReleaseLease(QUEUES[0], 10), ReleaseLease(QUEUES[1], 10)]


def test_a_broker_that_does_not_know_the_member_is_joined_again() -> None:
    core = member()
    asked(core)
    core.lease_failed("b", False, 1.0)
    assert Join("b") in core.actions()
    core.join_failed("b", 1.0)
    core.handle_deadline(1.0 + JOIN_AGAIN_S)
    assert Join("b") in core.actions()


def test_closing_gives_everything_back() -> None:
    core = holding()
    core.close(1.0)
    assert len(of_kind(Stop, core.actions())) == 4
    for queue in QUEUES:
        core.drained(queue)
    assert len(of_kind(ReleaseLease, core.actions())) == 4
    assert not core.is_idle
    for queue in QUEUES:
        core.released(queue, 10 + queue.queue_id, 1.1)
    assert core.is_idle
    assert core.leases == {}


def test_a_member_holds_so_many_leases_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.LEASES_MAX == 10_000
    monkeypatch.setattr(module, "LEASES_MAX", 3)
    core = member()
    assert [row.queue_id for row in asked(core)] == [0, 1, 2]
    core.leased("b", [granted(q, 10) for q in QUEUES[:3]], LEASE_S, 0.1)
    core.actions()
    core.handle_deadline(ASK_AGAIN_S)
    assert [row.queue_id for row in asked(core)] == [0, 1, 2]
    assert core.next_deadline() > ASK_AGAIN_S


def test_a_strategy_that_fails_leaves_the_leases_as_they_are() -> None:
    answers = [{"me": QUEUES}]
    core = Rebalance("me", strategy_of(lambda *_: answers.pop()))
    core.set_queues(QUEUES, 0.0)
    core.broker_up("b", 0.0)
    core.joined("b", 1, ["me"], False, 0.0)
    assert core.fault is None
    core.actions()
    core.leased("b", [granted(q, 10) for q in QUEUES], LEASE_S, 0.0)
    core.actions()
    core.joined("b", 2, ["me", "z"], False, 1.0)
    assert isinstance(core.fault, IndexError)
    assert core.actions() == []
    assert all(lease.phase is Phase.HELD for lease in core.leases.values())


class Link:
    """A connection between a member and the broker: what is on its way, in order."""

    def __init__(self, owner: Peer) -> None:
        self.owner = owner
        self.to_broker: deque[Any] = deque()
        self.to_member: deque[Any] = deque()


class Peer:
    """A member: its core, what it consumes, and what it has yet to finish."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.core = Rebalance(name, strategy_of("average"), release_wait_s=1e9)
        self.link: Link | None = None
        self.consuming: dict[TopicQueue, Start] = {}
        self.draining: dict[TopicQueue, Start] = {}

    def uses(self, queue: TopicQueue, now: float) -> bool:
        start = self.consuming.get(queue) or self.draining.get(queue)
        return start is not None and start.lease.expires_at > now


class Cluster(RuleBasedStateMachine):
    """Members with the client's core, a broker with the broker's, and a network between them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.queues = QUEUES[:3]
        self.peers: dict[str, Peer] = {}
        self.members: Members[Link] = Members(60.0, 100)
        self.leases: Leases[Link] = Leases(LEASE_S)
        self.count = 0
        self.unheard: set[tuple[TopicQueue, int, Link]] = set()

    # Broker

    def state(self, is_freed: bool) -> tuple[str, int, list[str], bool]:
        return ("state", self.members.version("g"), [m.client_id for m in self.members.of("g")], is_freed)

    def tell(self) -> None:
        for each in self.members.of("g"):
            each.owner.to_member.append(self.state(False))

    def ended(self, ended: list[Ended[Link]]) -> None:
        for _, wanted_by in ended:
            self.members.raise_version("g")
            for owner in wanted_by:
                owner.to_member.append(self.state(True))

    def serve(self, link: Link) -> None:
        kind, *rest = link.to_broker.popleft()
        self.ended(self.leases.expire(self.now))
        if kind == "join":
            wanted = [GroupSubscription("t", "*")]
            joined = self.members.join(link, link.owner.name, "g", CLUSTERING, "", wanted, self.now, 0)
            if joined.is_change:
                self.tell()
            link.to_member.append(("joined", *self.state(False)[1:]))
        elif kind == "ask":
            rows = []
            for queue in rest[0]:
                key = LeaseKey("g", queue.topic, queue.queue_id)
                grant = self.leases.acquire(link, link.owner.name, key, queue.generation, self.now)
                code = Code.OK if grant.generation else Code.BUSY
                rows.append(LeasedQueue(*queue[:2], code, grant.generation, 0, 1, grant.holder or ""))
            link.to_member.append(("leased", rows))
        else:
            queue, generation = rest
            key = LeaseKey("g", queue.topic, queue.queue_id)
            ended = self.leases.release(link, key, generation)
            self.ended([ended] if ended else [])
            link.to_member.append(("released", queue, generation))

    def cut(self, peer: Peer) -> None:
        link, peer.link = peer.link, None
        if link is not None:
            left = self.members.close(link)
            self.ended(self.leases.end_owner(link))
            if left:
                self.tell()

    # Members

    def receive(self, peer: Peer, link: Link) -> None:
        kind, *rest = link.to_member.popleft()
        core = peer.core
        if kind in ("state", "joined"):
            if kind == "joined":
                core.join_answered("b", self.now)
            core.joined("b", *rest, self.now)
        elif kind == "leased":
            core.leased("b", rest[0], LEASE_S, self.now)
        elif kind == "fenced":
            core.fenced(*rest, self.now)
            self.unheard.discard((*rest, link))
        else:
            core.released(*rest, self.now)
        self.act(peer)

    def act(self, peer: Peer) -> None:
        while actions := peer.core.actions():
            for action in actions:
                if isinstance(action, Start):
                    assert action.lease.queue not in peer.consuming
                    peer.consuming[action.lease.queue] = action
                elif isinstance(action, Stop):
                    peer.draining[action.queue] = peer.consuming.pop(action.queue)
                elif isinstance(action, Drop):
                    peer.consuming.pop(action.queue, None)
                    peer.draining.pop(action.queue, None)
                elif peer.link is None:
                    assert isinstance(action, ReleaseLease)
                    peer.core.released(action.queue, action.generation, self.now)
                elif isinstance(action, Join):
                    peer.link.to_broker.append(("join",))
                elif isinstance(action, Ask):
                    peer.link.to_broker.append(("ask", action.queues))
                else:
                    peer.draining.pop(action.queue, None)
                    peer.link.to_broker.append(("release", action.queue, action.generation))

    def connect(self, peer: Peer) -> None:
        peer.link = Link(peer)
        peer.core.broker_up("b", self.now)
        self.act(peer)

    # Rules

    @precondition(lambda self: len(self.peers) < 4)
    @rule()
    def start_member(self) -> None:
        self.count += 1
        peer = self.peers[f"m{self.count * 7 % 10}-{self.count}"] = Peer(
            f"m{self.count * 7 % 10}-{self.count}"
        )
        peer.core.set_queues(self.queues, self.now)
        self.connect(peer)

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def lose_connection(self, data: st.DataObject) -> None:
        peer = self.pick(data)
        self.cut(peer)
        peer.core.broker_down("b", self.now)
        self.act(peer)

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        peer = self.pick(data)
        self.cut(peer)
        del self.peers[peer.name]

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        peer = self.pick(data)
        if peer.link is None:
            self.connect(peer)

    @precondition(lambda self: self.peers)
    @rule(data=st.data(), count=st.integers(1, 8))
    def carry(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            peer = self.pick(data)
            link = peer.link
            if link is not None and link.to_broker:
                self.serve(link)
            if link is not None and link.to_member:
                self.receive(peer, link)

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def finish_work(self, data: st.DataObject) -> None:
        peer = self.pick(data)
        for queue in list(peer.draining):
            peer.core.drained(queue)
        self.act(peer)

    @precondition(lambda self: len(self.queues) < 4)
    @rule()
    def add_queue(self) -> None:
        self.queues = QUEUES
        for peer in self.peers.values():
            peer.core.set_queues(self.queues, self.now)
            self.act(peer)

    @rule(queue=st.sampled_from(QUEUES))
    def reset(self, queue: TopicQueue) -> None:
        ended = self.leases.end(LeaseKey("g", queue.topic, queue.queue_id))
        if ended is not None:
            # Its held PULL is answered: until it hears of that, the holder cannot know.
            self.unheard.add((queue, ended.lease.generation, ended.lease.owner))
            ended.lease.owner.to_member.append(("fenced", queue, ended.lease.generation))
            self.ended([ended])

    @rule(seconds=st.sampled_from([0.01, 1.0, 4.0, 19.0]), are_awake=st.booleans())
    def pass_time(self, seconds: float, are_awake: bool) -> None:
        """Members that are not awake are processes that stand still: their timers do not ring."""
        self.now += seconds
        if are_awake:
            self.ring()

    def ring(self) -> None:
        for peer in self.peers.values():
            deadline = peer.core.next_deadline()
            if deadline is not None and deadline <= self.now:
                peer.core.handle_deadline(self.now)
                self.act(peer)

    def pick(self, data: st.DataObject) -> Peer:
        return self.peers[data.draw(st.sampled_from(sorted(self.peers)))]

    # What must hold

    @invariant()
    def no_queue_is_consumed_by_two(self) -> None:
        self.ended(self.leases.expire(self.now))
        for queue in QUEUES:
            if any(q == queue and link.owner.link is link for q, _, link in self.unheard):
                continue
            users = [peer.name for peer in self.peers.values() if peer.uses(queue, self.now)]
            assert len(users) <= 1, f"{queue} is consumed by {users}"

    def teardown(self) -> None:
        if not self.peers:
            self.start_member()
        for _ in range(12):
            for peer in self.peers.values():
                if peer.link is None:
                    self.connect(peer)
                for queue in list(peer.draining):
                    peer.core.drained(queue)
                self.act(peer)
                while peer.link.to_broker or peer.link.to_member:
                    if peer.link.to_broker:
                        self.serve(peer.link)
                    while peer.link.to_member:
                        self.receive(peer, peer.link)
            self.no_queue_is_consumed_by_two()
            self.now += 1.0
            self.ring()
        owners = {q: p.name for p in self.peers.values() for q in p.consuming}
        state = [
            (p.name, [(q.queue_id, x.phase, x.generation) for q, x in p.core.leases.items()])
            for p in self.peers.values()
        ]
        assert owners.keys() == set(self.queues), f"a queue is stuck: {state}"
        counts = [len(p.consuming) for p in self.peers.values()]
        assert max(counts) - min(counts) <= 1


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
