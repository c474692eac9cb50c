"""A real worker in the test's process, before a real broker and registry (tapped_broker)."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from security import Authority
from tapped_broker import TappedBroker, TappedSessions

from gateway.access.logins import failures_of
from gateway.edge.listeners import Listener
from gateway.parent.binding import bind
from gateway.worker import serving
from gateway.worker.worker import Worker
from holdmq.config.access import AccessSection
from holdmq.config.listeners import ListenerSettings
from holdmq.config.model import ClientSection, Config, GatewaySection
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
from registry.server import RegistryServer


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

    def __init__(self, worker: Worker, port: int, broker: TappedBroker) -> None:
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
async def tapped_broker(tmp_path: Path) -> AsyncIterator[TappedBroker]:
    """A broker that runs, and its registry."""
    registry = RegistryServer("test")
    await registry.listen("127.0.0.1", 0)
    broker = TappedBroker(tmp_path, registry)
    await broker.start()
    yield broker
    await broker.stop()
    await registry.close()


@pytest.fixture
def table(tapped_broker: TappedBroker) -> TappedSessions:
    """The sessions that the broker owns."""
    return tapped_broker.sessions


WAITS = (
    "deliver.catchup.CALL_TIMEOUT_S",
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
    "worker.roster.REROUTE_S",
)
"""How long a worker waits for a broker: some seconds, which a process may stand still on a busy machine."""


@pytest.fixture
async def start_worker(
    tapped_broker: TappedBroker, monkeypatch: pytest.MonkeyPatch
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
            client=ClientSection(registries=[f"127.0.0.1:{tapped_broker.registry.rpc.port}"]),
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
        started = RunningWorker(worker, port, tapped_broker)
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
