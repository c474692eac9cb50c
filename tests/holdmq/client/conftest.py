"""A registry (the real one) and brokers that keep messages in memory and fail as they are told."""

from __future__ import annotations

import asyncio
import struct
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from processes import free_port, holdmq_stack

from broker.produce.core.sequences import Sequences
from holdmq.errors import BusyError, Code, RemoteError
from holdmq.names.topics import tag_matches
from holdmq.record.codec import decode_record, tag_hash, tag_of_record
from holdmq.rpc.client import Client
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    PROTOCOL_VERSION,
    BrokerRegisterRequest,
    BrokerStatusResponse,
    ConnectionListResponse,
    ConnectionRow,
    FilterSetRequest,
    FilterSetResponse,
    FilterTerm,
    HelloRequest,
    HelloResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceRun,
    PulledQueue,
    PullQueue,
    PullRequest,
    PullResponse,
    QueueBounds,
    QueueBoundsRequest,
    QueueBoundsResponse,
    RunResult,
    TermKind,
    TopicCreateRequest,
    TopicCreateResponse,
    TopicListRequest,
    TopicListResponse,
    TopicRow,
    TopicStats,
)
from registry.server import RegistryServer

__all__ = ["holdmq_stack"]

STORE_ID = b"fakestor"
Act = Callable[[Request, "FakeBroker"], bool]
"""What to do with a PRODUCE in place of storing it; True = done with it."""


