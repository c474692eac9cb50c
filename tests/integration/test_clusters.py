"""Two clusters at one registry: each is routed by itself, and whoever names none sees both."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from command_line import command, flags_of, run_here
from guides import examples_of, run_console
from mqtt_client import MqttClient
from playwright.async_api import expect
from processes import Stack, end_all, free_port, wait_until
from pyspark.sql.types import BinaryType, StructType
from tps_rows import read_tps
from web_pages import faults_of, launched

from holdmq.client import Admin, Consumer, Message, OrderedTopics, Producer, RouteTable, Table
from holdmq.errors import RemoteError, TransportError
from holdmq.mqtt import PubAck, Publish
from holdmq.wire.retained_headers import RETAINED_TOPIC
from holdmq.wire.session_headers import SESSION_TOPIC
from spark_streaming.source import HoldMQDataSource
from spark_streaming.source.link import close_links, link_to
from spark_streaming.source.writer import close_producers
from spark_streaming.tables import table_path

PLANT = {"broker-0", "broker-2"}
OFFICE = {"broker-1"}
CLUSTERS = {"plant": PLANT, "office": OFFICE}
MESSAGES = 40


class Clusters:
    """The brokers of plant are broker-0 and broker-2, that of office is broker-1; a gateway of each."""

    def __init__(self, directory: Any) -> None:
        self.stacks: dict[str, Stack] = {}
        self.console_port, self.console_admin_port = free_port(), free_port()
        for number, cluster in enumerate(("plant", "office", "plant")):
            name = f"broker-{number}"
            (directory / name).mkdir()
            settings: dict[str, Any] = {
                "broker.name": name,
                "cluster.name": cluster,
                "client.cluster": cluster,
                "gateway.workers": 1,
            }
            if number == 0:
                settings["console.port"] = self.console_port
                settings["console.admin_port"] = self.console_admin_port
            else:
                settings["registry.port"] = self.plant.registry_port
            self.stacks[name] = Stack(directory / name, settings)

    @property
    def plant(self) -> Stack:
        """With the registry."""
        return self.stacks["broker-0"]

    @property
    def office(self) -> Stack:
        return self.stacks["broker-1"]

    @property
    def registries(self) -> list[str]:
        return [self.plant.registry]

    def port(self, cluster: str) -> int:
        """Where its gateway listens."""
        return (self.plant if cluster == "plant" else self.office).mqtt_port

    def shown(self, *words: str) -> Any:
        """What a command says as JSON."""
        done = run_here(*words, "--json", *flags_of(self.plant))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    async def brokers_of(self, topic: str, cluster: str = "") -> set[str]:
        """Whose queues the routes of a cluster show to producers."""
        async with Admin(self.registries, cluster=cluster) as admin:
            route = await admin.routes.topic(topic)
            return set() if route is None else {queue.broker for queue in route.write_queues}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    found = Clusters(tmp_path_factory.mktemp("clusters"))
    try:
        found.plant.start("registry")
        found.plant.start("broker", wait=False)
        found.stacks["broker-2"].start("broker", wait=False)
        found.plant.wait_ready("broker")
        found.stacks["broker-2"].wait_ready("broker")
        found.plant.start("gateway")
        # Whoever keeps sessions here keeps none of those of another cluster.
        MqttClient(found.plant.mqtt_port, "first").close()
        found.office.start("broker")
        found.office.start("gateway")
        yield found
    finally:
        MqttClient.close_all()
        end_all(list(reversed(found.stacks.values())))


def test_the_session_of_the_page_goes_as_it_shows(clusters: Clusters, tmp_path: Path) -> None:
    (session,) = examples_of("cluster.md", "console")
    run_console(session, flags_of(clusters.plant), tmp_path)


@pytest.mark.parametrize("words", [("list",), ("brokers",)])
def test_clusters_and_their_brokers_are_listed(clusters: Clusters, words: tuple[str, ...]) -> None:
    for cluster in ("plant", "office", "", "none"):
        found = clusters.shown("cluster", *words, "--cluster", cluster)
        brokers: list[str] = []
        for row in found:
            brokers += row["brokers"] if words == ("list",) else [row["broker"]]
        expected = CLUSTERS.get(cluster, PLANT | OFFICE if cluster == "" else set())
        assert set(brokers) == expected, cluster
        assert {row["cluster"] for row in found} <= ({cluster} if cluster else set(CLUSTERS))


def test_each_cluster_founds_its_own_sessions_and_retained_messages(clusters: Clusters) -> None:
    for stack in clusters.stacks.values():
        assert stack.metric("broker", "holdmq_broker_is_keeper") == 1


async def test_a_topic_is_created_at_the_brokers_of_its_cluster_alone(clusters: Clusters, topic: str) -> None:
    made = await asyncio.to_thread(clusters.shown, "topic", "create", f"{topic}-hand", "--cluster", "plant")
    assert made
    async with Producer(clusters.registries, cluster="office") as producer:
        await producer.send(Message(f"{topic}-use", b"by use"))
    async with Table(f"{topic}-rows", clusters.registries, cluster="office") as table:
        await table.create(2)
        await table.put("k", b"v")
    for name, brokers in (("hand", PLANT), ("use", OFFICE), ("rows", OFFICE)):
        assert await clusters.brokers_of(f"{topic}-{name}") == brokers
        for cluster, own in CLUSTERS.items():
            assert await clusters.brokers_of(f"{topic}-{name}", cluster) == own & brokers
    for cluster, names in (("plant", ["hand"]), ("office", ["rows", "use"]), ("", ["hand", "rows", "use"])):
        listed = await asyncio.to_thread(clusters.shown, "topic", "list", "--cluster", cluster)
        found = sorted({row["topic"] for row in listed if row["topic"].startswith(f"{topic}-")})
        assert found == [f"{topic}-{name}" for name in names]
        async with Admin(clusters.registries, cluster=cluster) as admin:
            known = (await admin.cluster()).topics
        assert sorted(name for name in known if name.startswith(f"{topic}-")) == found


async def test_messages_stay_in_their_cluster_and_who_names_none_gets_all(
    clusters: Clusters, topic: str
) -> None:
    got: dict[str, set[bytes]] = {cluster: set() for cluster in ("plant", "office", "")}
    consumers = []
    for cluster, bodies in got.items():

        async def handle(message: Message, bodies: set[bytes] = bodies) -> None:
            bodies.add(message.body)

        consumers.append(
            Consumer(
                clusters.registries,
                f"{topic}-of-{cluster}",
                handle,
                [topic],
                start="earliest",
                cluster=cluster,
            )
        )
    sent = {cluster: {f"{cluster} {number}".encode() for number in range(MESSAGES)} for cluster in CLUSTERS}
    for cluster, bodies in sent.items():
        async with Producer(clusters.registries, cluster=cluster) as producer:
            results = await producer.send_batch([Message(topic, body) for body in sorted(bodies)])
        assert {result.queue.broker for result in results} <= CLUSTERS[cluster]
    for consumer in consumers:
        await consumer.start()
    try:
        async with asyncio.timeout(40):
            while len(got[""]) < 2 * MESSAGES or any(len(got[name]) < MESSAGES for name in CLUSTERS):
                await asyncio.sleep(0.05)
    finally:
        for consumer in consumers:
            await consumer.close()
    assert got == {**sent, "": sent["plant"] | sent["office"]}
    async with Admin(clusters.registries, cluster="office") as admin:
        (view,) = await admin.topics(names=[topic])
    assert (set(view.rows), view.messages_in) == (OFFICE, MESSAGES)


def test_devices_of_two_clusters_never_meet(clusters: Clusters, topic: str) -> None:
    devices = {cluster: MqttClient(clusters.port(cluster), f"{topic}-device") for cluster in CLUSTERS}
    for cluster, device in devices.items():
        # The same client id at both: neither takes the other's session, nor ends its connection.
        assert not device.connack.session_present
        device.subscribe(f"{topic}/#")
        device.send(Publish(f"{topic}/state", cluster.encode(), 1, retain=True, packet_id=9))
        device.wait_for(PubAck)
    for cluster, device in devices.items():
        message = device.message()
        device.settle(message)
        assert (message.payload, device.is_silent()) == (cluster.encode(), True)
        late = MqttClient(clusters.port(cluster), f"{topic}-late", clean=True, expiry_s=0)
        late.subscribe(f"{topic}/#")
        assert late.message().payload == cluster.encode()
        assert late.is_silent()
    for cluster in CLUSTERS:
        retained = clusters.shown("retained", "list", f"{topic}/#", "--cluster", cluster)
        assert len(retained) == 1
        sessions = clusters.shown("session", "list", "--cluster", cluster)
        assert [row["client_id"] for row in sessions].count(f"{topic}-device") == 1
        here = clusters.shown("client", "list", "--client", f"{topic}-device", "--cluster", cluster)
        assert len(here) == 1
    assert len(clusters.shown("client", "list", "--client", f"{topic}-device")) == 2


def test_spark_reads_and_writes_one_cluster(clusters: Clusters, topic: str) -> None:
    schema = StructType().add("body", BinaryType())
    for cluster in CLUSTERS:
        options = {"registry": clusters.plant.registry, "cluster": cluster, "topic": topic}
        writer = HoldMQDataSource(options).writer(schema, False)
        writer.write(iter([pa.record_batch({"body": [cluster.encode()] * MESSAGES})]))
    for cluster, brokers in {**CLUSTERS, "": PLANT | OFFICE}.items():
        link = link_to(clusters.registries, cluster=cluster)
        wait_until(
            lambda link=link, brokers=brokers: (
                {queue.broker for queue in link.snapshot(topic.__eq__).bounds} == brokers
            ),
            "the topic is listed",
        )
        source = HoldMQDataSource(
            {"registry": clusters.plant.registry, "cluster": cluster, "topics": topic, "columns": "body"}
        )
        reader = source.reader(source.schema())
        found = [
            row["body"]
            for one in reader.partitions()
            for batch in reader.read(one)
            for row in batch.to_pylist()
        ]
        expected = [name.encode() for name in ((cluster,) if cluster else CLUSTERS)]
        assert sorted(set(found)) == sorted(expected)
        assert len(found) == MESSAGES * len(expected)
    close_producers()
    close_links()


@pytest.fixture(scope="module")
def console(clusters: Clusters) -> Iterator[str]:
    """The address of a console of all clusters."""
    clusters.plant.admin_ports["console"] = clusters.console_admin_port
    clusters.plant.start("console", "--set", "client.cluster=")
    yield f"http://127.0.0.1:{clusters.console_port}"
    clusters.plant.stop("console")


def test_the_console_shows_and_changes_the_cluster_that_is_named(
    clusters: Clusters, console: str, topic: str
) -> None:
    with httpx.Client(base_url=f"{console}/api/v1", timeout=40) as api:

        def names(path: str, key: str, cluster: str, **more: Any) -> list[str]:
            answer = api.get(path, params={**more, **({"cluster": cluster} if cluster else {})})
            assert answer.status_code == 200, answer.text
            kind = path.replace("-", "_")
            return sorted(row[key] for row in answer.json()[kind])

        found = {row["cluster"]: set(row["brokers"]) for row in api.get("clusters").json()["clusters"]}
        assert found == CLUSTERS
        made = api.post("topics", params={"cluster": "office"}, json={"topic": topic, "queues": 2})
        assert (made.status_code, made.json()["brokers"]) == (201, ["broker-1"])
        device = MqttClient(clusters.port("office"), f"{topic}-device")
        device.subscribe(f"{topic}/#")
        for cluster, brokers in {**CLUSTERS, "": PLANT | OFFICE}.items():
            is_there = "broker-1" in brokers
            assert names("brokers", "broker", cluster) == sorted(brokers)
            assert names("topics", "topic", cluster, q=topic) == [topic] * is_there
            assert names("sessions", "client_id", cluster, prefix=topic) == [f"{topic}-device"] * is_there
            assert names("clients", "client_id", cluster, client=topic) == [f"{topic}-device"] * is_there
            query = f"?cluster={cluster}" if cluster else ""
            with api.stream("GET", f"stream{query}") as events:
                lines = iter(events.iter_lines())
                while next(lines) != "event: cluster":
                    pass
                event = json.loads(next(lines).removeprefix("data: "))
            assert {row["broker"] for row in event["brokers"]} == brokers
        sent = api.post(
            f"topics/{topic}/messages", params={"cluster": "office"}, json={"body": "21.5", "tag": "a"}
        )
        assert sent.status_code == 201, sent.text
        assert device.message().payload == b"21.5"
        first = (clusters.plant.directory / "console" / "audit.jsonl").read_text().splitlines()[0]
        assert f'"topic": "{topic}", "cluster": "office"' in json.loads(first)["what"]
        unknown = api.get("brokers", params={"cluster": "none"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "CLUSTER_UNKNOWN")
        assert api.get("accounts", params={"cluster": "office"}).status_code == 404, "of no cluster"
        assert api.get("tps", params={"cluster": "office"}).status_code == 400


async def test_the_pages_are_about_the_cluster_that_is_chosen(clusters: Clusters, console: str) -> None:
    async with launched() as browser:
        page = await browser.new_page()
        faults = faults_of(page)
        await page.goto(console)
        rows = page.get_by_role("table", name="Brokers").locator("tbody tr")
        await expect(rows).to_have_count(3)
        await page.get_by_role("combobox", name="Cluster").select_option("office")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("broker-1")
        await expect(page.locator("main")).to_contain_text("messages per second, of all clusters")
        await page.get_by_role("link", name="Replicas", exact=True).click()
        await expect(page).to_have_url(f"{console}/replicas?cluster=office")
        await expect(page.locator("main")).to_contain_text("broker-1")
        await expect(page.locator("main")).not_to_contain_text("broker-0")
        assert faults == []
        await page.close()


@pytest.mark.timeout(600)
async def test_the_statistics_job_counts_one_cluster(clusters: Clusters, topic: str, tmp_path: Path) -> None:
    for cluster in CLUSTERS:
        async with Producer(clusters.registries, cluster=cluster) as producer:
            await producer.send_batch([Message(topic, cluster.encode())] * MESSAGES)
    settings = ("client.cluster=office", f"stats.data_dir={tmp_path}", "stats.devices=false")
    flags = [part for setting in settings for part in ("--set", setting)]
    done = await asyncio.to_thread(
        subprocess.run, command(clusters.plant, "stats", "--once", *flags), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = read_tps(table_path(tmp_path, "tps_1s"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    counted = [row for row in rows if row.topic == topic]
    assert sum(row.messages for row in counted) == MESSAGES
    assert sum(row.bytes for row in counted) == MESSAGES * len("office")


async def test_the_tables_of_a_gateway_are_at_its_cluster(clusters: Clusters) -> None:
    for name in (SESSION_TOPIC, RETAINED_TOPIC):
        for cluster, brokers in CLUSTERS.items():
            assert await clusters.brokers_of(name, cluster) == brokers
        assert await clusters.brokers_of(name) == PLANT | OFFICE


async def test_who_asks_for_a_cluster_that_is_not_there_is_told_so(clusters: Clusters, topic: str) -> None:
    async with Producer(clusters.registries, cluster="none", send_timeout_s=1) as producer:
        with pytest.raises(TransportError, match="no broker of cluster 'none' is registered"):
            await producer.send(Message(topic, b"lost"))
    done = await asyncio.to_thread(
        run_here, "topic", "create", topic, "--cluster", "none", *flags_of(clusters.plant)
    )
    assert done.returncode == 1
    assert "no broker of cluster 'none' is registered" in done.stderr


async def test_ordered_queues_of_an_absent_broker_are_told_to_its_cluster_alone(
    clusters: Clusters, topic: str
) -> None:
    for cluster in CLUSTERS:
        async with Admin(clusters.registries, cluster=cluster) as admin:
            await admin.create_topic(topic, 2, order=True)
    absent = clusters.stacks["broker-2"]
    for stack, services in ((absent, ("broker",)), (clusters.plant, ("registry",))):
        for service in services:
            await asyncio.to_thread(stack.stop, service)
    # The registry knows of the broker from its file alone.
    await asyncio.to_thread(clusters.plant.start, "registry")
    registered = {"broker-0", "broker-1"}
    async with Admin(clusters.registries) as admin:
        async with asyncio.timeout(40):
            while {row.broker for row in (await admin.cluster()).brokers} != registered:
                await asyncio.sleep(0.05)
    try:
        for cluster, brokers in {**CLUSTERS, "": PLANT | OFFICE}.items():
            assert await clusters.brokers_of(topic, cluster) == brokers
            async with OrderedTopics(clusters.registries, cluster=cluster) as ordered:
                assert await ordered.get([topic]) == {topic: dict.fromkeys(sorted(brokers), 2)}
        async with OrderedTopics(clusters.registries, cluster="office") as ordered:
            with pytest.raises(RemoteError, match="'broker-0' is of cluster 'plant'"):
                await ordered.set(topic, {"broker-0": 2})
            await ordered.set(topic, {"broker-1": 2, "broker-9": 2})
        assert await clusters.brokers_of(topic, "office") == {"broker-1", "broker-9"}
        assert await clusters.brokers_of(topic, "plant") == PLANT
    finally:
        await asyncio.to_thread(absent.start, "broker")


async def test_a_broker_that_changes_its_cluster_leaves_the_routes_of_the_old_one(
    clusters: Clusters, topic: str
) -> None:
    async with Admin(clusters.registries, cluster="plant") as admin:
        await admin.create_topic(topic, 1)
    routes = RouteTable(clusters.registries, "stays", cluster="plant", reroute_s=0.3)
    routes.start()
    moving = clusters.stacks["broker-2"]
    try:
        assert await routes.topic(topic) is not None
        routes.link("broker-2")
        await asyncio.to_thread(moving.stop, "broker")
        moving.set("cluster.name", "office")
        await asyncio.to_thread(moving.start, "broker")
        async with asyncio.timeout(40):
            while {queue.broker for queue in routes.all()[0].write_queues} != {"broker-0"}:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(
            wait_until, lambda: clusters.shown("cluster", "brokers", "--cluster", "office")[1:], "moved"
        )
        assert set(routes.brokers()) == {"broker-0"}
    finally:
        await routes.close()
