from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from holdmq.config.model import Config, RegistrySection
from holdmq.errors import Code, RemoteError, StartupError, StoreFormatError
from holdmq.rpc.client import Client
from holdmq.service import telemetry
from holdmq.service.process import Service
from holdmq.wire.codes import RequestCode
from holdmq.wire.forget_headers import BrokerForgetRequest, BrokerForgetResponse
from holdmq.wire.header import rows
from holdmq.wire.headers import (
    BrokerRegisterRequest,
    BrokerUnregisterRequest,
    ClusterGetRequest,
    ClusterGetResponse,
    Empty,
    OrderGetRequest,
    OrderGetResponse,
    OrderRow,
    OrderSetRequest,
    RouteGetRequest,
    RouteGetResponse,
    TopicRow,
)
from registry import server as module
from registry.core.roster import ProcessKey
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
    listed = [TopicRow(name, 4, 4, 6, "log", 1, False) for name in topics]
    fields = {"cluster": "test", "broker_id": 0, "address": "127.0.0.1:1", "data_version": 1, **other}
    return BrokerRegisterRequest(broker=broker, topics=listed, **fields)


async def routes(client: Client, topics: list[str] | None = None) -> RouteGetResponse:
    return (await client.call(RequestCode.ROUTE_GET, RouteGetRequest(topics))).header(RouteGetResponse)


async def until_no_routes(client: Client) -> None:
    async with asyncio.timeout(40):
        while (await routes(client)).routes:
            await asyncio.sleep(0.01)


async def test_what_brokers_register_clients_get(connect: MakeClient) -> None:
    client = connect()
    await client.call(RequestCode.BROKER_REGISTER, registration(topics=("t", "u")))
    answer = await routes(client, ["t"])
    assert answer.routes == [["t", "b0", 4, 4, 6, "log", 1, False]]
    assert not answer.unchanged
    assert answer.brokers == [["test", "b0", 0, "127.0.0.1:1", 0, ""]]
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


async def test_the_process_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    config = Config(registry=RegistrySection(port=0, data_dir=str(tmp_path)))
    service = Service("registry", config, telemetry.get_logger(), asyncio.Event())
    running = asyncio.create_task(main(config, service))
    await until(lambda: service.readiness()[0])
    assert service.readiness() == (True, "ready")
    service.stopping.set()
    await running


async def test_a_busy_port_is_one_sentence_that_names_the_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = Config(registry=RegistrySection(port=port, data_dir=str(tmp_path)))
        service = Service("registry", config, telemetry.get_logger(), asyncio.Event())
        with pytest.raises(StartupError, match=rf"port {port} \(registry.port\)"):
            await main(config, service)


def held_request(version: int, topics: list[str] | None = None, hold_ms: int = 60_000) -> RouteGetRequest:
    return RouteGetRequest(topics, version, hold_ms)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(40):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_held_request_is_answered_when_a_route_of_its_topics_changes(
    connect: MakeClient, registry: RegistryServer
) -> None:
    broker, client = connect(), connect()
    await broker.call(RequestCode.BROKER_REGISTER, registration(topics=("t", "u")))
    known = await routes(client, ["t"])
    holding = asyncio.ensure_future(
        client.call(RequestCode.ROUTE_GET, held_request(known.version, ["t"]), 90.0)
    )
    await until(lambda: len(registry.holds) == 1)
    await broker.call(RequestCode.BROKER_REGISTER, registration(topics=("t", "u", "v")))
    await routes(broker)
    assert len(registry.holds) == 1
    await broker.call(RequestCode.BROKER_REGISTER, registration(topics=("u",)))
    answer = (await holding).header(RouteGetResponse)
    assert (answer.routes, answer.unchanged) == ([], False)
    assert answer.version > known.version
    assert len(registry.holds) == 0


async def test_a_held_request_is_answered_when_a_broker_goes(
    connect: MakeClient, registry: RegistryServer
) -> None:
    broker, client = connect(), connect()
    await broker.call(RequestCode.BROKER_REGISTER, registration())
    version = (await routes(client)).version
    holding = asyncio.ensure_future(client.call(RequestCode.ROUTE_GET, held_request(version), 90.0))
    await until(lambda: len(registry.holds) == 1)
    await broker.close()
    assert (await holding).header(RouteGetResponse).brokers == []


