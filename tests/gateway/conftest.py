"""A broker and registry in memory, over the real RPC, whose refusals tests choose.

What it decides by itself it decides with the broker's own windows and filters.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from memory_retained import MemoryRetained
from security import Authority
from session_table import SessionTable

from broker.kernel.core.filters import FilterSet
from broker.produce.core.received import ReceivedIds
from broker.produce.core.sequences import Sequences
from gateway.access.logins import failures_of
from gateway.edge.listeners import Listener
from gateway.ground.clock import wall_ms
from gateway.parent.binding import bind
from gateway.worker import serving
from gateway.worker.worker import Worker
from holdmq.config.access import AccessSection
from holdmq.config.listeners import ListenerSettings
from holdmq.config.model import ClientSection, Config, GatewaySection
from holdmq.errors import CODES, Code, RemoteError
from holdmq.mqtt import (
    MQTT_3_1_1,
    SERVER,
    AckRun,
    CheckedTopics,
    ConnAck,
    Connect,
    Decoder,
    Packet,
    PublishRun,
    SubAck,
    Subscribe,
    Subscription,
    encode,
    publishes,
)
from holdmq.record.codec import decode_record
from holdmq.record.tags import tag_hash
from holdmq.rpc.connection import Connection, Request
from holdmq.rpc.server import Server
from holdmq.wire.codes import RequestCode
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    BrokerRow,
    Empty,
    FilterTerm,
    HelloRequest,
    HelloResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceRun,
    ReadAtRequest,
    ReadCloseRequest,
    ReadFilterRequest,
    ReadOpenRequest,
    ReadPosition,
    ReadRequest,
    ReadResponse,
    RouteGetResponse,
    RouteRow,
    RunResult,
    TopicCreateRequest,
    TopicCreateResponse,
    TopicRow,
)
from holdmq.wire.session_headers import SESSION_TOPIC


class _Reader:
    def __init__(self, position: int) -> None:
        self.position = position
        self.terms: list[FilterTerm] = []
        self.filters = FilterSet()
        self.reads: list[Request] = []


NOT_COUNTED = (Code.TOPIC_UNKNOWN, Code.QUEUE_UNKNOWN)
"""Refusals that consume no sequence at a broker."""


class MemoryBroker:
    """One broker, its log a list; also the registry that routes to it.

    `verdicts` are taken first: each a list of codes for the runs of one PRODUCE, or an exception
    for the whole. `held` keeps PRODUCE requests unanswered while `hold` is set.
    """

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.starts: list[int] = [0]
        self.produced: list[list[ProduceRun]] = []
        self.delayed: list[list[int]] = []
        self.verdicts: list[list[int] | Exception] = []
        self.held: list[Callable[[], None]] = []
        self.hold = False
        self.results_dropped = 0
        self.hold_catchup = False
        self.held_catchup: list[Callable[[], None]] = []
        self.topics: dict[str, TopicRow] = {}
        self.create_error: RemoteError | None = None
        self.silent_filters = False
        self.located: list[int] = []
        self.hold_located = False
        self.read_at_error: RemoteError | None = None
        self.opened: list[ReadOpenRequest] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.sequences = Sequences()
        self.received = ReceivedIds()
        self.listed: MemoryBroker | None = self
        """The broker that the registry routes to; None = it calls none live."""
        self.retained = MemoryRetained(lambda: self.end, self.put_row, wall_ms)
        self._readers: dict[tuple[int, int], _Reader] = {}
        self.server = Server(
            {
                RequestCode.PRODUCE: self._produce,
                RequestCode.READ_OPEN: self._open,
                RequestCode.READ_FILTER: self._filter,
                RequestCode.READ: self._read,
                RequestCode.READ_CLOSE: self._close,
                RequestCode.READ_AT: self._read_at,
                RequestCode.TOPIC_CREATE: self._create,
                RequestCode.ROUTE_GET: self._route,
                **self.retained.handlers,
                RequestCode.HEARTBEAT: lambda r: self.heartbeats.append(r.command.ext_fields["state"]),
            },
            self._hello,
            16 << 20,
            on_closed=self._gone,
        )

    @property
    def end(self) -> int:
        return self.starts[-1]

    @property
    def bodies(self) -> list[bytes]:
        return [decode_record(r).body for r in self.log]

    async def listen(self, port: int = 0) -> None:
        await self.server.listen("127.0.0.1", port)

    def append(self, record: bytes) -> None:
        stamped = bytearray(record)
        struct.pack_into(">qq", stamped, 20, len(self.log), self.end)
        self.log.append(bytes(stamped))
        self.starts.append(self.end + len(record))

    def put_row(self) -> int:
        """The log position of a row: it has a place in the log, and no reader gets it."""
        self.starts[-1] += 1
        return self.end - 1

    def serve(self) -> None:
        for reader in self._readers.values():
            if reader.reads and reader.position < self.end:
                index = bisect_left(self.starts, reader.position)
                credit = reader.reads[0].header(ReadRequest).credit_bytes
                taken: list[bytes] = []
                for record in self.log[index:]:
                    if self.passes(reader.filters, record):
                        if taken and sum(map(len, taken)) + len(record) > credit:
                            break
                        taken.append(record)
                    index += 1
                reader.position = self.starts[index]
                body = b"".join(taken)
                if taken or not reader.reads[0].header(ReadRequest).hold_ms:
                    reader.reads.pop(0).reply(ReadResponse(reader.position, 1, len(taken)), [body], len(body))

    def reads(self) -> list[Request]:
        """The READs of the live reader that wait for an answer."""
        return next(r.reads for (_, reader_id), r in self._readers.items() if reader_id == 0)

    def release_catchup(self) -> None:
        """Answer what catch-up readers asked for."""
        self.hold_catchup = False
        held, self.held_catchup = self.held_catchup, []
        for answer in held:
            answer()

    def skip(self) -> None:
        """Move the live reader to the end without giving it what lies before."""
        for (_, reader_id), reader in self._readers.items():
            if reader_id == 0:
                reader.position = self.end

    def passes(self, filters: FilterSet, raw: bytes) -> bool:
        """Whether the broker would give this record to a reader."""
        record = decode_record(raw)
        topic = record.topic.decode()
        row = self.topics.get(topic)
        tag = record.tag
        hashes = np.array([tag_hash(tag, row.key_levels if row else 1)], np.uint64)
        text = None if tag is None else tag.decode()
        return any(
            part.all or part.indices_by_hash(hashes, 1) or (part.needs_tags and part.passes_tag(text))
            for part in filters.of_topic(topic)
        )

    def _hello(self, _connection: Connection, _hello: HelloRequest) -> HelloResponse:
        return HelloResponse(1, "b0", "test", wall_ms(), b"12345678", 1, 4 << 20, 16 << 20)

    def _gone(self, connection: Connection) -> None:
        self._readers = {k: v for k, v in self._readers.items() if k[0] != id(connection)}

    def _produce(self, request: Request) -> None:
        if self.hold:
            self.held.append(lambda: self._produce_now(request))
        else:
            self._produce_now(request)

    def release(self) -> None:
        self.hold = False
        held, self.held = self.held, []
        for answer in held:
            answer()

    def _produce_now(self, request: Request) -> None:
        header = request.header(ProduceRequest)
        runs = rows(ProduceRun, header.runs)
        self.produced.append(runs)
        self.delayed.append(header.delayed)
        chosen = self.verdicts.pop(0) if self.verdicts else [0] * len(runs)
        if isinstance(chosen, Exception):
            assert isinstance(chosen, RemoteError)
            request.refuse(chosen)
            return
        count = int.from_bytes(request.body[:4], "big")
        sizes = struct.unpack_from(f">{count}I", request.body, 4)
        pos, at = 4 + 4 * count, 0
        results: list[RunResult] = []
        for run, code in zip(runs, chosen, strict=True):
            result, is_new = self._decide(run, code)
            results.append(result)
            own: list[bytes] = []
            for size in sizes[at : at + run.records]:
                own.append(bytes(request.body[pos : pos + size]))
                pos += size
            for record in own if is_new else ():
                sifted = self.received.sift([decode_record(record).properties])
                if sifted is not None and sifted.kept:
                    self.received.confirm(sifted.notes, len(self.log))
                    self.append(record)
            at += run.records
        dropped, self.results_dropped = self.results_dropped, 0
        request.reply(ProduceResponse(results[dropped:]))
        self.serve()

    def _decide(self, run: ProduceRun, code: int) -> tuple[RunResult, bool]:
        """The result of a run, refused with `code` unless 0, and whether its records are new."""
        key = (run.producer_id, run.topic, run.queue_id)
        place = (key, run.producer_epoch, run.first_sequence)
        if code == 0:
            verdict = self.sequences.offer(*place, run.records, 0.0)
            if verdict.accepted is not None:
                verdict.accepted.is_confirmed = True
            offset = 0 if verdict.code == Code.OK else -1
            return RunResult(int(verdict.code), offset, ""), verdict.accepted is not None
        if code == Code.BUSY:
            self.sequences.postpone(*place, 0.0)
        elif not CODES[Code(code)].retriable and code not in NOT_COUNTED:
            self.sequences.consume(*place, run.records, 0.0)
        return RunResult(code, -1, ""), False

    def _open(self, request: Request) -> None:
        header = request.header(ReadOpenRequest)
        if self.hold_catchup and header.reader_id:
            self.held_catchup.append(lambda: self._open(request))
            return
        self.opened.append(header)
        position = self.end if header.position is None else header.position
        if position > self.end:
            raise RemoteError(Code.OFFSET_AHEAD, "ahead", {"position": self.end, "log_epoch": 1})
        key = id(request.connection), header.reader_id
        for read in self._readers[key].reads if key in self._readers else ():
            read.reply(ReadResponse(position, 1, 0))
        reader = self._readers[key] = _Reader(position)
        reader.terms += rows(FilterTerm, header.add)
        reader.filters.change(rows(FilterTerm, header.add), ())
        request.reply(ReadPosition(position, 1))

    def _filter(self, request: Request) -> None:
        header = request.header(ReadFilterRequest)
        reader = self._readers[id(request.connection), header.reader_id]
        reader.terms += rows(FilterTerm, header.add)
        for term in rows(FilterTerm, header.remove):
            reader.terms.remove(term)
        reader.filters.change(rows(FilterTerm, header.add), rows(FilterTerm, header.remove))
        if not self.silent_filters:
            request.reply(ReadPosition(self.end, 1))

    def live_terms(self) -> list[FilterTerm]:
        return [t for (_, reader_id), r in self._readers.items() if reader_id == 0 for t in r.terms]

    def _read(self, request: Request) -> None:
        header = request.header(ReadRequest)
        if self.hold_catchup and header.reader_id:
            self.held_catchup.append(lambda: self._read(request))
            return
        reader = self._readers.get((id(request.connection), header.reader_id))
        if reader is None:
            raise RemoteError(Code.READER_UNKNOWN, "open it again")
        if header.hold_ms == 0 and reader.position >= self.end:
            request.reply(ReadResponse(reader.position, 1, 0))
            return
        reader.reads.append(request)
        self.serve()

    def _close(self, request: Request) -> None:
        self._readers.pop((id(request.connection), request.header(ReadCloseRequest).reader_id), None)
        request.reply(Empty())

    def _read_at(self, request: Request) -> None:
        """Store times are the records' numbers: the moment n is that of record n."""
        if self.read_at_error is not None:
            raise self.read_at_error
        self.located.append(request.header(ReadAtRequest).store_ms)
        if self.hold_located:
            return
        request.reply(ReadPosition(self.starts[min(self.located[-1], len(self.log))], 1))

    def _create(self, request: Request) -> None:
        header = request.header(TopicCreateRequest)
        if self.create_error is not None:
            raise self.create_error
        row = self.topics.setdefault(
            header.topic, TopicRow(header.topic, 4, 4, 6, "log", header.key_levels, False)
        )
        request.reply(TopicCreateResponse([row]))

    def _route(self, request: Request) -> None:
        if self.listed is None:
            request.reply(RouteGetResponse([], [], 1))
            return
        routes = [RouteRow(t.topic, "b0", 4, 4, 6, "log", t.key_levels) for t in self.listed.topics.values()]
        routes.append(self.listed.retained.route("b0"))
        brokers = [BrokerRow("test", "b0", 0, f"127.0.0.1:{self.listed.server.port}")]
        request.reply(RouteGetResponse(routes, brokers, 1))


