"""What is counted of a coordinator's calls."""

from __future__ import annotations

import pytest
from faulty_coordinator import FaultyCoordinator

from holdmq.coordination.api import Coordinator, ShardState
from holdmq.coordination.counted import HELP, CountedCoordinator
from holdmq.coordination.memory import MemoryShard
from holdmq.errors import CoordinatorError


class CountedShard:
    """A shard in memory, its time, and a client whose calls are counted and may fail."""

    def __init__(self) -> None:
        self.memory = MemoryShard()
        self.faulty = FaultyCoordinator(self.memory.coordinator("a"))
        self.counted = self.client(self.faulty)

    def client(self, real: Coordinator) -> CountedCoordinator:
        return CountedCoordinator(real, lambda: self.memory.now_s)


@pytest.fixture
def shard() -> CountedShard:
    return CountedShard()


async def test_what_had_no_answer_is_counted_and_of_changes_that_nobody_knows(shard: CountedShard) -> None:
    counted, faulty = shard.counted, shard.faulty
    await counted.read()
    faulty.is_cut = True
    for call in (counted.read(), counted.compare_and_set(0, ShardState(1, "a", ("a",), 1)), counted.hold(9)):
        with pytest.raises(CoordinatorError):
            await call
    found = counted.numbers()
    assert (found["calls_total"], found["calls_unanswered_total"]) == (4, 3)
    assert found["outcomes_unknown_total"] == 2
    assert found["leases_lost_total"] == 0
    assert "renewal_age_seconds" not in found, "it never had the lease"
    assert set(found) | {"renewal_age_seconds"} == set(HELP)


async def test_the_age_of_the_last_renewal_counts_from_when_it_was_sent(shard: CountedShard) -> None:
    counted, faulty = shard.counted, shard.faulty

    async def slowly(_: str) -> None:
        shard.memory.advance(1.5)

    faulty.before = slowly
    acquisition = await counted.hold(9)
    assert acquisition
    assert counted.numbers()["renewal_age_seconds"] == 1.5
    shard.memory.advance(3)
    faulty.before = None
    assert await counted.hold(9) == acquisition
    assert counted.numbers()["renewal_age_seconds"] == 0
    faulty.is_cut = True
    shard.memory.advance(4)
    with pytest.raises(CoordinatorError):
        await counted.hold(9)
    assert counted.numbers()["renewal_age_seconds"] == 4, "it may still have it, and nobody renews it"
    faulty.is_cut = False
    await counted.release(acquisition)
    assert "renewal_age_seconds" not in counted.numbers()
    assert counted.numbers()["leases_lost_total"] == 0, "it was given up"


async def test_a_lease_that_ran_out_or_went_to_another_one_is_lost(shard: CountedShard) -> None:
    a, b = shard.counted, shard.client(shard.memory.coordinator("b"))
    first = await a.hold(9)
    shard.memory.advance(20)
    second = await a.hold(9)
    assert second not in (None, first)
    assert a.numbers()["leases_lost_total"] == 1
    shard.memory.advance(20)
    assert await b.hold(9)
    assert await a.hold(9) is None
    assert await a.hold(9) is None
    assert a.numbers()["leases_lost_total"] == 2, "once for each lease"
    assert "renewal_age_seconds" not in a.numbers()
    assert b.numbers()["leases_lost_total"] == 0
