"""A broker in this process: a real store of the tested engine, real RPC over loopback."""

from __future__ import annotations

import asyncio
import itertools
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import state_in_log
import tested_engine
from any_disk import ANY_DISK

from broker.alerts.core.shard_copies import OneCopy
from broker.app.calls import Identity
from broker.app.compose import Broker, now_ms
from broker.app.engine import KeptInLog, OpenableStore
from broker.readers.core.table import SILENT_S, ReaderTable
from broker.readers.readers import TopicReaders
from broker.reading.core.far_reads import FarReads, NextReads, ReadCounts
from broker.state.home import StateHome
from broker.topics.core.table import TopicTable
from broker.topics.requests import TopicRequests
from holdmq.config.alarms import AlarmsSection
from holdmq.config.changes import Reloaded
from holdmq.config.model import BrokerSection, StorageSection
from holdmq.errors import Code, RemoteError
from holdmq.files.disk import Disk, RealDisk
from holdmq.record.batch import split_records
from holdmq.record.codec import decode_record, encode_record
from holdmq.record.properties import encode_properties
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Reply
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    ProduceRequest,
    ProduceResponse,
    ProduceRun,
    PulledQueue,
    PullQueue,
    PullRequest,
    PullResponse,
    RunResult,
    TopicCreateRequest,
)
from storage.api.store import NO_LOSS
from storage.kv.store import KvStore
from storage.log.state.disk import LogDisk
from storage.log.store import open_store


def make_record(topic: str, queue_id: int, body: bytes, tag: str | None = None) -> bytes:
    properties = encode_properties([("TAGS", tag)] if tag is not None else [])
    return encode_record(topic.encode(), queue_id, body, properties, 1_700_000_000_000, bytes(8))


def produce_body(records: Sequence[bytes]) -> bytes:
    sizes = struct.pack(f">I{len(records)}I", len(records), *map(len, records))
    return sizes + b"".join(records)


class Stack:
    """A running broker and a client of it."""

    def __init__(self, server: Broker, store: OpenableStore, client: Client) -> None:
        self.server = server
        self.store = store
        self.client = client
        self.sequences: dict[tuple[int, str, int], itertools.count[int]] = {}

    async def create(self, topic: str, queues: int = 4, key_levels: int = 1) -> None:
        await self.client.call(RequestCode.TOPIC_CREATE, TopicCreateRequest(topic, queues, key_levels))

    async def produce_raw(
        self, body: bytes, runs: list[ProduceRun], crc: int | None = None
    ) -> ProduceResponse:
        header = ProduceRequest(zlib.crc32(body) if crc is None else crc, runs, want_positions=True)
        reply = await self.client.call(RequestCode.PRODUCE, header, 40.0, [body], len(body))
        return reply.header(ProduceResponse)

    async def produce(
        self, topic: str, queue_id: int, *messages: tuple[bytes, str | None], producer_id: int = 1
    ) -> RunResult:
        records = [make_record(topic, queue_id, body, tag) for body, tag in messages]
        first = self.next_sequence(topic, queue_id, len(records), producer_id)
        run = ProduceRun(topic, queue_id, len(records), producer_id, 1, first)
        response = await self.produce_raw(produce_body(records), [run])
        result = rows(RunResult, response.results)[0]
        if result.status == Code.QUEUE_UNKNOWN:  # no sequence is consumed where no queue is
            self.sequences[producer_id, topic, queue_id] = itertools.count(first)
        return result

    def next_sequence(self, topic: str, queue_id: int, count: int, producer_id: int = 1) -> int:
        counter = self.sequences.setdefault((producer_id, topic, queue_id), itertools.count())
        first = next(counter)
        for _ in range(count - 1):
            next(counter)
        return first

    async def pull(
        self, *queues: PullQueue, hold_ms: int = 0, filter_id: int | None = None, max_bytes: int = 1 << 20
    ) -> tuple[list[PulledQueue], list[bytes]]:
        """The rows of the answer, and the bodies of all its records."""
        reply = await self.client.call(
            RequestCode.PULL, PullRequest(list(queues), max_bytes, hold_ms, filter_id), 40.0 + hold_ms / 1e3
        )
        return rows(PulledQueue, reply.header(PullResponse).queues), bodies(reply)


def bodies(reply: Reply) -> list[bytes]:
    """The bodies of the records in an answer, in order."""
    out, pos = [], 0
    for size in split_records(reply.body).tolist():
        out.append(bytes(decode_record(reply.body, pos).body))
        pos += size
    return out


Start = Callable[..., Awaitable[Stack]]


async def _nothing_to_reload() -> Reloaded:
    return Reloaded([], [])