class Client:
    """A raw MQTT client: sends packets, collects what comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.reader = reader
        self.writer = writer
        self.version = version
        self.decoder: Decoder[bytes] = Decoder(CheckedTopics(bytes), 1 << 24, sender=SERVER, version=version)
        self.got: list[Any] = []
        self.connack: Any = None

    @classmethod
    async def open(cls, port: int, client_id: str, version: int = MQTT_3_1_1, **fields: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = cls(reader, writer, version)
        refused = fields.pop("refused", False)
        writer.write(fields.pop("before", b""))
        behind = fields.pop("behind", ())
        client.send(Connect(client_id=client_id, version=version, **fields), *behind)
        try:
            client.connack = await client.next()
        except EOFError:
            await client.close()
            raise
        assert isinstance(client.connack, ConnAck)
        assert bool(client.connack.reason_code) is refused
        return client

    def send(self, *packets: Packet) -> None:
        self.writer.write(b"".join(encode(packet, self.version) for packet in packets))

    async def next(self) -> Any:
        while not self.got:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 40)
            if not data:
                raise EOFError
            for item in self.decoder.feed(data):
                self.got += publishes(item) if isinstance(item, PublishRun) else [item]
        return self.got.pop(0)

    async def acked(self, count: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < count:
            item = await self.next()
            ids += item.packet_ids if isinstance(item, AckRun) else [item.packet_id]
        return ids

    async def subscribe(self, *filters: str, qos: int = 1, **options: Any) -> SubAck:
        self.send(Subscribe(1, [Subscription(f, qos, **options) for f in filters]))
        answer = await self.next()
        assert isinstance(answer, SubAck)
        return answer

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class RunningWorker:
    """A real worker in this process, its port and its broker."""

    def __init__(self, worker: Worker, port: int, broker: MemoryBroker) -> None:
        self.worker = worker
        self.port = port
        self.broker = broker
        self.clients: list[Client] = []

    async def client(self, client_id: str, version: int = MQTT_3_1_1, **fields: Any) -> Client:
        """A connected client, closed at the end of the test."""
        client = await Client.open(self.port, client_id, version, **fields)
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something holds in the worker or its broker."""
        async with asyncio.timeout(40):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.fixture
