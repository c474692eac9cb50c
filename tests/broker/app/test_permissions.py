"""What an access key may do at a broker: runs and queues are refused one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_stack import Stack, make_record, produce_body
from security import READER_SECRET, SECRET, write_keys

from holdmq.errors import Code, RemoteError
from holdmq.rpc.auth import ServerSecurity
from holdmq.rpc.client import Client
from holdmq.rpc.security import Security
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import ProduceRun, PullQueue, ReadOpenRequest, RunResult, TopicCreateRequest
from holdmq.wire.offset_headers import OffsetReport, OffsetReportRequest, OffsetResetRequest
from holdmq.wire.table_headers import TableChangeRequest
from holdmq.wire.topic_headers import TopicDeleteRequest


@pytest.fixture
async def limited(broker: Stack, tmp_path: Path) -> AsyncIterator[Stack]:
    """The broker through a client whose key is good for the topic `orders` only; `other` exists too."""
    for topic in ("orders", "other"):
        await broker.create(topic, queues=1)
    keys = write_keys(tmp_path / "keys.toml")
    broker.server.rpc.security = ServerSecurity(allow_anonymous=False, keys_file=keys)
    everything = broker.client
    broker.client = Client(everything.address, "client", "orders", security=Security("orders", SECRET))
    yield broker
    await broker.client.close()
    broker.client = everything


async def test_produce_refuses_only_the_runs_that_are_not_allowed(limited: Stack) -> None:
    topics = ["orders", "other", "orders", "nowhere"]
    body = produce_body([make_record(topic, 0, b"x") for topic in topics])
    runs = [ProduceRun(topic, 0, 1, 7, 1, first) for topic, first in zip(topics, (0, 0, 1, 0), strict=True)]
    results = rows(RunResult, (await limited.produce_raw(body, runs)).results)
    assert [r.status for r in results] == [Code.OK, Code.NOT_PERMITTED, Code.OK, Code.NOT_PERMITTED]
    assert [r.base_offset for r in results] == [0, -1, 1, -1]
    assert "'orders' may not produce to topic 'other'" in results[1].remark


async def test_a_refused_run_costs_the_broker_no_window(limited: Stack) -> None:
    windows = len(limited.server.produce.sequences)
    for producer_id in range(1, 50):
        assert (await limited.produce("other", 0, (b"x", None), producer_id=producer_id)).status == (
            Code.NOT_PERMITTED
        )
    assert len(limited.server.produce.sequences) == windows


async def test_pull_refuses_only_the_queues_that_are_not_allowed(limited: Stack) -> None:
    await limited.produce("orders", 0, (b"mine", None))
    pulled, got = await limited.pull(
        PullQueue("other", 0, 0, 0), PullQueue("orders", 0, 0, 0), hold_ms=10_000
    )
    assert [queue.status for queue in pulled] == [Code.NOT_PERMITTED, Code.OK]
    assert got == [b"mine"]
    # What keeps a temporary topic is who may read it.
    readers = limited.server.readers.table
    assert [len(readers.of(topic)) for topic in ("other", "orders")] == [0, 1]


async def test_reading_the_whole_log_takes_a_reader(limited: Stack) -> None:
    with pytest.raises(RemoteError, match="role reader, service or admin") as caught:
        await limited.client.call(RequestCode.READ_OPEN, ReadOpenRequest(1, 0, 0))
    assert caught.value.code == Code.NOT_PERMITTED


async def test_a_client_creates_what_it_uses_and_nothing_else(limited: Stack) -> None:
    await limited.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest("orders", by_use=True))
    for request in (TopicCreateRequest("third", by_use=True), TopicCreateRequest("orders")):
        with pytest.raises(RemoteError, match="may not"):
            await limited.client.call(RequestCode.TOPIC_CREATE, request)


async def test_a_reader_reads_every_topic_and_can_write_set_offsets_and_delete_nowhere(
    broker: Stack, tmp_path: Path
) -> None:
    await broker.create("orders", queues=1)
    await broker.produce("orders", 0, (b"theirs", None))
    keys = write_keys(tmp_path / "keys.toml")
    broker.server.rpc.security = ServerSecurity(allow_anonymous=False, keys_file=keys)
    everything = broker.client
    broker.client = Client(
        everything.address, "console", "reader", security=Security("reader", READER_SECRET)
    )
    try:
        _, got = await broker.pull(PullQueue("orders", 0, 0, 0), hold_ms=10_000)
        assert got == [b"theirs"]
        await broker.client.call(RequestCode.READ_OPEN, ReadOpenRequest(1, 0, 0))
        result = await broker.produce("orders", 0, (b"mine", None))
        assert result.status == Code.NOT_PERMITTED
        offsets = OffsetReportRequest("app", [OffsetReport("orders", 0, 0, 1, 0)])
        reset = OffsetResetRequest("app", "orders", "latest")
        for code, header in (
            (RequestCode.OFFSET_REPORT, offsets),
            (RequestCode.OFFSET_RESET, reset),
            (RequestCode.TOPIC_CREATE, TopicCreateRequest("other", by_use=True)),
            (RequestCode.TOPIC_DELETE, TopicDeleteRequest("orders")),
            (RequestCode.TABLE_DELETE, TableChangeRequest("orders", 0, "key", "1")),
        ):
            with pytest.raises(RemoteError, match="'reader' may not") as caught:
                await broker.client.call(code, header)
            assert caught.value.code == Code.NOT_PERMITTED
        _, got = await broker.pull(PullQueue("orders", 0, 0, 0), hold_ms=0)
        assert got == [b"theirs"]
    finally:
        await broker.client.close()
        broker.client = everything
