"""A real etcd whose members are killed, paused, emptied and set back: what clients are told stays true."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from etcd_members import EtcdCluster, EtcdMember, etcd_cluster
from register_history import RegisterHistory

from holdmq.coordination.api import ShardSnapshot, ShardState
from holdmq.coordination.etcd import EtcdCoordinator
from holdmq.coordination.etcd_gateway import EtcdAccess
from holdmq.errors import CoordinatorError

STATE = ShardState(1, "a", ("a", "b", "c"), 1)
TIMEOUT_S = 3.0
TTL_S = 3.0
RECOVERY_S = 20.0
Make = Callable[..., EtcdCoordinator]
T = TypeVar("T")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, 3) as cluster:
        yield cluster


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path, 1) as cluster:
        yield cluster


@pytest.fixture
async def client() -> AsyncIterator[Make]:
    made: list[EtcdCoordinator] = []

    def make(cluster: EtcdCluster, replica_id: str, timeout_s: float = TIMEOUT_S) -> EtcdCoordinator:
        access = EtcdAccess(cluster.urls)
        made.append(EtcdCoordinator(access, "/holdmq/test/", "shard", replica_id, timeout_s))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def _at_last(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the coordinator answers it."""
    async with asyncio.timeout(RECOVERY_S):
        while True:
            try:
                return await call()
            except CoordinatorError:
                await asyncio.sleep(0.1)


async def _founded(coordinator: EtcdCoordinator) -> int:
    version = await coordinator.compare_and_set(0, STATE)
    assert version is not None
    return version


@pytest.mark.parametrize("fault", [EtcdMember.kill, EtcdMember.pause])
async def test_calls_go_on_without_the_leading_member(
    three: EtcdCluster, client: Make, fault: Callable[[EtcdMember], None]
) -> None:
    a, b = client(three, "a"), client(three, "b")
    version = await _founded(a)
    held = await a.hold(TTL_S)
    assert held
    fault(await asyncio.to_thread(three.leader))
    assert await _at_last(b.read) == ShardSnapshot(STATE, version, "a")
    assert await _at_last(lambda: a.hold(TTL_S)) == held
    second = await _at_last(lambda: b.compare_and_set(version, replace(STATE, epoch=2)))
    if second is None:
        # An attempt before, of which nobody knew, had taken effect.
        assert (await _at_last(b.read)).state == replace(STATE, epoch=2)
    assert await _at_last(lambda: a.compare_and_set(version, replace(STATE, epoch=3))) is None


async def test_any_other_member_may_be_gone_unnoticed(three: EtcdCluster, client: Make) -> None:
    a, b = client(three, "a"), client(three, "b")
    version = await _founded(a)
    (await asyncio.to_thread(three.followers))[0].kill()
    for epoch in range(2, 8):
        new = await _at_last(lambda v=version, e=epoch: a.compare_and_set(v, replace(STATE, epoch=e)))
        assert new is not None
        version = new
        assert (await _at_last(b.read)).version == version


async def test_without_a_majority_nothing_is_answered_and_nothing_is_lost(
    three: EtcdCluster, client: Make
) -> None:
    a, b = client(three, "a"), client(three, "b")
    version = await _founded(a)
    held = await a.hold(TTL_S)
    assert held
    snapshot = await a.read()
    gone = three.members[1:]
    for member in gone:
        member.kill()
    await asyncio.sleep(1)
    clock = asyncio.get_running_loop().time
    calls: list[Callable[[], Awaitable[object]]] = [
        a.read,
        lambda: a.compare_and_set(version, replace(STATE, epoch=2)),
        lambda: a.hold(TTL_S),
        lambda: a.release(held),
        lambda: b.hold(TTL_S),
        lambda: b.changed(snapshot, 1),
    ]
    for call in calls:
        began = clock()
        with pytest.raises(CoordinatorError):
            await call()
        assert clock() - began < 2 * TIMEOUT_S + 2
    for member in gone:
        member.start()
    again = await _at_last(b.read)
    assert again.state in (STATE, replace(STATE, epoch=2))
    assert (again.state == STATE) == (again.version == version)
    assert await _at_last(lambda: a.compare_and_set(again.version, replace(STATE, epoch=3)))


async def test_a_lease_outlives_a_restart_of_all_members(three: EtcdCluster, client: Make) -> None:
    a, b = client(three, "a"), client(three, "b")
    held = await a.hold(TTL_S)
    assert held
    for member in three.members:
        member.kill()
    for member in three.members:
        member.start()
    assert await _at_last(lambda: b.hold(TTL_S)) is None
    assert await _at_last(lambda: a.hold(TTL_S)) == held