async def memory_broker() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker()
    await broker.listen()
    yield broker
    await broker.server.close()


@pytest.fixture
def table(memory_broker: MemoryBroker) -> SessionTable:
    """The broker keeps sessions."""
    table = SessionTable()
    memory_broker.topics[SESSION_TOPIC] = TopicRow(SESSION_TOPIC, 4, 4, 6, "table", 1, True)
    memory_broker.server._routes.update(table.routes())
    gone = memory_broker.server._on_closed

    def closed(connection: Connection) -> None:
        gone(connection)
        table.gone(connection)

    memory_broker.server._on_closed = closed
    return table


WAITS = (
    "deliver.catchup.CALL_TIMEOUT_S",
    "brokers.link.REROUTE_S",
    "persistent.owner.OPEN_TIMEOUT_S",
    "brokers.reader.CALL_TIMEOUT_S",
    "deliver.redelivery.CALL_TIMEOUT_S",
    "deliver.replay.SUBACK_WAIT_S",
    "deliver.retained_again.CALL_TIMEOUT_S",
    "deliver.retained_answers.TIMEOUT_S",
    "persistent.retained_puts.REROUTE_S",
    "persistent.retained_puts.TIMEOUT_S",
    "deliver.share_link.CALL_TIMEOUT_S",
    "deliver.subscriptions.SUBACK_WAIT_S",
    "publish.topics.TOPIC_WAIT_S",
)
"""How long a worker waits for a broker: some seconds, which a process may stand still on a busy machine."""