class FakeBroker:
    """One broker: `logs` per (topic, queue id), `acts` for the next PRODUCEs, `pulls` that were asked."""

    def __init__(self, name: str, registry_port: int) -> None:
        self.name = name
        self.topics: dict[str, TopicRow] = {}
        self.logs: dict[tuple[str, int], list[bytes]] = {}
        self.first: dict[tuple[str, int], int] = {}
        self.acts: deque[Act] = deque()
        self.produces: list[list[ProduceRun]] = []
        self.pulls: list[PullRequest] = []
        self.filters: dict[tuple[Connection, int], set[FilterTerm]] = {}
        self.sequences = Sequences()
        self.queues_default = 2
        self.auto_create = True
        self.record_max_bytes = 4 << 20
        self.message_bytes_min = 0
        self.epoch = 1
        self.lead_epoch = 0
        """In which it leads its copies; 0 = it has none."""
        self.deposed: list[Server] = []
        """Who led before."""
        self.appended: list[bytes] = []
        """Every record of any queue, in the order of coming."""
        self.cuts: dict[tuple[str, int], Code] = {}
        self.refusal: RemoteError | None = None
        """What every PULL is answered with; None = with what there is."""
        self.names: Callable[[PullRequest, PulledQueue], str] = lambda _pull, _row: ""
        """The replica to ask for what follows a row."""
        self._held: list[tuple[Request, PullRequest, asyncio.TimerHandle]] = []
        self._registration = Client(f"127.0.0.1:{registry_port}", "broker", name)
        self._version = 0
        self.rpc = self._server()

    def _server(self) -> Server:
        handlers = {
            RequestCode.PRODUCE: self._produce,
            RequestCode.PULL: self._pull,
            RequestCode.FILTER_SET: self._filter_set,
            RequestCode.TOPIC_CREATE: self._topic_create,
            RequestCode.TOPIC_LIST: self._topic_list,
            RequestCode.QUEUE_BOUNDS: self._queue_bounds,
            RequestCode.BROKER_STATUS: self._status,
            RequestCode.CONNECTION_LIST: self._connections,
        }
        return Server(handlers, self._hello, 8 << 20)

    async def start(self, port: int = 0) -> None:
        await self.rpc.listen("127.0.0.1", port)
        await self.register()

    async def stop(self) -> None:
        """Go away as a crash does: connections and registration end."""
        await self._registration.close()
        for _, _, timer in self._held:
            timer.cancel()
        self._held.clear()
        for old in self.deposed:
            await old.close()
        await self.rpc.close()

    async def move(self) -> None:
        """Another copy, which has all that is confirmed, leads at another address in the next epoch.

        The old leader stays there, with the connections that it has.
        """
        old, self.rpc = self.rpc, self._server()
        self.deposed.append(old)
        await self.rpc.listen("127.0.0.1", 0)
        self.lead_epoch += 1
        await self.register()

    async def restart(self, port: int = 0) -> None:
        self.rpc = self._server()
        self._registration = Client(self._registration.address, "broker", self.name)
        await self.start(port)

    async def register(self) -> None:
        self._version += 1
        row = BrokerRegisterRequest(
            "test",
            self.name,
            0,
            f"127.0.0.1:{self.rpc.port}",
            self._version,
            list(self.topics.values()),
            self.lead_epoch,
        )
        await self._registration.call(RequestCode.BROKER_REGISTER, row)

    async def add_topic(self, topic: str, queues: int = 2, key_levels: int = 1, perm: int = 6) -> None:
        self.topics[topic] = TopicRow(topic, queues, queues, perm, "log", key_levels, False)
        await self.register()

    def bodies(self, topic: str, queue_id: int | None = None) -> list[bytes]:
        wanted = [key for key in sorted(self.logs) if key[0] == topic and queue_id in (None, key[1])]
        return [decode_record(record).body for key in wanted for record in self.logs[key]]

    def append(self, topic: str, queue_id: int, record: bytes) -> int:
        log = self.logs.setdefault((topic, queue_id), [])
        offset = len(log) + self.first.get((topic, queue_id), 0)
        stamped = bytearray(record)
        stamped[20:28] = offset.to_bytes(8, "big")
        log.append(bytes(stamped))
        self.appended.append(log[-1])
        return offset

    def close_connections(self) -> None:
        for connection in list(self.rpc.connections):
            connection.close()

    # Requests

    def _hello(self, _connection: Connection, _hello: HelloRequest) -> HelloResponse:
        return HelloResponse(
            PROTOCOL_VERSION,
            self.name,
            "test",
            time.time_ns() // 1_000_000,
            STORE_ID,
            self.epoch,
            self.record_max_bytes,
            8 << 20,
            message_bytes_min=self.message_bytes_min,
        )

    def _produce(self, request: Request) -> None:
        header = request.header(ProduceRequest)
        runs = rows(ProduceRun, header.runs)
        self.produces.append(runs)
        if self.acts and self.acts.popleft()(request, self):
            return
        results, positions = self.store(request)
        request.reply(ProduceResponse(results, positions))

    def store(self, request: Request) -> tuple[list[RunResult], list[list[int]]]:
        """Store what a PRODUCE brings, by the broker's own rules for sequences."""
        header = request.header(ProduceRequest)
        assert zlib.crc32(request.body) == header.crc
        body = bytes(request.body)
        (count,) = struct.unpack_from(">I", body)
        sizes = struct.unpack_from(f">{count}I", body, 4)
        at = 4 + 4 * count
        results: list[RunResult] = []
        positions: list[list[int]] = []
        taken = 0
        for run in rows(ProduceRun, header.runs):
            records = []
            for size in sizes[taken : taken + run.records]:
                records.append(body[at : at + size])
                at += size
            taken += run.records
            results.append(self._store_run(run, records))
            base = results[-1].base_offset
            positions.append([base * 1000 + i for i in range(run.records)] if base >= 0 else [])
        assert at == len(body)
        return results, positions

    def _store_run(self, run: ProduceRun, records: list[bytes]) -> RunResult:
        key = (run.producer_id, run.topic, run.queue_id)
        topic = self.topics.get(run.topic)
        if topic is None or run.queue_id >= topic.write_queues:
            self.sequences.consume(key, run.producer_epoch, run.first_sequence, run.records, 0.0)
            code = Code.TOPIC_UNKNOWN if topic is None else Code.QUEUE_UNKNOWN
            return RunResult(code, -1, "not here")
        verdict = self.sequences.offer(key, run.producer_epoch, run.first_sequence, run.records, 0.0)
        if verdict.repeat is not None:
            return RunResult(Code.OK, verdict.repeat.base_offset, "")
        if verdict.accepted is None:
            return RunResult(verdict.code, -1, verdict.remark)
        offsets = [self.append(run.topic, run.queue_id, record) for record in records]
        verdict.accepted.base_offset = offsets[0]
        verdict.accepted.is_confirmed = True
        self._wake()
        return RunResult(Code.OK, offsets[0], "")

    def _filter_set(self, request: Request) -> None:
        header = request.header(FilterSetRequest)
        terms = self.filters.setdefault((request.connection, header.filter_id), set())
        terms |= set(rows(FilterTerm, header.add))
        terms -= set(rows(FilterTerm, header.remove))
        request.reply(FilterSetResponse(0, self.epoch))

    def _pull(self, request: Request) -> None:
        header = request.header(PullRequest)
        self.pulls.append(header)
        if self.refusal is not None:
            raise self.refusal
        if header.filter_id is not None and (request.connection, header.filter_id) not in self.filters:
            raise RemoteError(Code.FILTER_UNKNOWN, "no such filter")
        if not self._answer_pull(request, header, header.hold_ms > 0):
            loop = asyncio.get_running_loop()
            timer = loop.call_later(header.hold_ms / 1000, self._answer_pull, request, header, False)
            self._held.append((request, header, timer))

    def _wake(self) -> None:
        held, self._held = self._held, []
        for request, header, timer in held:
            if self._answer_pull(request, header, True):
                timer.cancel()
            else:
                self._held.append((request, header, timer))

    def _answer_pull(self, request: Request, header: PullRequest, may_hold: bool) -> bool:
        answers: list[PulledQueue] = []
        parts: list[bytes] = []
        left = header.max_bytes
        is_idle = True
        for queue in rows(PullQueue, header.queues):
            answer, records = self._read(request.connection, queue, header, left)
            is_idle &= answer.status == Code.OK and answer.next_offset == queue.offset
            answers.append(answer)
            parts.append(records)
            left -= len(records)
            if left <= 0:
                break
        if is_idle and may_hold:
            return False
        named = [self.names(header, answer) for answer in answers]
        at_replica = [at for at, replica in enumerate(named) if replica]
        replica = named[at_replica[0]] if at_replica else ""
        request.reply(PullResponse(answers, self.epoch, replica, at_replica), parts, sum(map(len, parts)))
        return True

    def _read(
        self, connection: Connection, queue: PullQueue, header: PullRequest, left: int
    ) -> tuple[PulledQueue, bytes]:
        key = (queue.topic, queue.queue_id)
        topic = self.topics.get(queue.topic)
        log, first = self.logs.get(key, []), self.first.get(key, 0)
        end = first + len(log)

        def answer(code: Code, next_offset: int, count: int = 0, size: int = 0) -> PulledQueue:
            return PulledQueue(*key, code, next_offset, first, end, count, size)

        if topic is None or queue.queue_id >= topic.read_queues:
            return answer(Code.TOPIC_UNKNOWN if topic is None else Code.QUEUE_UNKNOWN, queue.offset), b""
        if key in self.cuts:
            return answer(self.cuts[key], queue.offset + 1), b""
        if queue.offset < first:
            return answer(Code.OFFSET_BEHIND, first), b""
        if queue.offset > end:
            return answer(Code.OFFSET_AHEAD, end), b""
        taken: list[bytes] = []
        at = queue.offset
        for record in log[queue.offset - first :]:
            if taken and sum(map(len, taken)) + len(record) > left:
                break
            at += 1
            if self._passes(connection, header.filter_id, queue.topic, record):
                taken.append(record)
        records = b"".join(taken)
        return answer(Code.OK, at, len(taken), len(records)), records

    def _passes(self, connection: Connection, filter_id: int | None, topic: str, record: bytes) -> bool:
        if filter_id is None:
            return True
        tag = tag_of_record(record)
        hashed = tag_hash(None if tag is None else tag.encode(), self.topics[topic].key_levels)
        for term in self.filters[(connection, filter_id)]:
            if term.topic not in ("", topic):
                continue
            if term.kind == TermKind.TOPIC or (term.kind == TermKind.TAG and term.hash == hashed):
                return True
            if term.kind == TermKind.PREFIX and term.hash >> 32 == hashed >> 32:
                return True
            if term.kind == TermKind.MQTT and tag_matches(term.filter, tag):
                return True
        return False

    def _topic_create(self, request: Request) -> None:
        header = request.header(TopicCreateRequest)
        if header.topic not in self.topics:
            if header.by_use and not self.auto_create:
                raise RemoteError(Code.TOPIC_UNKNOWN, "auto_create_topics is off")
            queues = header.queues or self.queues_default
            row = TopicRow(header.topic, queues, queues, 6, "log", header.key_levels, False)
            self.topics[header.topic] = row
            self._registering = asyncio.ensure_future(self.register())
        request.reply(TopicCreateResponse([self.topics[header.topic]]))

    def _topic_list(self, request: Request) -> None:
        header = request.header(TopicListRequest)
        found = [t for t in self.topics.values() if header.include_system or not t.topic.startswith("%")]
        stats = [TopicStats(t.topic, 5, 50, 3, 30, len(self.bodies(t.topic))) for t in found]
        request.reply(TopicListResponse(found, stats))

    def _queue_bounds(self, request: Request) -> None:
        found: list[QueueBounds] = []
        for name in request.header(QueueBoundsRequest).topics:
            topic = self.topics.get(name)
            for queue_id in range(topic.read_queues if topic else 0):
                first = self.first.get((name, queue_id), 0)
                end = first + len(self.logs.get((name, queue_id), []))
                found.append(QueueBounds(name, queue_id, first, end))
        request.reply(QueueBoundsResponse(found, self.epoch))

    def _status(self, request: Request) -> None:
        answer = BrokerStatusResponse(self.name, "test", STORE_ID, self.epoch, 0, 9, True, "", {"n": 1})
        request.reply(answer)

    def _connections(self, request: Request) -> None:
        found = [
            ConnectionRow(
                hello.role, hello.client_id, c.address, "python", hello.software, c.connected_ms, {}
            )
            for c, hello in self.rpc.connections.items()
            if hello is not None
        ]
        request.reply(ConnectionListResponse(found))


