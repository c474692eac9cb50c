"""A real broker and registry in this process, and a tap before the broker for what a test wants to decide.

The broker is the one that ships, over the real store in a temporary directory; gateways find it through the
real registry, and reach it through the tap (rpc_tap).
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tested_engine
from broker_stack import Stack, produce_body, start_broker, stop_broker
from rpc_tap import HeldRequest, RpcTap

from broker.app.compose import Broker, now_ms
from broker.app.registration import Registration
from broker.sessions.core.rows import filter_key, state_key
from broker.sessions.core.sessions import OwnedSessions
from holdmq.errors import CODES, Code, HoldMQError
from holdmq.mqtt import MQTT_5, Properties
from holdmq.names.topics import is_system_topic
from holdmq.record.codec import decode_record
from holdmq.rpc.connection import Connection
from holdmq.wire.codes import RequestCode
from holdmq.wire.command import Command
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    BrokerRegisterRequest,
    FilterTerm,
    HeartbeatRequest,
    ProduceRequest,
    ProduceResponse,
    ProduceRun,
    ReadAtRequest,
    ReadCloseRequest,
    ReadFilterRequest,
    ReadOpenRequest,
    ReadRequest,
    RunResult,
    TopicRow,
)
from holdmq.wire.retained_headers import (
    RETAINED_TOPIC,
    RetainedItem,
    RetainedScanRequest,
    retained_queue,
)
from holdmq.wire.session_headers import SESSION_TOPIC, SessionChange, SessionWriteRequest
from holdmq.wire.session_state import SessionState, decode_state
from registry.server import RegistryServer
from storage.api.batches import Appended, Batch, BatchRun

NAME = "b0"
NOT_COUNTED = (Code.TOPIC_UNKNOWN, Code.QUEUE_UNKNOWN)
"""Refusals that consume no sequence at a broker."""
APPLIED_S = 40.0
READ_BYTES = 1 << 20


class TappedBroker:
    """One broker of the name `b0`, and the registry that routes to its tap.

    What a test decides goes through `tap`; the names below it read and write the broker itself.
    """

    def __init__(self, directory: Path, registry: RegistryServer) -> None:
        self.registry = registry
        self.stands_at_ms: int | None = None
        """Where the broker's clock stands, if it does."""
        self.settings: dict[str, object] = {}
        """Of the broker's section, from its next start on."""
        self.lead_epoch = 0
        """In which it leads its copies, from the next registration on; 0 = it has none."""
        self.unlisted: set[str] = set()
        """Topics that the registry is not told of."""
        self.tap = RpcTap(lambda: self.server.rpc.port, self._passed)
        self.heartbeats: list[Mapping[str, object]] = []
        self.produce = self.tap[RequestCode.PRODUCE]
        self.reads = self.tap[RequestCode.READ]
        self.opens = self.tap[RequestCode.READ_OPEN]
        self.filters = self.tap[RequestCode.READ_FILTER]
        self.located = self.tap[RequestCode.READ_AT]
        self.creates = self.tap[RequestCode.TOPIC_CREATE]
        self.retained = TappedRetained(self)
        self.sessions = TappedSessions(self)
        self._directory = directory
        self._saved: dict[Path, tested_engine.SavedKeys] = {}
        self._stack: Stack | None = None
        self._registration: Registration | None = None
        self._terms: dict[tuple[int, int], list[FilterTerm]] = {}

    @property
    def stack(self) -> Stack:
        assert self._stack is not None
        return self._stack

    @property
    def server(self) -> Broker:
        return self.stack.server

    async def start(self) -> None:
        """Start the broker and its tap, and tell the registry."""
        self._stack = await start_broker(self._directory, name=NAME, clock_ms=self._clock_ms, **self.settings)
        await self.server.sessions.opened.wait()
        await self.server.retained.opened.wait()
        await self.tap.listen(self.tap.port)
        self.server.topics.table_changed.subscribe(self._changed)
        await self.register()

    def _clock_ms(self) -> int:
        return now_ms() if self.stands_at_ms is None else self.stands_at_ms

    async def stop(self) -> None:
        """End it and its tap; the registry forgets it."""
        await self.unregister()
        await self.tap.close()
        if self._stack is not None:
            stack, self._stack = self._stack, None
            await stop_broker(stack)

    async def restart(self, **settings: object) -> None:
        """Start it again over its store, with other settings."""
        await self.stop()
        self.settings.update(settings)
        await self.start()

    async def register(self) -> None:
        """The registry calls the broker live, with its topics."""
        table = self.server.topics.table
        self._registration = Registration(
            [f"127.0.0.1:{self.registry.rpc.port}"],
            NAME,
            60.0,
            lambda: BrokerRegisterRequest(
                "test",
                NAME,
                0,
                f"127.0.0.1:{self.tap.port}",
                table.data_version,
                [row for row in table.rows() if row.topic not in self.unlisted],
                self.lead_epoch,
            ),
            self.server.quotas.shared_by,
        )
        self._registration.start()

    async def move(self) -> None:
        """Another copy, which has all that is confirmed, leads in the next epoch at another address."""
        self.tap.depose()
        await self.tap.listen()
        self.lead_epoch += 1
        await self.unregister()
        await self.register()

    async def unregister(self) -> None:
        """The registry calls the broker live no more."""
        if self._registration is not None:
            registration, self._registration = self._registration, None
            await registration.close()

    def _changed(self) -> None:
        if self._registration is not None:
            self._registration.changed()

    async def go_back(self, keep: Path) -> None:
        """Start it again over what `save` kept; what came after it is lost, as in a crash of its machine."""
        await self.stop()
        if self._saved:
            self._saved[keep].restore()
        else:
            shutil.rmtree(self._directory / "store")
            shutil.copytree(keep, self._directory / "store")
        await self.start()

    async def save(self, keep: Path) -> None:
        """Keep a copy of the whole store, as it is now."""
        await self.stop()
        if tested_engine.is_kv():
            self._saved[keep] = tested_engine.SavedKeys(self._directory)
        else:
            shutil.copytree(self._directory / "store", keep)
        await self.start()

    # The log

    @property
    def end(self) -> int:
        return self.stack.store.confirmed_position

    @property
    def log(self) -> list[bytes]:
        """The records of all topics that are no system's, in the order of the log."""
        store = self.stack.store
        position, found = store.first_position, []
        while position < store.confirmed_position:
            for batch in store.read_log(position, READ_BYTES):
                at = 0
                for size in batch.sizes.tolist():
                    record = bytes(batch.records[at : at + size])
                    if not is_system_topic(decode_record(record).topic.decode()):
                        found.append(record)
                    at += size
                position = batch.end
        return found

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(decode_record(record).body) for record in self.log]

    async def append(self, *records: bytes) -> None:
        """Have records, as another gateway's or an application's producer would bring them."""
        for record in records:
            decoded = decode_record(record)
            topic = decoded.topic.decode()
            if is_system_topic(topic):
                run = BatchRun(topic, decoded.queue_id, 1)
                batch = Batch(memoryview(bytearray(record)), np.array([len(record)]), [run])
                await self.put(partial(self.stack.store.append, batch))
                continue
            if self.server.topics.table.get(topic) is None:
                await self.stack.create(topic)
            first = self.stack.next_sequence(topic, decoded.queue_id, 1)
            run = ProduceRun(topic, decoded.queue_id, 1, 1, 1, first)
            answer = await self.stack.produce_raw(produce_body([record]), [run])
            [result] = rows(RunResult, answer.results)
            assert result.status == Code.OK, result

    async def put(self, append: Callable[[Appended], object]) -> None:
        """Append past all requests, and wait until it is confirmed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(_batch: Batch, error: HoldMQError | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        append(told)
        await done
        self.show_tables()

    # Topics

    @property
    def topics(self) -> dict[str, TopicRow]:
        """The topics that are no system's."""
        found = self.server.topics.table.found(include_system=False)
        return {topic.name: topic.row() for topic in found}

    # What gateways ask for

    def _passed(self, link: object, command: Command) -> None:
        fields = command.ext_fields
        if command.code == RequestCode.READ_OPEN:
            opened = ReadOpenRequest.from_ext(fields)
            self._terms[id(link), opened.reader_id] = list(rows(FilterTerm, opened.add))
        elif command.code == RequestCode.READ_FILTER:
            changed = ReadFilterRequest.from_ext(fields)
            terms = self._terms[id(link), changed.reader_id]
            terms += rows(FilterTerm, changed.add)
            for term in rows(FilterTerm, changed.remove):
                terms.remove(term)
        elif command.code == RequestCode.READ_CLOSE:
            self._terms.pop((id(link), ReadCloseRequest.from_ext(fields).reader_id), None)
        elif command.code == RequestCode.HEARTBEAT:
            self.heartbeats.append(HeartbeatRequest.from_ext(fields).state)

    def live_terms(self) -> list[FilterTerm]:
        """What the live readers of open connections want."""
        open_links = {id(link) for link in self.tap.links}
        return [
            term
            for (link, reader_id), terms in self._terms.items()
            if link in open_links and not reader_id
            for term in terms
        ]

    @property
    def opened(self) -> list[ReadOpenRequest]:
        return self.opens.headers(ReadOpenRequest)

    @property
    def located_ms(self) -> list[int]:
        """The moments whose position was asked for."""
        return [header.store_ms for header in self.located.headers(ReadAtRequest)]

    @property
    def produced(self) -> list[list[ProduceRun]]:
        return [rows(ProduceRun, header.runs) for header in self.produce.headers(ProduceRequest)]

    @property
    def delayed(self) -> list[list[int]]:
        """Which runs of each PRODUCE were to wait."""
        return [header.delayed for header in self.produce.headers(ProduceRequest)]

    def hold_catchup(self) -> None:
        """Keep back what readers ask that are not live."""
        self.opens.holds = lambda command: bool(ReadOpenRequest.from_ext(command.ext_fields).reader_id)
        self.reads.holds = lambda command: bool(ReadRequest.from_ext(command.ext_fields).reader_id)

    @property
    def held_catchup(self) -> list[HeldRequest]:
        return self.opens.held + self.reads.held

    def release_catchup(self) -> None:
        self.opens.release()
        self.reads.release()

    def refuse_next(self, *codes: Code) -> None:
        """Refuse the run of the next PRODUCEs, a code each; the broker counts them as its own refusals."""
        left = list(codes)

        def refused(request: HeldRequest) -> bool:
            if not left:
                return False
            code = left.pop(0)
            [run] = rows(ProduceRun, request.header(ProduceRequest).runs)
            key = (run.producer_id, run.topic, run.queue_id)
            sequences = self.server.produce.sequences
            now = asyncio.get_running_loop().time()
            if code in (Code.BUSY, Code.NOT_LEADER, Code.NOT_ENOUGH_REPLICAS):
                sequences.postpone(key, run.producer_epoch, run.first_sequence, now)
            elif not CODES[code].retriable and code not in NOT_COUNTED:
                sequences.consume(key, run.producer_epoch, run.first_sequence, run.records, now)
            request.reply(ProduceResponse([RunResult(int(code), -1, "")]))
            return True

        self.produce.in_place = refused

    def show_tables(self) -> None:
        """Wait until tables show all that is confirmed; another thread brings them there."""
        store, until = self.stack.store, time.monotonic() + APPLIED_S
        while store.tables.applied_position < store.confirmed_position:
            assert time.monotonic() < until, "the tables do not follow the log"
            time.sleep(0.0005)

    def table_rows(self, topic: str) -> dict[str, tuple[int, bytes]]:
        """All rows of a table (version, value), once it shows what is confirmed."""
        self.show_tables()
        store = self.stack.store
        found: dict[str, tuple[int, bytes]] = {}
        after: str | None = None
        while True:
            page = store.tables.scan(topic, after=after)
            found |= {row.key: (row.version, bytes(row.value)) for row in page.rows}
            if page.next_after is None:
                return found
            after = page.next_after