@pytest.fixture
async def start_worker(
    memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    for name in WAITS:
        monkeypatch.setattr(f"gateway.{name}", 60.0)
    running: list[tuple[asyncio.Task[None], asyncio.Event, RunningWorker]] = []

    async def start(
        listener: dict[str, Any] | None = None,
        access: dict[str, Any] | None = None,
        *,
        report: socket.socket | None = None,
        **settings: Any,
    ) -> RunningWorker:
        """A worker with one listener: the plain one, or one with these settings at port 0.

        `report` is its end of a socket to its parent.
        """
        config = Config(
            # A machine that others hold up is no overload.
            gateway=GatewaySection(**{"drain_s": 1.0, "overload_lag_ms": 0, **settings}),
            access=AccessSection(**(access or {})),
            client=ClientSection(registries=[f"127.0.0.1:{memory_broker.server.port}"]),
        )
        told = {"name": "default", "kind": "tcp"} | (listener or {})
        if told["kind"] != "unix":
            told["port"] = 0
        served = Listener(ListenerSettings(**told), config.gateway.packet_max_bytes)
        listening = bind(served.settings, 1).of_worker(0)
        port = 0 if told["kind"] == "unix" else listening.getsockname()[1]
        worker = Worker(config, 0, [served], report, failures_of(config.gateway, b"key"))
        # Changed numbers go to who subscribes also before SUBACK, as MQTT allows: when a test says so.
        worker.deliveries.system._due_at = math.inf
        stopping = asyncio.Event()
        task = asyncio.get_running_loop().create_task(serving.run(worker, [(served, listening)], stopping))
        started = RunningWorker(worker, port, memory_broker)
        running.append((task, stopping, started))
        while not worker.links or not all(link.reader.is_open for link in worker.links.values()):
            await asyncio.sleep(0.01)
            assert not task.done()
        return started

    yield start
    for task, stopping, started in running:
        for client in started.clients:
            client.writer.close()
        stopping.set()
        await task


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server_tls(authority: Authority) -> dict[str, Any]:
    files = authority.issue("gateway")
    return {"tls_cert": str(files.cert), "tls_key": str(files.key)}