async def test_a_held_request_is_answered_when_another_process_leads(
    connect: MakeClient, registry: RegistryServer
) -> None:
    old, new, client = connect(), connect(), connect()
    await old.call(RequestCode.BROKER_REGISTER, registration(epoch=3))
    version = (await routes(client)).version
    holding = asyncio.ensure_future(client.call(RequestCode.ROUTE_GET, held_request(version), 90.0))
    await until(lambda: len(registry.holds) == 1)
    await new.call(RequestCode.BROKER_REGISTER, registration(epoch=4, address="127.0.0.1:2"))
    answer = (await holding).header(RouteGetResponse)
    assert answer.brokers == [["test", "b0", 0, "127.0.0.1:2", 4, ""]]
    with pytest.raises(RemoteError) as refused:
        await old.call(RequestCode.BROKER_REGISTER, registration(epoch=3))
    assert refused.value.code == Code.NOT_LEADER
    assert refused.value.ext_fields == {"epoch": 4, "leader": "127.0.0.1:2"}
    await old.call(RequestCode.BROKER_UNREGISTER, BrokerUnregisterRequest("test", "b0", 0, 3))
    await old.close()
    assert (await routes(client)).brokers == answer.brokers
    cluster = (await client.call(RequestCode.CLUSTER_GET, Empty())).header(ClusterGetResponse)
    assert cluster.brokers == answer.brokers


async def test_a_hold_ends_unchanged_and_an_unknown_version_is_answered_at_once(connect: MakeClient) -> None:
    client = connect()
    await client.call(RequestCode.BROKER_REGISTER, registration())
    version = (await routes(client)).version
    reply = await client.call(RequestCode.ROUTE_GET, held_request(version, hold_ms=60))
    answer = reply.header(RouteGetResponse)
    assert (answer.routes, answer.brokers, answer.unchanged) == ([], [], True)
    for other in (version - 1, version + 1, 0):
        reply = await client.call(RequestCode.ROUTE_GET, held_request(other))
        assert len(reply.header(RouteGetResponse).routes) == 1


async def test_a_connection_holds_one_request_and_takes_it_along(
    connect: MakeClient, registry: RegistryServer
) -> None:
    client = connect()
    version = (await routes(client)).version
    first = asyncio.ensure_future(client.call(RequestCode.ROUTE_GET, held_request(version, ["t"]), 90.0))
    await until(lambda: len(registry.holds) == 1)
    second = asyncio.ensure_future(client.call(RequestCode.ROUTE_GET, held_request(version, ["u"]), 90.0))
    assert (await first).header(RouteGetResponse).unchanged
    await until(lambda: len(registry.holds) == 1)
    await client.close()
    await until(lambda: len(registry.holds) == 0)
    await asyncio.gather(second, return_exceptions=True)


async def test_past_the_bound_of_held_requests_they_are_answered_at_once(
    connect: MakeClient, registry: RegistryServer
) -> None:
    registry.holds._held_max = 0
    client = connect()
    version = (await routes(client)).version
    reply = await client.call(RequestCode.ROUTE_GET, held_request(version))
    assert reply.header(RouteGetResponse).unchanged


async def test_a_thousand_held_requests_need_no_task(connect: MakeClient, registry: RegistryServer) -> None:
    version = (await routes(connect())).version
    clients = [connect() for _ in range(50)]
    before = len(asyncio.all_tasks())
    for client in clients:
        await routes(client)
    tasks = len(asyncio.all_tasks())
    assert tasks == before + len(clients)
    answers: list[Any] = []
    for client in clients:
        client.request(RequestCode.ROUTE_GET, held_request(version), answers.append, 90.0)
    await until(lambda: len(registry.holds) == len(clients))
    assert len(asyncio.all_tasks()) == tasks
    await connect().call(RequestCode.BROKER_REGISTER, registration())
    await until(lambda: len(answers) == len(clients))


