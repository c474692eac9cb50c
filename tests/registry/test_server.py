from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from holdmq import telemetry
from holdmq.config import Config, RegistrySection
from holdmq.errors import Code, RemoteError, StartupError
from holdmq.process import Service
from holdmq.rpc.client import Client
from holdmq.wire.codes import RequestCode
from holdmq.wire.headers import (
    BrokerRegisterRequest,
    BrokerUnregisterRequest,
    ClusterGetResponse,
    Empty,
    RouteGetRequest,
    RouteGetResponse,
    TopicRow,
)
from registry import server as module
from registry.main import main
from registry.server import RegistryServer

MakeClient = Callable[[], Client]


@pytest.fixture
async def registry() -> AsyncIterator[RegistryServer]:
    server = RegistryServer("test", scan_interval_s=0.02, broker_expiry_s=60)
    await server.listen("127.0.0.1", 0)
    yield server
    await server.close()


@pytest.fixture
async def connect(registry: RegistryServer) -> AsyncIterator[MakeClient]:
    clients: list[Client] = []

    def make() -> Client:
        clients.append(Client(f"127.0.0.1:{registry.rpc.port}", "broker", "b"))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


def registration(broker: str = "b0", topics: tuple[str, ...] = ("t",), **other: Any) -> BrokerRegisterRequest:
    rows = [TopicRow(name, 4, 4, 6, "log", 1, False) for name in topics]
    fields = {"cluster": "test", "broker_id": 0, "address": "127.0.0.1:1", "data_version": 1, **other}
    return BrokerRegisterRequest(broker=broker, topics=rows, **fields)


async def routes(client: Client, topics: list[str] | None = None) -> RouteGetResponse:
    return (await client.call(RequestCode.ROUTE_GET, RouteGetRequest(topics))).header(RouteGetResponse)


async def until_no_routes(client: Client) -> None:
    for _ in range(1000):
        if not (await routes(client)).routes:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the broker is still there")


async def test_what_brokers_register_clients_get(connect: MakeClient) -> None:
    client = connect()
    await client.call(RequestCode.BROKER_REGISTER, registration(topics=("t", "u")))
    answer = await routes(client, ["t"])
    assert answer.routes == [["t", "b0", 4, 4, 6, "log", 1]]
    assert answer.brokers == [["test", "b0", 0, "127.0.0.1:1"]]
    cluster = (await client.call(RequestCode.CLUSTER_GET, Empty())).header(ClusterGetResponse)
    assert cluster.topics == ["t", "u"]
    assert set(cluster.silent_ms) == {"b0"}
    assert client.hello is not None
    assert client.hello.cluster == "test"


async def test_an_unregistered_broker_is_gone_at_once(connect: MakeClient) -> None:
    client = connect()
    await client.call(RequestCode.BROKER_REGISTER, registration())
    await client.call(RequestCode.BROKER_UNREGISTER, BrokerUnregisterRequest("test", "b0", 0))
    assert (await routes(client)).routes == []


async def test_a_broker_whose_connection_closes_is_dropped(connect: MakeClient) -> None:
    broker, client = connect(), connect()
    await broker.call(RequestCode.BROKER_REGISTER, registration())
    version = (await routes(client)).version
    await broker.close()
    await until_no_routes(client)
    assert (await routes(client)).version > version


async def test_a_silent_broker_is_dropped_by_the_scan(connect: MakeClient, registry: RegistryServer) -> None:
    client = connect()
    await client.call(RequestCode.BROKER_REGISTER, registration())
    registry._broker_expiry_s = 0.0
    scanning = asyncio.create_task(registry.scan())
    await until_no_routes(client)
    scanning.cancel()


@pytest.mark.parametrize(
    ("header", "code", "named"),
    [
        (registration("a b"), Code.MISSING_FIELD, "broker name 'a b'"),
        (registration(topics=("a.b",)), Code.TOPIC_INVALID, "'a.b'"),
        (registration(address="x"), Code.MISSING_FIELD, "host:port"),
        (registration(topics=()), Code.MISSING_FIELD, "TopicRow 0"),
    ],
)
async def test_a_bad_registration_is_answered_with_what_is_wrong(
    connect: MakeClient, header: BrokerRegisterRequest, code: Code, named: str
) -> None:
    if not header.topics:
        header.topics.append(("too short",))  # type: ignore[arg-type]
    client = connect()
    with pytest.raises(RemoteError) as caught:
        await client.call(RequestCode.BROKER_REGISTER, header)
    assert caught.value.code == code
    assert named in str(caught.value)
    assert (await routes(client)).brokers == []


async def test_topics_asked_for_are_bounded(connect: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_ASKED_MAX", 2)
    client = connect()
    assert (await routes(client, ["t", "u"])).routes == []
    with pytest.raises(RemoteError, match="TOPICS_ASKED_MAX") as caught:
        await routes(client, ["t", "u", "v"])
    assert caught.value.code == Code.LIMIT_EXCEEDED


async def test_the_tables_and_refusals_are_metrics(connect: MakeClient) -> None:
    client = connect()
    await client.call(RequestCode.BROKER_REGISTER, registration(topics=("t", "u")))
    with pytest.raises(RemoteError):
        await client.call(RequestCode.BROKER_REGISTER, registration("a b"))
    text = generate_latest(telemetry.METRICS).decode()
    assert "holdmq_registry_brokers 1.0" in text
    assert "holdmq_registry_topics 2.0" in text
    assert "holdmq_registry_routes 2.0" in text
    assert 'holdmq_registry_refused_total{code="MISSING_FIELD"}' in text
    assert 'holdmq_registry_requests_total{request="broker_register"}' in text


async def test_the_process_serves_until_it_is_told_to_stop() -> None:
    config = Config(registry=RegistrySection(port=0))
    service = Service("registry", config, telemetry.get_logger(), asyncio.Event())
    running = asyncio.create_task(main(config, service))
    for _ in range(1000):
        if service.readiness()[0]:
            break
        await asyncio.sleep(0.01)
    assert service.readiness() == (True, "ready")
    service.stopping.set()
    await running


async def test_a_busy_port_is_one_sentence_that_names_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = Config(registry=RegistrySection(port=port))
        service = Service("registry", config, telemetry.get_logger(), asyncio.Event())
        with pytest.raises(StartupError, match=rf"port {port} \(registry.port\)"):
            await main(config, service)