async def test_a_wait_survives_the_member_that_it_waits_at(three: EtcdCluster, client: Make) -> None:
    a, b = client(three, "a"), client(three, "b")
    version = await _founded(a)
    seen = await b.read()
    waiting = asyncio.create_task(b.changed(seen, RECOVERY_S))
    await asyncio.sleep(0.5)
    # The client asks the first member as long as that answers.
    three.members[0].kill()
    await asyncio.sleep(1)
    assert not waiting.done()
    new = await _at_last(lambda: a.compare_and_set(version, replace(STATE, epoch=2)))
    assert (await waiting).version == new or new is None


async def test_a_member_without_a_leader_does_not_hold_a_wait(three: EtcdCluster, client: Make) -> None:
    """The first member loses both others, is set aside, and they go on: the wait is told by them."""
    b = client(three, "b", 1.0)
    a = client(EtcdCluster(three.members[1:]), "a")
    version = await _founded(a)
    waiting = asyncio.create_task(b.changed(await b.read(), RECOVERY_S))
    await asyncio.sleep(0.5)
    for member in three.members[1:]:
        member.kill()
    await asyncio.sleep(2)
    three.members[0].pause()
    for member in three.members[1:]:
        member.start()
    new = await _at_last(lambda: a.compare_and_set(version, replace(STATE, epoch=2)))
    began = asyncio.get_running_loop().time()
    assert (await waiting).version == new or new is None
    assert asyncio.get_running_loop().time() - began < 5


async def test_what_was_set_outlives_a_kill(one: EtcdCluster, client: Make) -> None:
    a = client(one, "a")
    version = await _founded(a)
    one.members[0].kill()
    one.members[0].start()
    assert await _at_last(a.read) == ShardSnapshot(STATE, version, "")


async def test_an_emptied_etcd_has_no_state_and_no_lease(one: EtcdCluster, client: Make) -> None:
    a, b = client(one, "a"), client(one, "b")
    version = await _founded(a)
    held = await a.hold(TTL_S)
    one.members[0].kill()
    one.members[0].wipe()
    one.members[0].start()
    assert await _at_last(a.read) == ShardSnapshot(None, 0, "")
    assert await a.compare_and_set(version, replace(STATE, epoch=2)) is None
    assert await _at_last(lambda: b.hold(TTL_S))
    assert await a.hold(TTL_S) is None
    assert held
    await a.release(held)
    assert (await a.read()).holder == "b"
    assert await a.compare_and_set(0, STATE)


async def test_a_revision_that_a_restored_etcd_gives_again_is_another_version(
    one: EtcdCluster, client: Make
) -> None:
    a, b = client(one, "a"), client(one, "b")
    member = one.members[0]
    version = await _founded(a)
    member.stop()
    member.keep()
    member.start()
    later = await _at_last(lambda: a.compare_and_set(version, replace(STATE, epoch=2)))
    assert later is not None
    member.stop()
    member.restore()
    member.start()
    assert await _at_last(lambda: b.compare_and_set(version, replace(STATE, epoch=7, leader="b"))) == later
    assert await a.compare_and_set(later, replace(STATE, epoch=3)) is None
    assert await b.read() == ShardSnapshot(replace(STATE, epoch=7, leader="b"), later, "")


async def test_clients_under_faults_see_one_register_and_one_holder(three: EtcdCluster, client: Make) -> None:
    """Six clients read, set and hold while members are killed, paused and restarted, the leader above all."""
    history = RegisterHistory(TTL_S, margin_s=0.5)
    clock = asyncio.get_running_loop().time
    end = clock() + 20

    async def use(number: int) -> None:
        chance = random.Random(number)
        coordinator = client(three, f"r{number}", 1.5)
        held, version = None, 0
        while clock() < end:
            match chance.randrange(8):
                case 0 | 1 | 2:
                    snapshot = await history.read(coordinator, clock)
                    version = snapshot.version if snapshot is not None else version
                case 3 | 4 | 5:
                    new = await history.compare_and_set(coordinator, version, clock)
                    version = new if new is not None else version
                case 6:
                    held = await history.hold(coordinator, f"r{number}", clock)
                case _:
                    if held is not None and chance.random() < 0.3:
                        await history.release(coordinator, f"r{number}", held, clock)
                        held = None
            await asyncio.sleep(chance.random() * 0.1)

    async def disturb() -> None:
        chance = random.Random(7)
        while clock() < end - 3:
            await asyncio.sleep(1 + chance.random())
            member = (
                await asyncio.to_thread(three.leader)
                if chance.random() < 0.6
                else chance.choice(three.members)
            )
            if chance.random() < 0.5:
                member.kill()
                await asyncio.sleep(0.5 + chance.random())
                member.start()
            else:
                member.pause()
                await asyncio.sleep(0.5 + 2 * chance.random())
                member.resume()

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(use(number))
        group.create_task(disturb())
    print(history.summary())
    history.check()
    assert history.sets > 50
    assert history.unknown > 0
