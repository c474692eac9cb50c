"""A broker with copies changes its leader under clients of every kind: they see a pause and no error."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from every_client import EveryClient
from mqtt_client import MqttClient
from replica_processes import TTL_S, ReplicaStack, replica_stack

from spark_streaming.source.link import close_links

Fault = Callable[[ReplicaStack, str], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaStack]:
    with replica_stack(tmp_path_factory.mktemp("shard"), "gateway") as stack:
        yield stack


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    MqttClient.close_all()
    close_links()


async def kill(shard: ReplicaStack, leader: str) -> None:
    """kill -9; it comes back as a copy."""
    await asyncio.to_thread(shard.kill, leader)
    await asyncio.to_thread(shard.wait_leader, leader)
    shard.start_again(leader)


async def hand_over(shard: ReplicaStack, leader: str) -> None:
    to = next(name for name in shard.names if name != leader)
    await asyncio.to_thread(shard.switch, leader, to)
    await asyncio.to_thread(shard.wait_leader, leader)


async def pause(shard: ReplicaStack, leader: str) -> None:
    """Stop it for longer than its lease, with all its connections open; it wakes when another one leads."""
    process = shard.stacks[leader].processes["broker"]
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(TTL_S)
        await asyncio.to_thread(shard.wait_leader, leader)
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", [kill, hand_over, pause])
def test_clients_of_every_kind_see_a_pause_and_no_error(shard: ReplicaStack, fault: Fault) -> None:
    async def run() -> None:
        async with EveryClient(shard.registries, shard.first.mqtt_port, fault.__name__) as clients:
            for _ in range(2):
                leader = await asyncio.to_thread(shard.wait_leader)
                await fault(shard, leader)
                await clients.moved_on()
                await asyncio.to_thread(shard.wait_in_sync)
            await clients.finish()
            print({name: round(one.longest_s, 2) for name, one in clients.progress.items()})

    asyncio.run(run())