class TappedRetained:
    """The retained messages of the broker, and what becomes of requests about them."""

    CODES = (RequestCode.RETAINED_PUT, RequestCode.RETAINED_SCAN, RequestCode.RETAINED_GET)

    def __init__(self, broker: TappedBroker) -> None:
        self._broker = broker
        self.puts, self.scans, self.gets = (broker.tap[code] for code in self.CODES)

    @property
    def rows(self) -> dict[str, tuple[int, bytes]]:
        return self._broker.table_rows(RETAINED_TOPIC)

    @property
    def requests(self) -> int:
        return sum(len(self._broker.tap[code].seen) for code in self.CODES)

    @property
    def asked(self) -> list[RetainedItem]:
        headers = self.scans.headers(RetainedScanRequest)
        return [item for header in headers for item in rows(RetainedItem, header.items)]

    @property
    def held(self) -> list[HeldRequest]:
        return [request for code in self.CODES for request in self._broker.tap[code].held]

    def release(self) -> None:
        for code in self.CODES:
            self._broker.tap[code].release()

    async def keep(self, topic: str, value: bytes) -> None:
        """A topic's message from now on."""
        put, queue_id = self._broker.stack.store.tables.put, retained_queue(topic)
        await self._broker.put(lambda done: put(RETAINED_TOPIC, topic, value, done, queue_id))