# What a broker may do with a PRODUCE


def busy(request: Request, broker: FakeBroker) -> bool:
    """Refuse the whole request."""
    request.refuse(BusyError("the writer is behind", 5))
    return True


def each_run(code: Code) -> Act:
    """Refuse each run, as the broker does: retriable ones leave their sequences free."""

    def act(request: Request, broker: FakeBroker) -> bool:
        runs = rows(ProduceRun, request.header(ProduceRequest).runs)
        for run in runs:
            key = (run.producer_id, run.topic, run.queue_id)
            if code in (Code.BUSY, Code.NOT_LEADER):
                broker.sequences.postpone(key, run.producer_epoch, run.first_sequence, 0.0)
            elif code in (Code.STORE_FULL, Code.STORE_FAILED, Code.NOT_ENOUGH_REPLICAS):
                if (
                    broker.sequences.offer(
                        key, run.producer_epoch, run.first_sequence, run.records, 0.0
                    ).accepted
                    is not None
                ):
                    broker.sequences.refuse(key, run.producer_epoch, run.first_sequence, 0.0)
            else:
                broker.sequences.consume(key, run.producer_epoch, run.first_sequence, run.records, 0.0)
        request.reply(ProduceResponse([RunResult(code, -1, "as told") for _ in runs], None, 5))
        return True

    return act


