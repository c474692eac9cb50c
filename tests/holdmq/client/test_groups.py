"""Groups over two brokers: what is spread, what one broker alone knows, what must not happen by half."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from group_peer import GroupPeer
from two_brokers import Cluster, two_brokers

from holdmq.client.admin import Admin
from holdmq.client.groups import GroupAdmin
from holdmq.client.producer import Producer
from holdmq.errors import Code, RemoteError, UsageError
from holdmq.message import Message, TopicQueue
from holdmq.wire.offset_headers import TO_EARLIEST, TO_LATEST, TO_OFFSET


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from two_brokers(tmp_path_factory.mktemp("groups"))


async def fill(cluster: Cluster, topic: str) -> None:
    """Three messages in the queue 0 of a topic at each broker."""
    async with Producer(cluster.registries) as producer:
        for broker in ("broker-0", "broker-1"):
            for i in range(3):
                await producer.send(Message(topic, b"%d" % i), queue=TopicQueue(topic, broker, 0))


async def create(cluster: Cluster, topic: str) -> None:
    async with Admin(cluster.registries) as admin:
        await admin.create_topic(topic, queues=1)


async def test_a_groups_settings_are_the_same_everywhere(cluster: Cluster) -> None:
    async with GroupAdmin(cluster.registries) as groups:
        made = await groups.update("settings", retry_max_times=3)
        assert set(made.rows) == {"broker-0", "broker-1"}
        paused = await groups.pause("settings")
        assert all(row.is_paused and row.retry_max_times == 3 for row in paused.rows.values())
        assert (await groups.groups())["settings"].mode == ""
        await groups.delete("settings")
        assert "settings" not in await groups.groups()
        with pytest.raises(RemoteError) as refused:
            await groups.delete("settings")
        assert refused.value.code == Code.GROUP_UNKNOWN


async def test_a_group_that_one_broker_alone_knows_is_shown_moved_and_deleted(cluster: Cluster) -> None:
    await create(cluster, "one-sided")
    await fill(cluster, "one-sided")
    peer = GroupPeer(cluster.second.broker_port, "one", "alone")
    await peer.join("one-sided")
    await peer.lease(0, topic="one-sided")
    await peer.report(0, 2, topic="one-sided")
    async with GroupAdmin(cluster.registries) as groups:
        (progress,) = await groups.progress("alone")
        assert (progress.queue.broker, progress.offset, progress.lag) == ("broker-1", 2, 1)
        assert progress.lag_ms(progress.oldest_ms + 7) == 7
        assert {b: [m.client_id for m in found] for b, found in (await groups.members("alone")).items()} == {
            "broker-1": ["one"]
        }
        with pytest.raises(RemoteError, match="members: one"):
            await groups.delete("alone")
        (moved,) = await groups.reset("alone", "one-sided", TO_EARLIEST)
        assert (moved.queue.broker, moved.before, moved.after) == ("broker-1", 2, 0)
        await peer.client.close()
        while (await groups.members("alone")).get("broker-1"):
            await asyncio.sleep(0.02)  # the broker learns of it in its own time
        await groups.delete("alone")
        assert "alone" not in await groups.groups()


async def test_resets_and_clones_reach_every_queue_or_those_named(cluster: Cluster) -> None:
    await create(cluster, "spread")
    await fill(cluster, "spread")
    async with GroupAdmin(cluster.registries) as groups:
        await groups.update("spread")
        planned = await groups.reset("spread", "spread", TO_LATEST, dry_run=True)
        assert [(m.queue.broker, m.before, m.after) for m in planned] == [
            ("broker-0", -1, 3),
            ("broker-1", -1, 3),
        ]
        assert [p.offset for p in await groups.progress("spread", ["spread"])] == [-1, -1]
        assert await groups.reset("spread", "spread", TO_LATEST) == planned
        queue = TopicQueue("spread", "broker-1", 0)
        (only,) = await groups.reset("spread", "spread", TO_OFFSET, 1, queues=[queue])
        assert only == (queue, 3, 1)
        assert [p.offset for p in await groups.progress("spread")] == [3, 1]
        cloned = await groups.clone("spread", "spread-2")
        assert [(m.queue.broker, m.after) for m in cloned] == [("broker-0", 3), ("broker-1", 1)]
        assert [p.offset for p in await groups.progress("spread-2", read_type="store")] == [3, 1]


async def test_a_refusal_of_one_broker_leaves_the_others_as_they_were(cluster: Cluster) -> None:
    await create(cluster, "half")
    await fill(cluster, "half")
    peer = GroupPeer(cluster.second.broker_port, "one", "half-target")
    async with GroupAdmin(cluster.registries) as groups:
        await groups.update("half")
        await groups.reset("half", "half", TO_LATEST)
        await peer.join("half")
        with pytest.raises(RemoteError) as refused:
            await groups.clone("half", "half-target")
        assert refused.value.code == Code.GROUP_IN_USE
        assert "broker-0" not in (await groups.groups())["half-target"].rows
    await peer.client.close()


async def test_what_no_broker_can_do_is_refused_here(cluster: Cluster) -> None:
    async with GroupAdmin(cluster.registries) as groups:
        for wrong in ("%RETRY%g", "a b", ""):
            with pytest.raises(UsageError):
                await groups.update(wrong)
        with pytest.raises(UsageError, match="reset to"):
            await groups.reset("g", "t", "yesterday")
        with pytest.raises(UsageError, match="no queue of topic"):
            await groups.reset("g", "t", TO_LATEST, queues=[TopicQueue("t", "elsewhere", 0)])
        for call in (groups.members("nobody"), groups.progress("nobody"), groups.pause("nobody")):
            with pytest.raises(RemoteError) as refused:
                await call
            assert refused.value.code == Code.GROUP_UNKNOWN
