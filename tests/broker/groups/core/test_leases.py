"""Leases: one holder per queue, generations that only rise, deadlines, wishes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.groups.core.leases import LeaseKey, Leases

KEY = LeaseKey("g", "t", 0)
OTHER = LeaseKey("g", "t", 1)
LEASE_S = 20.0


def make(**bounds: int) -> Leases[str]:
    return Leases(LEASE_S, **bounds)


def test_a_queue_is_granted_once_and_the_second_to_ask_hears_who_has_it() -> None:
    leases = make()
    granted = leases.acquire("c1", "one", KEY, 0, 0.0)
    assert granted.generation > 0
    refused = leases.acquire("c2", "two", KEY, 0, 1.0)
    assert (refused.generation, refused.holder, refused.is_fenced) == (0, "one", False)
    assert leases.is_valid("c1", KEY, granted.generation, 1.0)
    assert not leases.is_valid("c2", KEY, granted.generation, 1.0)


def test_a_release_tells_who_wanted_the_queue_and_the_next_generation_is_higher() -> None:
    leases = make()
    first = leases.acquire("c1", "one", KEY, 0, 0.0).generation
    leases.acquire("c2", "two", KEY, 0, 0.0)
    ended = leases.release("c1", KEY, first)
    assert ended is not None
    assert ended.wanted_by == ["c2"]
    assert leases.wants == 0
    assert not leases.is_valid("c1", KEY, first, 0.0)
    assert leases.acquire("c2", "two", KEY, 0, 0.0).generation > first


def test_a_release_of_another_generation_or_by_another_is_left_alone() -> None:
    leases = make()
    generation = leases.acquire("c1", "one", KEY, 0, 0.0).generation
    assert leases.release("c2", KEY, generation) is None
    assert leases.release("c1", KEY, generation - 1) is None
    assert leases.is_valid("c1", KEY, generation, 0.0)


def test_a_renewal_keeps_the_generation_and_moves_the_deadline() -> None:
    leases = make()
    generation = leases.acquire("c1", "one", KEY, 0, 0.0).generation
    assert leases.acquire("c1", "one", KEY, generation, 15.0).generation == generation
    assert leases.expire(LEASE_S) == []
    assert leases.next_deadline() == 35.0
    assert [e.lease.key for e in leases.expire(35.0)] == [KEY]
    assert leases.next_deadline() is None


def test_a_lease_is_worth_nothing_at_its_deadline_even_before_it_is_ended() -> None:
    leases = make()
    generation = leases.acquire("c1", "one", KEY, 0, 0.0).generation
    assert leases.is_valid("c1", KEY, generation, 19.9)
    assert not leases.is_valid("c1", KEY, generation, LEASE_S)
    assert leases.acquire("c1", "one", KEY, generation, LEASE_S).is_fenced


def test_a_lease_that_ended_is_not_renewed_but_has_to_be_asked_for() -> None:
    leases = make()
    generation = leases.acquire("c1", "one", KEY, 0, 0.0).generation
    leases.end(KEY)
    refused = leases.acquire("c1", "one", KEY, generation, 1.0)
    assert (refused.generation, refused.is_fenced) == (0, True)
    assert leases.acquire("c1", "one", KEY, 0, 1.0).generation > generation


def test_who_asks_anew_for_what_he_has_gets_a_new_generation() -> None:
    leases = make()
    first = leases.acquire("c1", "one", KEY, 0, 0.0).generation
    second = leases.acquire("c1", "one", KEY, 0, 0.0).generation
    assert second > first
    assert not leases.is_valid("c1", KEY, first, 0.0)
    assert len(leases) == 1


def test_a_connection_that_closes_frees_everything_it_had_and_wanted() -> None:
    leases = make()
    leases.acquire("c1", "one", KEY, 0, 0.0)
    leases.acquire("c1", "one", LeaseKey("h", "t", 0), 0, 0.0)
    leases.acquire("c2", "two", OTHER, 0, 0.0)
    leases.acquire("c1", "one", OTHER, 0, 0.0)
    assert leases.wants == 1
    assert leases.count("c1", "g") == 1
    assert {e.lease.key for e in leases.end_owner("c1")} == {KEY, LeaseKey("h", "t", 0)}
    assert leases.wants == 0
    assert len(leases) == 1


def test_leaving_one_group_keeps_the_leases_of_another() -> None:
    leases = make()
    leases.acquire("c1", "one", KEY, 0, 0.0)
    other = leases.acquire("c1", "one", LeaseKey("h", "t", 0), 0, 0.0)
    assert [e.lease.key for e in leases.end_owner("c1", "g")] == [KEY]
    assert leases.is_valid("c1", LeaseKey("h", "t", 0), other.generation, 0.0)


def test_a_later_start_grants_nothing_that_an_earlier_one_did() -> None:
    before = make()
    old = before.acquire("c1", "one", KEY, 0, 0.0).generation
    after = make()
    after.start_above(old)
    new = after.acquire("c1", "one", KEY, 0, 0.0).generation
    assert new > old
    assert not after.is_valid("c1", KEY, old, 0.0)


def test_a_process_that_stood_still_takes_no_lease_for_it() -> None:
    leases = make()
    generation = leases.acquire("c1", "one", KEY, 0, 0.0).generation
    leases.postpone(60.0)
    assert leases.expire(60.0) == []
    assert leases.is_valid("c1", KEY, generation, 79.0)


def test_a_deleted_queue_ends_every_groups_lease_on_it() -> None:
    leases = make()
    leases.acquire("c1", "one", KEY, 0, 0.0)
    leases.acquire("c2", "two", LeaseKey("h", "t", 0), 0, 0.0)
    leases.acquire("c2", "two", OTHER, 0, 0.0)
    assert len(leases.end_queue("t", 0)) == 2
    assert len(leases) == 1


def test_leases_and_wishes_are_bounded() -> None:
    leases = make(leases_max=1, wants_max=1)
    leases.acquire("c1", "one", KEY, 0, 0.0)
    assert leases.acquire("c1", "one", OTHER, 0, 0.0).is_full
    leases.acquire("c2", "two", KEY, 0, 0.0)
    leases.acquire("c3", "three", KEY, 0, 0.0)
    assert leases.wants == 1
    ended = leases.end(KEY)
    assert ended is not None
    assert ended.wanted_by == ["c2"]
    assert leases.acquire("c3", "three", OTHER, 0, 0.0).generation


class LeaseMachine(RuleBasedStateMachine):
    """Any order of asking, renewing, releasing, closing, waiting: what each believes to hold is checked."""

    owners = st.sampled_from(["a", "b", "c"])
    keys = st.sampled_from([LeaseKey(g, "t", q) for g in ("g", "h") for q in range(3)])

    def __init__(self) -> None:
        super().__init__()
        self.leases: Leases[str] = Leases(LEASE_S)
        self.now = 0.0
        self.believed: dict[tuple[str, LeaseKey], int] = {}
        """What an owner was granted last and has not given back: it may have ended meanwhile."""
        self.granted: dict[LeaseKey, int] = {}
        self.wanted: dict[LeaseKey, set[str]] = {}

    def _freed(self, ended: object) -> None:
        lease, wanted_by = ended  # type: ignore[misc]
        assert set(wanted_by) == self.wanted.pop(lease.key, set())

    def _expire(self) -> None:
        for ended in self.leases.expire(self.now):
            self._freed(ended)

    @rule(owner=owners, key=keys, is_renewal=st.booleans())
    def ask(self, owner: str, key: LeaseKey, is_renewal: bool) -> None:
        self._expire()
        generation = self.believed.get((owner, key), 0) if is_renewal else 0
        holders = [o for o in "abc" if self._holds(o, key)]
        grant = self.leases.acquire(owner, owner, key, generation, self.now)
        if grant.generation:
            assert holders in ([], [owner])
            if generation:
                assert grant.generation == generation
            else:
                assert grant.generation > self.granted.get(key, 0)
                self.granted[key] = grant.generation
            self.believed[owner, key] = grant.generation
            self.wanted.get(key, set()).discard(owner)
        elif grant.holder is not None:
            assert holders == [grant.holder]
            self.wanted.setdefault(key, set()).add(owner)
        else:
            assert grant.is_fenced
            assert generation

    @rule(owner=owners, key=keys)
    def release(self, owner: str, key: LeaseKey) -> None:
        held = self._holds(owner, key)
        ended = self.leases.release(owner, key, self.believed.pop((owner, key), 0))
        if held:
            assert ended is not None
        if ended is not None:
            self._freed(ended)

    @rule(owner=owners)
    def close(self, owner: str) -> None:
        for wanted in self.wanted.values():
            wanted.discard(owner)
        for ended in self.leases.end_owner(owner):
            self._freed(ended)
        assert not any(self._holds(owner, k) for o, k in self.believed if o == owner)

    @rule(key=keys)
    def reset(self, key: LeaseKey) -> None:
        ended = self.leases.end(key)
        if ended is not None:
            self._freed(ended)
        assert not any(self._holds(o, key) for o in "abc")

    @rule(seconds=st.sampled_from([1.0, 7.0, 19.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _holds(self, owner: str, key: LeaseKey) -> bool:
        generation = self.believed.get((owner, key), 0)
        return bool(generation) and self.leases.is_valid(owner, key, generation, self.now)

    @invariant()
    def nobody_shares_a_queue(self) -> None:
        for key in self.granted:
            holders = [owner for owner in "abc" if self._holds(owner, key)]
            assert len(holders) <= 1
            if holders:
                assert self.believed[holders[0], key] == self.granted[key]
                assert self.leases.holder(key, self.now) == holders[0]

    @invariant()
    def wishes_are_those_that_were_refused(self) -> None:
        assert self.leases.wants == sum(map(len, self.wanted.values()))


LeaseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLeaseMachine = LeaseMachine.TestCase