class TappedSessions:
    """The sessions that the broker owns, and what becomes of requests about them."""

    def __init__(self, broker: TappedBroker) -> None:
        self._broker = broker
        self.opens = broker.tap[RequestCode.SESSION_OPEN]
        self.writes = broker.tap[RequestCode.SESSION_WRITE]

    @property
    def core(self) -> OwnedSessions[Connection]:
        return self._broker.server.sessions.core

    @property
    def rows(self) -> dict[str, bytes]:
        return {key: value for key, (_, value) in self._broker.table_rows(SESSION_TOPIC).items()}

    def state(self, client_id: str) -> SessionState:
        return decode_state(self.rows.get(state_key(client_id), b""))

    def filters(self, client_id: str) -> list[str]:
        prefix = filter_key(client_id, "")
        return [key.removeprefix(prefix) for key in self.rows if key.startswith(prefix)]

    async def put(self, key: str, value: bytes) -> None:
        """Have a row, whoever owns it."""
        put = self._broker.stack.store.tables.put
        await self._broker.put(lambda done: put(SESSION_TOPIC, key, value, done))

    @property
    def changes(self) -> list[SessionChange]:
        """What gateways have written, in order."""
        headers = self.writes.headers(SessionWriteRequest)
        return [change for header in headers for change in rows(SessionChange, header.changes)]


HOUR = Properties(session_expiry_interval=3600)


async def persistent(running: Any, client_id: str = "c", version: int = MQTT_5, **fields: Any) -> Any:
    """A client of a worker of tests/gateway whose session outlives its connection."""
    if version == MQTT_5:
        fields = {"properties": HOUR, **fields}
    return await running.client(client_id, version, clean_start=False, **fields)
