"""What applications do and are told before the leader of their broker is killed.

Offsets, leases, rows, windows, retries: `prepare` makes all of them at once, and says what there is then.
`leave_unanswered` asks for more of them that nobody is told of.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from broker_stack import make_record, produce_body
from group_peer import GroupPeer
from processes import Stack
from shared_peer import Got, SharedPeer
from shared_peer import bodies as bodies_of

from holdmq.client import DeadLetters, Message, Producer, Table, TopicQueue
from holdmq.client.admin import Admin
from holdmq.client.groups import GroupAdmin
from holdmq.errors import Code, HoldMQError
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.group_headers import GroupListRequest, GroupListResponse, GroupRow
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    ProduceRequest,
    ProduceResponse,
    ProduceRun,
    RunResult,
    TopicListRequest,
    TopicListResponse,
    TopicRow,
)
from holdmq.wire.move_headers import (
    TO_DEAD_LETTERS,
    SendBackRequest,
    SendBackResponse,
    SendBackResult,
    SentBack,
)
from holdmq.wire.table_headers import TableChanged, TableChangeRequest

IN_THE_AIR_S: Final = 0.3
"""How long nothing is answered while no copy has it."""
DELAYED: Final = 90
LEVELS_MS: Final = [1_000, 6_000]
LONG_MS: Final = 3_600_000


class Settings(NamedTuple):
    """What topics and groups are like."""

    topics: dict[str, TopicRow]
    groups: dict[str, GroupRow]


class Before(NamedTuple):
    """What was there before the kill."""

    settings: Settings
    generation: int
    versions: dict[str, int]
    acknowledged: list[bytes]
    failed_once: bytes
    due_ms: dict[bytes, int]
    retried_ms: dict[bytes, int]


@asynccontextmanager
async def asking(stack: Stack) -> AsyncIterator[Client]:
    client = Client(f"127.0.0.1:{stack.broker_port}", "client", "asks")
    try:
        yield client
    finally:
        await client.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def settings_at(stack: Stack) -> Settings:
    async with asking(stack) as client:
        topics = await client.call(RequestCode.TOPIC_LIST, TopicListRequest(True))
        groups = await client.call(RequestCode.GROUP_LIST, GroupListRequest())
    return Settings(
        {row.topic: row for row in rows(TopicRow, topics.header(TopicListResponse).topics)},
        {
            row.group: row._replace(members=0)
            for row in rows(GroupRow, groups.header(GroupListResponse).groups)
        },
    )


async def produce(
    client: Client, first: int, *bodies: bytes, topic: str = "windows", epoch: int = 1
) -> RunResult:
    """A PRODUCE of producer 71 with these sequences, as its first attempt or as any other one."""
    records = [make_record(topic, 0, body) for body in bodies]
    body = produce_body(records)
    run = ProduceRun(topic, 0, len(records), 71, epoch, first)
    header = ProduceRequest(zlib.crc32(body), [run])
    reply = await client.call(RequestCode.PRODUCE, header, 40.0, [body], len(body))
    return rows(RunResult, reply.header(ProduceResponse).results)[0]


async def send_back(client: Client, offset: int, delay_level: int = 0) -> SendBackResult:
    request = SendBackRequest("retrying", [SentBack("tasks", 0, offset, 0, delay_level)])
    reply = await client.call(RequestCode.SEND_BACK, request, 40.0)
    return rows(SendBackResult, reply.header(SendBackResponse).results)[0]


async def put(
    client: Client,
    key: str,
    value: bytes,
    request_id: str,
    if_version: int | None = None,
    again: bool = False,
) -> int:
    request = TableChangeRequest("rows", 0, key, request_id, again, if_version)
    reply = await client.call(RequestCode.TABLE_PUT, request, 40.0, [value], len(value))
    return reply.header(TableChanged).version


async def report(stack: Stack, group: str, offset: int) -> None:
    """Say how far a group is in queue 0 of `offsets`."""
    peer = GroupPeer(stack.broker_port, "reports", group)
    try:
        assert await peer.report(0, offset, topic="offsets", wait_for_disk=True) == []
    finally:
        await peer.client.close()


async def prepare_settings(registries: list[str], producer: Producer) -> None:
    async with Admin(registries) as admin, GroupAdmin(registries) as groups:
        await admin.create_topic("kept", 3, 2, order=True, retention_ms=LONG_MS)
        await admin.create_topic("read-only", 2)
        for topic, queues in (("paused", 1), ("removed", 2), ("shrunk", 4)):
            await admin.create_topic(topic, queues)
            await producer.routes.ensure_topic(topic, timeout_s=30)
            for queue_id in range(queues):
                await producer.send(Message(topic, b"old"), queue=TopicQueue(topic, "broker-0", queue_id))
        await admin.update_topic("read-only", perm=4)
        await admin.pause_topic("paused")
        await admin.delete_topic("removed", force=True)
        await admin.hide_queues("shrunk", 2)
        await admin.remove_queues("shrunk", 2, "delete")
        await groups.update("kept", retry_max_times=3, retry_queue_nums=2, delay_levels_ms=[7, 8])
        await groups.update("disabled", consume_enable=False)
        await groups.update("paused")
        await groups.pause("paused")
        await groups.update("removed")
        await groups.delete("removed")


async def prepare_offsets(registries: list[str], stack: Stack, producer: Producer) -> int:
    """Offsets that were reported, moved back and cloned; the generation of a lease that is held."""
    async with GroupAdmin(registries) as groups:
        await producer.routes.ensure_topic("offsets", timeout_s=30)
        queue = TopicQueue("offsets", "broker-0", 0)
        await producer.send_batch([Message("offsets", b"%d" % n) for n in range(20)], queue=queue)
        for group in ("reported", "rewound", "forgotten"):
            await groups.update(group)
            await report(stack, group, 15)
        await groups.reset("rewound", "offsets", "offset", 4, queues=[queue])
        await groups.clone("rewound", "cloned")
        await groups.delete("forgotten")
    member = GroupPeer(stack.broker_port, "member", "leased")
    await member.join("offsets")
    while not (await member.lease(0, topic="offsets"))[0].generation:
        await asyncio.sleep(0.05)
    await member.client.close()
    return member.generations["offsets", 0]


async def prepare_rows(registries: list[str], client: Client) -> dict[str, int]:
    """Rows by their key, each with the version that its last change was told."""
    async with Table("rows", registries) as table:
        await table.create(1)
        first = await table.put("counter", b"1", if_version=-1)
        versions = {
            "before": first,
            "counter": await table.put("counter", b"2", if_version=first),
            "deleted": await table.put("deleted", b"1"),
            "repeated": await put(client, "repeated", b"once", "one"),
            "air": await table.put("air", b"old"),
        }
        await table.delete("deleted", if_version=versions["deleted"])
        await table.put("repeated", b"later", if_version=versions["repeated"])
        return versions


async def prepare_shared(stack: Stack, producer: Producer) -> tuple[list[bytes], bytes]:
    """What a shared group has acknowledged, and what it gave back; all else is at a member."""
    await producer.routes.ensure_topic("jobs", timeout_s=30)
    queue = TopicQueue("jobs", "broker-0", 0)
    await producer.send_batch([Message("jobs", b"%d" % n) for n in range(10)], queue=queue)
    peer = await SharedPeer(f"127.0.0.1:{stack.broker_port}").open("workers", "jobs", invisible_ms=LONG_MS)
    got: list[Got] = []
    while len(got) < 8:
        got += await peer.pull(8 - len(got), 1_000)
    assert await peer.ack(got[1], got[4], got[6]) == []
    assert await peer.nack(got[2]) == []
    [again] = await peer.pull(1)
    assert (again.body, again.attempts) == (got[2].body, 1)
    await peer.state("workers")
    await peer.client.close()
    return bodies_of([got[1], got[4], got[6]]), again.body


async def prepare_tasks(registries: list[str], client: Client, producer: Producer) -> dict[bytes, int]:
    """Messages of a group that are retried while nobody leads (when), later (when), and not any more."""
    async with GroupAdmin(registries) as groups, DeadLetters(registries) as letters:
        await groups.update("retrying", delay_levels_ms=LEVELS_MS, retry_max_times=1)
        await producer.routes.ensure_topic("tasks", timeout_s=30)
        queue = TopicQueue("tasks", "broker-0", 0)
        names = [b"fails", b"later", b"dead", b"resent", b"air"]
        await producer.send_batch([Message("tasks", name) for name in names], queue=queue)
        for offset in (2, 3):
            assert (await send_back(client, offset, TO_DEAD_LETTERS)).status == Code.OK
        assert (await letters.resend("retrying", [("broker-0", 1)], by="somebody")).resent == 1
        return {names[at]: (await send_back(client, at, at + 1)).due_ms for at in range(2)}


async def prepare_delayed(producer: Producer) -> dict[bytes, int]:
    """Messages that are due from now on, most of them while nobody leads and after it; when each is."""
    await producer.routes.ensure_topic("delayed", timeout_s=30)
    begin = now_ms()
    due_ms = {b"%d" % n: begin + 500 + 100 * n for n in range(DELAYED)} | {b"far": begin + LONG_MS}
    await asyncio.gather(*(producer.send(Message("delayed", body), due=due) for body, due in due_ms.items()))
    return due_ms


async def prepare(registries: list[str], stack: Stack) -> Before:
    async with asking(stack) as client, Producer(registries) as producer:
        await prepare_settings(registries, producer)
        generation = await prepare_offsets(registries, stack, producer)
        versions = await prepare_rows(registries, client)
        await producer.routes.ensure_topic("windows", timeout_s=30)
        assert (await produce(client, 0, b"0", b"1", b"2")).base_offset == 0
        acknowledged, failed_once = await prepare_shared(stack, producer)
        retried_ms = await prepare_tasks(registries, client, producer)
        due_ms = await prepare_delayed(producer)
        found = await settings_at(stack)
    return Before(found, generation, versions, acknowledged, failed_once, due_ms, retried_ms)


async def leave_unanswered(stack: Stack, versions: dict[str, int]) -> None:
    """Ask for changes that no copy takes, and lose the connection."""
    async with asking(stack) as client:
        asked = [
            asyncio.ensure_future(request)
            for request in (
                produce(client, 3, b"3", b"4"),
                send_back(client, 4, 1),
                put(client, "air", b"new", "air", versions["air"]),
            )
        ]
        done, _ = await asyncio.wait(asked, timeout=IN_THE_AIR_S)
        assert not done, "what no copy has is not acknowledged"
    assert all(isinstance(e, HoldMQError) for e in await asyncio.gather(*asked, return_exceptions=True))
