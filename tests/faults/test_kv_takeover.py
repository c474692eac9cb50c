"""Three brokers over one key-value server: a silent one's shard is taken over, and given back later."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cluster_view import messages_of
from processes import Stack, end_all, wait_until
from valkey_servers import ValkeyServer

from holdmq.client.producer import Producer
from holdmq.message import Message

TOPIC = "applications"
SENDERS = 24
LEASE_MS = 2000


class KvCluster:
    """A registry and three brokers, each in a directory of its own that keeps nothing."""

    def __init__(self, directory: Path, url: str) -> None:
        self.stacks: list[Stack] = []
        for number in range(3):
            path = directory / f"broker-{number}"
            path.mkdir()
            settings = {
                "broker.name": f"broker-{number}",
                "storage.engine": "kv",
                "storage.kv.url": url,
                "storage.kv.lease_ms": LEASE_MS,
            }
            if self.stacks:
                settings["registry.port"] = self.stacks[0].registry_port
            self.stacks.append(Stack(path, settings))
        self.stacks[0].start("registry")
        for stack in self.stacks:
            stack.start("broker", wait=False)
        for stack in self.stacks:
            stack.wait_ready("broker")

    @property
    def registry(self) -> str:
        return self.stacks[0].registry

    def takers(self, shard: str) -> list[int]:
        """How often each broker has begun to serve a shard."""
        said = f'"name": "{shard}", "address"'
        return [
            sum(said in line and "broker serves" in line for line in stack.log("broker").splitlines())
            for stack in self.stacks
        ]

    def close(self) -> None:
        end_all(list(reversed(self.stacks)))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KvCluster]:
    (tmp_path / "valkey").mkdir()
    server = ValkeyServer(tmp_path / "valkey", appendonly="yes")
    server.start()
    try:
        with closing(KvCluster(tmp_path, server.url)) as made:
            yield made
    finally:
        server.end()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_a_silent_broker_acknowledged_is_read_once_and_in_order_and_its_shard_returns(
    cluster: KvCluster, number: signal.Signals
) -> None:
    placed = asyncio.run(send_over_a_silence(cluster, number))
    found = asyncio.run(messages_of([cluster.registry], TOPIC))
    bodies = Counter(message.body for message in found)
    assert [body for body, count in bodies.items() if count > 1] == []
    assert set(placed) <= set(bodies)
    at: dict[bytes, set[tuple[int, int]]] = defaultdict(set)
    for message in found:
        at[message.body].add((message.queue_id, message.queue_offset))
    assert all(place in at[body] for body, place in placed.items())
    by_sender: dict[tuple[bytes, int, str], list[int]] = defaultdict(list)
    for message in sorted(found, key=lambda message: message.queue_offset):
        sender, _, serial = message.body.partition(b"-")
        by_sender[sender, message.queue_id, str(message.message_id)[:16]].append(int(serial))
    assert all(list(dict.fromkeys(serials)) == sorted(set(serials)) for serials in by_sender.values())


async def send_over_a_silence(cluster: KvCluster, number: signal.Signals) -> dict[bytes, tuple[int, int]]:
    """Send while the second broker is silent, taken over, back, and has its shard again."""
    placed: dict[bytes, tuple[int, int]] = {}
    stopping = asyncio.Event()
    victim = cluster.stacks[1]

    async def send(producer: Producer, name: str) -> None:
        serial = 0
        while not stopping.is_set():
            body = f"{name}-{serial}".encode()
            serial += 1
            done = await producer.send(Message(TOPIC, body), timeout_s=100.0)
            placed[body] = (done.queue.queue_id, done.queue_offset)
            await asyncio.sleep(0.01)

    # What is silent is waited for: another queue would have no window that knows what is sent again.
    async with Producer([cluster.registry], reroute_s=60.0) as producer:
        senders = [asyncio.ensure_future(send(producer, f"s{i}")) for i in range(SENDERS)]
        await asyncio.sleep(1)
        if number is signal.SIGKILL:
            await asyncio.to_thread(victim.stop, "broker", signal.SIGKILL)
        else:
            victim.processes["broker"].send_signal(number)
        await asyncio.to_thread(wait_until, lambda: sum(cluster.takers("broker-1")) == 2, "taken over")
        await asyncio.sleep(1)
        if number is signal.SIGKILL:
            await asyncio.to_thread(victim.start, "broker")
        else:
            victim.processes["broker"].send_signal(signal.SIGCONT)
        await asyncio.to_thread(wait_until, lambda: cluster.takers("broker-1")[1] == 2, "given back")
        await asyncio.sleep(1)
        stopping.set()
        await asyncio.gather(*senders)
    assert sum(cluster.takers("broker-1")) == 3
    return placed
