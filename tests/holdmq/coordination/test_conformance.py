"""What every coordinator promises (holdmq.coordination.api), on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from coordination_beds import Bed, EtcdBed, KubernetesBed, MemoryBed
from etcd_members import EtcdCluster, etcd_cluster
from kubernetes_leases import lease_server

from holdmq.coordination.api import Coordinator, ShardSnapshot, ShardState
from holdmq.errors import CoordinatorError, ShardStateError

FOUNDED = ShardState(1, "a", ("a", "b", "c"), 1)
PROMOTED = ShardState(2, "b", ("b", "c"), 1, 4096)
NOTHING = ShardSnapshot(None, 0, "")
_shards = count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield cluster


@pytest.fixture(params=["memory", "etcd", "kubernetes"])
async def bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    async with AsyncExitStack() as stack:
        made: Bed
        match request.param:
            case "memory":
                made = MemoryBed()
            case "etcd":
                made = EtcdBed(request.getfixturevalue("etcd"), f"shard-{next(_shards)}")
            case _:
                made = KubernetesBed(await stack.enter_async_context(lease_server()), tmp_path)
        stack.push_async_callback(made.close)
        yield made


async def test_nothing_is_there_before_somebody_founds_it(bed: Bed) -> None:
    assert await bed.coordinator("a").read() == NOTHING


async def test_what_is_set_is_read_by_all(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    version = await a.compare_and_set(0, FOUNDED)
    assert version is not None
    assert version > 0
    assert await b.read() == await a.read() == ShardSnapshot(FOUNDED, version, "")


async def test_only_the_first_of_two_founders_founds(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    outcomes = await asyncio.gather(a.compare_and_set(0, FOUNDED), b.compare_and_set(0, PROMOTED))
    assert sum(outcome is not None for outcome in outcomes) == 1
    won = FOUNDED if outcomes[0] is not None else PROMOTED
    assert (await a.read()).state == won


async def test_an_old_version_changes_nothing(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    first = await a.compare_and_set(0, FOUNDED)
    assert first is not None
    second = await b.compare_and_set(first, PROMOTED)
    assert second is not None
    assert second != first
    assert await a.compare_and_set(first, replace(FOUNDED, epoch=3)) is None
    assert await a.compare_and_set(0, replace(FOUNDED, epoch=3)) is None
    assert await a.compare_and_set(second + 100, replace(FOUNDED, epoch=3)) is None
    assert await a.read() == ShardSnapshot(PROMOTED, second, "")


async def test_the_same_state_set_again_has_another_version(bed: Bed) -> None:
    a = bed.coordinator("a")
    first = await a.compare_and_set(0, FOUNDED)
    assert first is not None
    second = await a.compare_and_set(first, FOUNDED)
    assert second not in (None, first)
    assert await a.compare_and_set(first, PROMOTED) is None


async def test_one_replica_holds_the_lease(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    held = await a.hold(bed.ttl_s)
    assert held
    assert (await b.read()).holder == "a"
    assert await b.hold(bed.ttl_s) is None
    assert await a.hold(bed.ttl_s) == held


async def test_one_of_many_gets_the_lease(bed: Bed) -> None:
    replicas = [bed.coordinator(name) for name in "abcde"]
    held = await asyncio.gather(*(replica.hold(bed.ttl_s) for replica in replicas))
    assert sum(one is not None for one in held) == 1


async def test_a_lease_lasts_as_long_as_it_is_renewed(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    held = await a.hold(bed.ttl_s)
    assert held
    for _ in range(4):
        await bed.pass_time(bed.ttl_s / 2)
        assert await b.hold(bed.ttl_s) is None
        assert await a.hold(bed.ttl_s) == held
    assert (await b.read()).holder == "a"


async def test_a_lease_that_nobody_renews_ends_and_says_so(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    first = await a.hold(bed.ttl_s)
    assert first
    assert (await b.read()).holder == "a"
    held = await _taken(bed, b)
    assert held != first
    assert (await a.read()).holder == "b"
    assert await a.hold(bed.ttl_s) is None
    await b.release(held)
    again = await a.hold(bed.ttl_s)
    assert again not in (None, first)


async def test_a_late_release_does_not_end_a_newer_acquisition(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    first = await a.hold(bed.ttl_s)
    assert first
    held = await _taken(bed, b)
    await a.release(first)
    assert (await a.read()).holder == "b"
    await b.release(held)
    second = await a.hold(bed.ttl_s)
    assert second
    await a.release(first)
    await b.release(held)
    assert (await b.read()).holder == "a"
    await a.release(second)
    assert (await b.read()).holder == ""
    await a.release(second)


async def test_a_released_lease_is_free_at_once(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    held = await a.hold(bed.ttl_s)
    assert held
    await a.release(held)
    assert (await b.read()).holder == ""
    assert await b.hold(bed.ttl_s)


async def test_a_new_process_of_a_replica_waits_for_its_old_acquisition(bed: Bed) -> None:
    old, new = bed.coordinator("a"), bed.coordinator("a")
    held = await old.hold(bed.ttl_s)
    assert held
    assert await new.hold(bed.ttl_s) is None
    assert (await new.read()).holder == "a"
    assert await _taken(bed, new) != held


async def test_the_lease_and_the_state_are_apart(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    held = await a.hold(bed.ttl_s)
    assert held
    assert await a.read() == ShardSnapshot(None, 0, "a")
    version = await b.compare_and_set(0, FOUNDED)
    assert version is not None
    assert await a.hold(bed.ttl_s) == held
    assert await b.read() == ShardSnapshot(FOUNDED, version, "a")
    assert await b.compare_and_set(version, PROMOTED) is not None
    await a.release(held)
    assert (await b.read()).state == PROMOTED


async def test_a_wait_ends_with_a_change_of_the_state(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    waiting = asyncio.create_task(b.changed(NOTHING, 60))
    await _settle(bed)
    assert not waiting.done()
    version = await a.compare_and_set(0, FOUNDED)
    assert version is not None
    assert await asyncio.wait_for(waiting, 10) == ShardSnapshot(FOUNDED, version, "")


async def test_a_wait_ends_with_a_change_of_the_holder(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    waiting = asyncio.create_task(b.changed(NOTHING, 60))
    await _settle(bed)
    held = await a.hold(bed.ttl_s)
    assert held
    seen = await asyncio.wait_for(waiting, 10)
    assert seen == ShardSnapshot(None, 0, "a")
    waiting = asyncio.create_task(b.changed(seen, 60))
    await _settle(bed)
    assert await a.hold(bed.ttl_s) == held
    await _settle(bed)
    assert not waiting.done()
    await a.release(held)
    assert await asyncio.wait_for(waiting, 10) == NOTHING


async def test_a_wait_ends_when_a_lease_expires(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    assert await a.hold(bed.ttl_s)
    waiting = asyncio.create_task(b.changed(await b.read(), 60))
    for _ in range(4):
        await _settle(bed)
        await bed.pass_time(bed.ttl_s / 2)
    assert await asyncio.wait_for(waiting, 10) == NOTHING


async def test_a_wait_for_what_is_there_already_ends_at_once(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    version = await a.compare_and_set(0, FOUNDED)
    assert version is not None
    assert await asyncio.wait_for(b.changed(NOTHING, 60), 10) == ShardSnapshot(FOUNDED, version, "")


async def test_a_wait_without_a_change_ends_in_time(bed: Bed) -> None:
    b = bed.coordinator("b")
    waiting = asyncio.create_task(b.changed(NOTHING, 0.5))
    await _settle(bed)
    await bed.pass_time(0.5)
    assert await asyncio.wait_for(waiting, 10) == NOTHING


async def test_a_wait_that_is_cancelled_leaves_the_client_in_order(bed: Bed) -> None:
    b = bed.coordinator("b")
    waiting = asyncio.create_task(b.changed(NOTHING, 60))
    await _settle(bed)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await b.read() == NOTHING


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"epoch":1,"leader":"a","in_sync":["a"],"new":1}'])
async def test_a_state_that_is_not_understood_is_refused(bed: Bed, text: str) -> None:
    await bed.put_raw(text)
    a = bed.coordinator("a")
    with pytest.raises(ShardStateError, match="restore"):
        await a.read()
    with pytest.raises(ShardStateError):
        await a.changed(NOTHING, 0)
    assert await a.compare_and_set(0, FOUNDED) is None


async def test_a_state_that_nobody_could_read_is_not_written(bed: Bed) -> None:
    a = bed.coordinator("a")
    with pytest.raises(ShardStateError):
        await a.compare_and_set(0, replace(FOUNDED, epoch=0))
    assert await a.read() == NOTHING


async def test_a_closed_client_refuses_calls_and_its_lease_stays(bed: Bed) -> None:
    a, b = bed.coordinator("a"), bed.coordinator("b")
    held = await a.hold(bed.ttl_s)
    assert held
    waiting = asyncio.create_task(a.changed(ShardSnapshot(None, 0, "a"), 60))
    await _settle(bed)
    await a.close()
    await a.close()
    with pytest.raises(CoordinatorError):
        await asyncio.wait_for(waiting, 10)
    for call in (a.read(), a.compare_and_set(0, FOUNDED), a.hold(bed.ttl_s), a.release(held)):
        with pytest.raises(CoordinatorError):
            await call
    assert (await b.read()).holder == "a"


async def _taken(bed: Bed, replica: Coordinator) -> str:
    """Have `replica` try until the lease of somebody who is silent has ended: after a ttl, and not before."""
    assert await replica.hold(bed.ttl_s) is None
    await bed.pass_time(bed.ttl_s / 2)
    assert await replica.hold(bed.ttl_s) is None
    for _ in range(40):
        await bed.pass_time(bed.ttl_s / 8)
        if held := await replica.hold(bed.ttl_s):
            return held
    raise AssertionError("the lease of a silent replica never ended")


async def _settle(bed: Bed) -> None:
    """Have tasks run until they wait."""
    await asyncio.sleep(bed.settle_s)