def refuse_whole(code: Code) -> Act:
    """Refuse the request before its runs are looked at."""

    def act(request: Request, broker: FakeBroker) -> bool:
        request.refuse(RemoteError(code, "as told"))
        return True

    return act


def lose_answer(request: Request, broker: FakeBroker) -> bool:
    """Store everything, then lose the connection in place of answering."""
    broker.store(request)
    request.connection.close()
    return True


def lose_request(request: Request, broker: FakeBroker) -> bool:
    """Lose the connection before anything is stored."""
    request.connection.close()
    return True


def keep_answer(request: Request, broker: FakeBroker) -> bool:
    """Store everything, and never say so."""
    broker.store(request)
    return True


def ignore(request: Request, broker: FakeBroker) -> bool:
    """Neither store nor answer."""
    return True


class Acts:
    """The acts, for tests (which cannot import this module)."""

    busy = staticmethod(busy)
    each_run = staticmethod(each_run)
    refuse_whole = staticmethod(refuse_whole)
    lose_answer = staticmethod(lose_answer)
    lose_request = staticmethod(lose_request)
    keep_answer = staticmethod(keep_answer)
    ignore = staticmethod(ignore)


@pytest.fixture
def acts() -> type[Acts]:
    return Acts


@pytest.fixture
async def registry() -> AsyncIterator[RegistryServer]:
    server = RegistryServer("test")
    # One that the system gives to no connection while a test lets nobody listen there.
    await server.listen("127.0.0.1", free_port())
    yield server
    await server.close()


@pytest.fixture
def registries(registry: RegistryServer) -> list[str]:
    return [f"127.0.0.1:{registry.rpc.port}"]


MakeBroker = Callable[[str], Awaitable[FakeBroker]]


@pytest.fixture
async def make_broker(registry: RegistryServer) -> AsyncIterator[MakeBroker]:
    made: list[FakeBroker] = []

    async def make(name: str) -> FakeBroker:
        broker = FakeBroker(name, registry.rpc.port)
        await broker.start()
        made.append(broker)
        return broker

    yield make
    for broker in made:
        await broker.stop()


@pytest.fixture
async def broker(make_broker: MakeBroker) -> FakeBroker:
    return await make_broker("broker-0")


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Awaitable[None]]:
    async def wait(condition: Callable[[], Any]) -> None:
        for _ in range(8000):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it did not come true")

    return wait