async def test_routes_beyond_a_frame_come_in_pages(
    connect: MakeClient, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    names = [f"{'x' * 110}{i:06}" for i in range(10_000)]
    for n in range(3):
        await connect().call(RequestCode.BROKER_REGISTER, registration(f"b{n}", tuple(names)))
    got: list[Any] = []
    after, versions = "", set()
    while True:
        reply = await client.call(RequestCode.ROUTE_GET, RouteGetRequest(after=after))
        answer = reply.header(RouteGetResponse)
        got += answer.routes
        versions.add(answer.version)
        after = answer.next_after
        if not after:
            break
    assert len(got) == 30_000
    assert len({(row[0], row[1]) for row in got}) == 30_000
    assert len(versions) == 1


# Ordered topics


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    """Start a registry that keeps its files in one directory; the one before is closed."""
    running: list[RegistryServer] = []
    clients: list[Client] = []

    async def start() -> tuple[RegistryServer, Client]:
        await stop()
        server = RegistryServer("test", data_dir=tmp_path / "registry")
        server.load()
        await server.listen("127.0.0.1", 0)
        running.append(server)
        clients.append(Client(f"127.0.0.1:{server.rpc.port}", "client", "c"))
        return server, clients[-1]

    async def stop() -> None:
        while clients:
            await clients.pop().close()
        while running:
            await running.pop().close()

    yield start
    await stop()


async def order_of(client: Client) -> dict[str, dict[str, int]]:
    reply = await client.call(RequestCode.ORDER_GET, OrderGetRequest())
    return {row.topic: row.queues for row in rows(OrderRow, reply.header(OrderGetResponse).topics)}


async def test_what_is_set_survives_a_kill_of_the_registry(kept: Any, tmp_path: Path) -> None:
    _, client = await kept()
    await client.call(RequestCode.ORDER_SET, OrderSetRequest("t", {"b0": 4, "b1": 2}))
    # The answer came after the file: what a kill would leave is there.
    copy = tmp_path / "killed"
    shutil.copytree(tmp_path / "registry", copy)
    server = RegistryServer("test", data_dir=copy)
    server.load()
    assert server.tables.order.listed() == [OrderRow("t", {"b0": 4, "b1": 2})]
    await server.close()
    _, client = await kept()
    assert await order_of(client) == {"t": {"b0": 4, "b1": 2}}
    await client.call(RequestCode.ORDER_SET, OrderSetRequest("t", {}))
    assert await order_of(client) == {}


async def test_what_is_learnt_from_a_broker_survives_a_restart(kept: Any) -> None:
    _, client = await kept()
    row = TopicRow("t", 4, 4, 6, "log", 1, True)
    await client.call(
        RequestCode.BROKER_REGISTER, BrokerRegisterRequest("test", "b0", 0, "127.0.0.1:1", 1, [row])
    )
    _, client = await kept()
    assert await order_of(client) == {"t": {"b0": 4}}
    assert (await routes(client)).routes == [["t", "b0", 0, 4, 6, "log", 1, True]]


async def test_who_is_forgotten_stays_so_over_a_restart_and_is_no_news_any_more(kept: Any) -> None:
    server, client = await kept()
    broker = Client(client.address, "broker", "b0")
    row = TopicRow("t", 4, 4, 6, "log", 1, True)
    registered = BrokerRegisterRequest("test", "b0", 0, "127.0.0.1:1", 1, [row], made_ms=100)
    await broker.call(RequestCode.BROKER_REGISTER, registered)
    with pytest.raises(RemoteError, match="it lives"):
        await client.call(RequestCode.BROKER_FORGET, BrokerForgetRequest("b0", True))
    await broker.close()
    await until_absent(server, "b0")
    key = ProcessKey("broker", "b0")
    assert key in server._roster.lost
    look = await client.call(RequestCode.BROKER_FORGET, BrokerForgetRequest("b0"))
    assert look.header(BrokerForgetResponse).forgotten_ms == 0
    assert await order_of(client) == {"t": {"b0": 4}}
    told = await client.call(RequestCode.BROKER_FORGET, BrokerForgetRequest("b0", True))
    at_ms = told.header(BrokerForgetResponse).forgotten_ms
    assert at_ms > 0
    assert key not in server._roster.lost
    for _ in range(2):
        assert (await routes(client)).routes == []
        assert (await routes(client)).forgotten == [["b0", at_ms, False]]
        with pytest.raises(RemoteError, match="was given up") as error:
            await client.call(RequestCode.BROKER_REGISTER, registered)
        assert error.value.code == Code.BROKER_FORGOTTEN
        server, client = await kept()
        server._roster.lose(key, 0.0)
        assert key not in server._roster.lost, "another registry's alarm does not come back"
    again = await client.call(RequestCode.BROKER_FORGET, BrokerForgetRequest("b0", True))
    assert again.header(BrokerForgetResponse).forgotten_ms == at_ms


async def until_absent(server: RegistryServer, broker: str) -> None:
    async with asyncio.timeout(40):
        while broker in [row.broker for row in server.tables.brokers()]:
            await asyncio.sleep(0.01)


async def test_a_file_that_cannot_be_written_refuses_and_is_tried_again(kept: Any, tmp_path: Path) -> None:
    _, client = await kept()
    blocked = tmp_path / "registry"
    blocked.write_text("in the way")
    with pytest.raises(RemoteError, match="write"):
        await client.call(RequestCode.ORDER_SET, OrderSetRequest("t", {"b0": 4}))
    blocked.unlink()
    await client.call(RequestCode.ORDER_SET, OrderSetRequest("u", {"b0": 1}))
    _, client = await kept()
    assert await order_of(client) == {"t": {"b0": 4}, "u": {"b0": 1}}


async def test_a_damaged_file_refuses_the_start_or_its_backup_is_told(kept: Any, tmp_path: Path) -> None:
    _, client = await kept()
    await client.call(RequestCode.ORDER_SET, OrderSetRequest("t", {"b0": 4}))
    await client.call(RequestCode.ORDER_SET, OrderSetRequest("u", {"b0": 4}))
    path = tmp_path / "registry" / "orderTopic.json"
    path.write_bytes(path.read_bytes().replace(b"b0", b"b1"))
    server = RegistryServer("test", data_dir=tmp_path / "registry")
    with pytest.raises(StoreFormatError, match=r"orderTopic\.json.*checksum"):
        server.load()
    server.load(accept_backup=True)
    assert server.tables.order.listed() == [OrderRow("t", {"b0": 4})]


async def test_a_bad_order_is_refused(kept: Any) -> None:
    _, client = await kept()
    with pytest.raises(RemoteError, match="letters"):
        await client.call(RequestCode.ORDER_SET, OrderSetRequest("a.b", {"b0": 4}))
    assert await order_of(client) == {}


async def test_what_is_held_and_asked_for_a_cluster_is_answered_with_its_brokers_alone(
    connect: MakeClient, registry: RegistryServer
) -> None:
    here, there, client = connect(), connect(), connect()
    await here.call(RequestCode.BROKER_REGISTER, registration("a", cluster="plant"))
    await there.call(RequestCode.BROKER_REGISTER, registration("b", ("t", "u"), cluster="office"))
    asked = RouteGetRequest(cluster="plant")
    known = (await client.call(RequestCode.ROUTE_GET, asked)).header(RouteGetResponse)
    assert [row[:2] for row in known.routes] == [["t", "a"]]
    holding = asyncio.ensure_future(
        client.call(RequestCode.ROUTE_GET, RouteGetRequest(None, known.version, 60_000, "", "plant"), 90.0)
    )
    await until(lambda: len(registry.holds) == 1)
    await here.call(RequestCode.BROKER_REGISTER, registration("a", ("t", "v"), cluster="plant"))
    answer = (await holding).header(RouteGetResponse)
    assert [row[:2] for row in answer.routes] == [["t", "a"], ["v", "a"]]
    assert [row[:2] for row in answer.brokers] == [["plant", "a"]]
    for cluster, brokers, topics in (
        ("plant", ["a"], ["t", "v"]),
        ("office", ["b"], ["t", "u"]),
        ("x", [], []),
    ):
        reply = await client.call(RequestCode.CLUSTER_GET, ClusterGetRequest(cluster))
        view = reply.header(ClusterGetResponse)
        assert ([row[1] for row in view.brokers], list(view.silent_ms)) == (brokers, brokers)
        assert view.topics == topics


async def test_the_cluster_of_an_absent_broker_survives_a_restart(kept: Any) -> None:
    _, client = await kept()
    row = TopicRow("t", 4, 4, 6, "log", 1, True)
    for name, cluster in (("a", "plant"), ("b", "office")):
        await client.call(
            RequestCode.BROKER_REGISTER, BrokerRegisterRequest(cluster, name, 0, "127.0.0.1:1", 1, [row])
        )
    await client.call(RequestCode.ORDER_SET, OrderSetRequest("s", {"c": 2}, "office"))
    _, client = await kept()
    for cluster, found in (("plant", ["a"]), ("office", ["c", "b"]), ("", ["c", "a", "b"])):
        reply = await client.call(RequestCode.ROUTE_GET, RouteGetRequest(cluster=cluster))
        assert [row[1] for row in reply.header(RouteGetResponse).routes] == found