async def start_broker(directory: Path, **settings: object) -> Stack:
    """Start a broker over `directory`/store, or what stands for that in the key-value server."""
    engine: dict[str, object] = {}
    if tested_engine.is_kv():
        engine = {"engine": "kv", "kv": tested_engine.kv_section(directory)}
    section = StorageSection.model_validate(
        {"data_dir": str(directory / "store"), "segment_size_bytes": 16 << 20, **ANY_DISK, **engine}
    )
    table = TopicTable(int(str(settings.get("topics_max", 100))), 4)
    clock_ms = cast("Callable[[], int]", settings.get("clock_ms", now_ms))
    is_in_log = bool(settings.get("is_state_in_log", state_in_log.is_chosen()))
    store, disk, prepare = _store_of(
        section, str(settings.get("name", "broker-0")), table, clock_ms, is_in_log
    )
    readers = TopicReaders(ReaderTable(float(str(settings.get("reader_silent_s", SILENT_S)))))
    topics = TopicRequests(
        directory / "store" / "config" / "topic.json",
        table,
        bool(settings.get("auto_create", True)),
        readers,
        float(str(settings.get("hide_grace_s", 0.0))),
        disk,
        float(str(settings.get("temporary_unread_s", 60.0))),
    )
    if prepare is None:
        topics.load()
    await asyncio.to_thread(store.open)
    try:
        if prepare is not None:
            await asyncio.to_thread(prepare)
            await asyncio.to_thread(topics.load)
        return await _serve(directory, section, store, disk, readers, topics, clock_ms, settings)
    except BaseException:
        await asyncio.to_thread(store.close)
        raise


def _store_of(
    section: StorageSection, name: str, table: TopicTable, clock_ms: Callable[[], int], is_state_in_log: bool
) -> tuple[OpenableStore, Disk, Callable[[], object] | None]:
    """A broker's store, where its rooms have their state files, and what makes them ready once it is open."""
    post = asyncio.get_running_loop().call_soon_threadsafe
    if section.engine == "kv":
        kv = KvStore(section, name, table.key_levels, post, is_table=table.is_table, clock_ms=clock_ms)
        return kv, kv.disk, list
    root = Path(section.data_dir)
    home = StateHome(root / "config", RealDisk())
    kept = KeptInLog(table, root, home, False) if is_state_in_log or home.is_marked() else None
    store = open_store(
        section,
        name,
        table.key_levels,
        post,
        is_table=table.is_table,
        clock_ms=clock_ms,
        state=None if kept is None else kept.state,
    )
    if kept is None:
        return store, RealDisk(), None
    if is_state_in_log:
        state_in_log.remember(root, kept.state.files)
    logged = LogDisk(kept.state.files, store.append_state, post, lambda: store.synced_position, root)
    prepare = partial(kept.prepare, logged, is_state_in_log, store, post)
    return store, logged if is_state_in_log else RealDisk(), prepare


async def _serve(
    directory: Path,
    section: StorageSection,
    store: OpenableStore,
    disk: Disk,
    readers: TopicReaders,
    topics: TopicRequests,
    clock_ms: Callable[[], int],
    settings: Mapping[str, object],
) -> Stack:
    """Start all that stands on an open store."""
    overrides = {k: v for k, v in settings.items() if k in BrokerSection.model_fields}
    broker = Broker(
        Identity(str(settings.get("name", "broker-0")), "test", section.record_max_bytes),
        store,
        store.log_order if settings.get("has_log_order", True) else None,
        readers,
        topics,
        directory / "store" / "config",
        disk,
        list,
        lambda: NO_LOSS,
        isinstance(disk, LogDisk),
        BrokerSection(**overrides),  # type: ignore[arg-type]
        AlarmsSection(),
        None,
        OneCopy(),
        cast("NextReads", settings.get("next_reads", FarReads(list, lambda: 0, 0, ReadCounts()))),
        is_fenced=False,
        reload=_nothing_to_reload,
        clock_ms=clock_ms,
    )
    await asyncio.to_thread(broker.load)
    broker.start()
    broker.start_tables(True)
    await broker.rpc.listen("127.0.0.1", 0)
    return Stack(broker, store, Client(f"127.0.0.1:{broker.rpc.port}", "client", "test"))


async def stop_broker(stack: Stack) -> None:
    """End a broker and its client."""
    await stack.client.close()
    await stack.server.drain()
    await asyncio.to_thread(stack.server.close)
    await asyncio.to_thread(stack.store.close)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start a broker on the same directory each time it is called; all end with the test."""
    stacks: list[Stack] = []

    async def run(**settings: object) -> Stack:
        before = stacks.pop() if stacks else None
        if before is not None:
            await stop_broker(before)
        stacks.append(await start_broker(tmp_path, **settings))
        if before is not None:
            # Its producers live on: the broker knows their windows.
            stacks[0].sequences = before.sequences
        return stacks[0]

    yield run
    for stack in stacks:
        await stop_broker(stack)


@pytest.fixture
async def broker(start: Start) -> Stack:
    """One running broker."""
    return await start()


async def refused(call: Awaitable[object]) -> Code:
    """The code with which a request is refused; it must be."""
    with pytest.raises(RemoteError) as raised:
        await call
    return raised.value.code


async def until(condition: Callable[[], object]) -> None:
    """Wait for what comes by itself, soon."""
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.01)
