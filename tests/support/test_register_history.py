"""The history of a register itself: a coordinator under faults passes, one that is wrong is found out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from faulty_coordinator import FaultyCoordinator
from register_history import RegisterHistory

from holdmq.coordination.api import ShardSnapshot, ShardState
from holdmq.coordination.memory import MemoryShard
from holdmq.errors import CoordinatorError

TTL_S = 9.0
STATE = ShardState(1, "a", ("a",), 1)


def clock_of(shard: MemoryShard) -> Callable[[], float]:
    """The shard's time, a little later at each look."""

    def now() -> float:
        shard.now_s += 1e-6
        return shard.now_s

    return now


@pytest.mark.parametrize("seed", range(10))
async def test_calls_that_are_lost_or_late_are_those_of_one_register(seed: int) -> None:
    shard, history = MemoryShard(), RegisterHistory(TTL_S, 2.0)
    now = clock_of(shard)
    chance = random.Random(seed)

    async def before(_: str) -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)

    async def use(name: str) -> None:
        coordinator = FaultyCoordinator(shard.coordinator(name))
        coordinator.before = before
        version, held = 0, None
        for _ in range(60):
            coordinator.is_cut = chance.random() < 0.1
            coordinator.answers_lost = int(chance.random() < 0.1)
            shard.advance(chance.random())
            match chance.randrange(6):
                case 0 | 1:
                    snapshot = await history.read(coordinator, now)
                    version = snapshot.version if snapshot is not None else version
                case 2 | 3:
                    version = await history.compare_and_set(coordinator, version, now) or version
                case 4:
                    held = await history.hold(coordinator, name, now)
                case _ if held:
                    await history.release(coordinator, name, held, now)
                    held = None

    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(use(name))
    history.check()
    assert history.unknown
    assert history.sets > 10


class RepeatingCoordinator(FaultyCoordinator):
    """Sends a set twice, and gives the second answer, as some HTTP libraries do with PUT."""

    async def compare_and_set(self, version: int, state: ShardState) -> int | None:
        await super().compare_and_set(version, state)
        return await super().compare_and_set(version, state)


class ForgetfulCoordinator(FaultyCoordinator):
    """Reads from a cache that is never renewed."""

    def __init__(self, shard: MemoryShard) -> None:
        super().__init__(shard.coordinator("a"))
        self._cached = ShardSnapshot(None, 0, "")

    async def read(self) -> ShardSnapshot:
        return self._cached


async def test_a_set_that_was_sent_twice_is_found_out() -> None:
    shard, history = MemoryShard(), RegisterHistory(TTL_S, 2.0)
    assert (
        await history.compare_and_set(RepeatingCoordinator(shard.coordinator("a")), 0, clock_of(shard))
        is None
    )
    with pytest.raises(AssertionError, match="S was not one register"):
        history.check()


async def test_a_read_from_a_cache_is_found_out() -> None:
    shard, history = MemoryShard(), RegisterHistory(TTL_S, 2.0)
    now = clock_of(shard)
    assert await history.compare_and_set(shard.coordinator("a"), 0, now)
    await history.read(ForgetfulCoordinator(shard), now)
    with pytest.raises(AssertionError, match="S was not one register"):
        history.check()


async def test_two_holders_are_found_out() -> None:
    one, other, history = MemoryShard(), MemoryShard(), RegisterHistory(TTL_S, 2.0)
    now = clock_of(one)
    assert await history.hold(one.coordinator("a"), "a", now)
    assert await history.hold(other.coordinator("b"), "b", now)
    with pytest.raises(AssertionError, match="two hold L"):
        history.check()


async def test_a_version_that_is_given_twice_is_found_out() -> None:
    one, other, history = MemoryShard(), MemoryShard(), RegisterHistory(TTL_S, 2.0)
    now = clock_of(one)
    assert await history.compare_and_set(one.coordinator("a"), 0, now) == 1
    with pytest.raises(AssertionError, match="version 1 was of epoch 1"):
        await history.compare_and_set(other.coordinator("a"), 0, now)


async def test_who_loses_an_answer_still_has_what_it_did() -> None:
    shard = MemoryShard()
    coordinator = FaultyCoordinator(shard.coordinator("a"))
    coordinator.answers_lost = 1
    with pytest.raises(CoordinatorError):
        await coordinator.compare_and_set(0, STATE)
    snapshot = await coordinator.read()
    assert snapshot.state == STATE
    coordinator.is_cut = True
    with pytest.raises(CoordinatorError):
        await coordinator.compare_and_set(snapshot.version, replace(STATE, epoch=2))
    coordinator.is_cut = False
    assert await coordinator.changed(ShardSnapshot(None, 0, ""), 1) == snapshot
    assert await coordinator.hold(TTL_S)
    await coordinator.close()
    assert coordinator.calls == ["compare_and_set", "read", "compare_and_set", "changed", "hold"]


async def test_an_emptied_coordinator_in_memory_has_nothing() -> None:
    shard = MemoryShard()
    a = shard.coordinator("a")
    version = await a.compare_and_set(0, STATE)
    held = await a.hold(TTL_S)
    assert shard.register.ends_at_s() == TTL_S
    shard.register.wipe()
    assert await a.read() == ShardSnapshot(None, 0, "")
    assert shard.register.ends_at_s() is None
    assert version
    assert await a.compare_and_set(version, STATE) is None
    assert await a.hold(TTL_S) not in (None, held)
    assert await a.compare_and_set(0, STATE) not in (None, version)
