"""Consumers read from the replica that a broker names, and from the broker whatever goes wrong there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdmq.client import Message, PullConsumer, RouteTable, TopicQueue
from holdmq.client import pull_consumer as module
from holdmq.client.group_pulls import GroupPulls
from holdmq.client.process_queue import ProcessQueue
from holdmq.client.subscriptions import TagFilter
from holdmq.errors import Code, RemoteError, UsageError
from holdmq.record.codec import decode_record, encode_message
from holdmq.wire.replica_reads import ReplicaReads

COUNT = 40
NEAR = 4
"""Messages before the end that the broker keeps for itself."""
RECORD_BYTES = len(encode_message(Message("t", b"00", "a"), 0, 1))


@pytest.fixture
async def replica(broker: Any, registries: list[str]) -> AsyncIterator[Any]:
    """A copy of the broker's log at an address of its own, which the broker names for what is far behind."""
    await broker.add_topic("t")
    for number in range(COUNT):
        record = encode_message(Message("t", b"%02d" % number, "a"), 0, 1)
        broker.append("t", 0, record)
    copy = type(broker)("copy", int(registries[0].rpartition(":")[2]))
    copy.topics, copy.logs = broker.topics, broker.logs
    await copy.rpc.listen("127.0.0.1", 0)
    address = f"127.0.0.1:{copy.rpc.port}"

    def names(pull: Any, row: Any) -> str:
        far = row.next_offset < min(row.end_offset, COUNT - NEAR)
        return address if pull.replica_reads != ReplicaReads.NEVER and far else ""

    broker.names = copy.names = names
    yield copy
    await copy.stop()


def wanted(peer: Any) -> list[int]:
    return [pull.replica_reads for pull in peer.pulls]


async def read(consumer: PullConsumer, count: int = COUNT, at_once: int = 2) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        bodies += [message.body for message in await consumer.poll(at_once * RECORD_BYTES, hold_ms=5_000)]
    return bodies


ALL = [b"%02d" % number for number in range(COUNT)]


async def test_what_is_far_behind_comes_from_the_replica_and_the_rest_from_the_broker(
    registries: list[str], broker: Any, replica: Any
) -> None:
    async with PullConsumer(registries) as consumer:
        await consumer.assign(["t"], "earliest")
        assert await read(consumer) == ALL
        assert set(wanted(replica)) == {ReplicaReads.ALLOW}
        assert len(replica.pulls) >= (COUNT - NEAR) // 2 - 2
        assert all(pull.hold_ms == 0 for pull in replica.pulls), "nothing is waited for at a replica"
        assert ReplicaReads.NEVER in wanted(broker), "it was sent back a moment ago"
        assert await consumer.poll(hold_ms=0) == []
        assert {pull.hold_ms for pull in broker.pulls[1:-1]} == {module.BACK_HOLD_MS}, "it comes back soon"


async def test_who_wants_no_replica_asks_none(registries: list[str], broker: Any, replica: Any) -> None:
    async with PullConsumer(registries, read_replicas="never") as consumer:
        await consumer.assign(["t"], "earliest")
        assert await read(consumer) == ALL
    assert (replica.pulls, set(wanted(broker))) == ([], {ReplicaReads.NEVER})
    with pytest.raises(UsageError, match="'always' is not one of never, allow, prefer"):
        PullConsumer(registries, read_replicas="always")  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [Code.NOT_LEADER, Code.BUSY, Code.SYSTEM_ERROR, Code.NOT_PERMITTED])
async def test_a_replica_that_refuses_costs_nothing_but_a_question(
    registries: list[str], broker: Any, replica: Any, code: Code
) -> None:
    replica.refusal = RemoteError(code, "not here")
    async with PullConsumer(registries) as consumer:
        await consumer.assign(["t"], "earliest")
        assert await read(consumer) == ALL
    assert len(replica.pulls) == 1


@pytest.mark.parametrize("code", [Code.OFFSET_AHEAD, Code.OFFSET_BEHIND, Code.CORRUPT, Code.TOPIC_UNKNOWN])
async def test_what_a_replica_says_of_a_queue_is_not_believed_unless_it_has_records(
    registries: list[str], broker: Any, replica: Any, code: Code
) -> None:
    replica.cuts = {("t", 0): code}
    if code == Code.TOPIC_UNKNOWN:
        replica.topics = {}
    async with PullConsumer(registries) as consumer:
        await consumer.assign(["t"], "earliest")
        assert await read(consumer) == ALL
    assert replica.pulls


async def test_a_replica_that_dies_in_the_middle_is_followed_by_the_broker(
    registries: list[str], broker: Any, replica: Any
) -> None:
    async with PullConsumer(registries) as consumer:
        await consumer.assign(["t"], "earliest")
        got = await read(consumer, COUNT // 2)
        assert replica.pulls
        await replica.stop()
        got += await read(consumer, COUNT - len(got))
    assert got == ALL


async def test_a_replica_that_nobody_reaches_is_not_waited_for(
    registries: list[str], broker: Any, replica: Any
) -> None:
    await replica.rpc.close()
    async with PullConsumer(registries) as consumer:
        await consumer.assign(["t"], "earliest")
        assert await read(consumer) == ALL


async def test_a_filter_is_registered_at_the_replica_too(
    registries: list[str], broker: Any, replica: Any
) -> None:
    async with PullConsumer(registries, tags=["a"]) as consumer:
        await consumer.assign(["t"], "earliest")
        assert await read(consumer) == ALL
    assert replica.filters
    assert len(replica.pulls) > 1


async def test_a_group_pulls_from_the_replica_under_its_leases_and_finds_back(
    registries: list[str], broker: Any, replica: Any, until: Any
) -> None:
    routes = RouteTable(registries, "me")
    routes.start()
    await routes.topic("t")
    link = routes.link("broker-0")
    await until(lambda: link.is_up)
    queue = TopicQueue("t", "broker-0", 0)
    process = ProcessQueue(queue, 7, 0, 1)
    queues = {queue: process}
    bodies: list[bytes] = []

    def put(came: ProcessQueue) -> None:
        while (taken := came.take()) is not None:
            bodies.append(bytes(decode_record(taken.records, taken.at).body))
            came.finish(taken.offset)
        if len(bodies) == COUNT // 2:
            replica.refusal = RemoteError(Code.NOT_LEADER, "a leads")

    pulls = GroupPulls(
        routes, "g", queues, {"t": TagFilter()}, put, lambda _: None, buffer_max_bytes=4 * RECORD_BYTES
    )
    pulls.pull_soon()
    await until(lambda: len(bodies) == COUNT)
    assert bodies == ALL
    assert len(replica.pulls) > 5
    assert all((pull.group, pull.generations) == ("g", [7]) for pull in replica.pulls)
    assert wanted(broker)[0] == ReplicaReads.ALLOW
    pulls.close()
    await routes.close()
