"""What the chart renders, started: messages go through, gateways come and go, dashboards are true."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest
from any_disk import ANY_DISK
from cluster_view import messages_of
from devices import Fleet
from helm_chart import CHART, NAME, Manifest, anonymous, render
from pods_as_processes import LoopbackCluster, PodProcess, metric_names
from processes import wait_until

from broker.app.metric_help import REPLICATION, STORE
from holdmq.rpc.security import Security

DEVICES = 20
GATEWAY = f"{NAME}-gateway"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    rendered = anonymous(
        registry={"replicas": 1},
        gateway={"connectionsMax": 200, "drain": {"ratePerSecond": 20, "delaySeconds": 1}},
        config={
            "storage": {**ANY_DISK, "segment_size_bytes": 16 << 20},
            "broker": {"register_interval_s": 1},
            "stats": {"devices": False},
        },
    )
    cluster = LoopbackCluster(rendered, tmp_path_factory.mktemp("pods"))
    try:
        cluster.start("registry", f"{NAME}-registry-0")
        cluster.start("broker", f"{NAME}-broker-0")
        cluster.start("console", f"{NAME}-console-0")
        for index in range(rendered.one("Deployment", "gateway")["spec"]["replicas"]):
            cluster.start("gateway", f"{GATEWAY}-{index}")
        cluster.wait_ready(*cluster.pods.values())
        yield cluster
    finally:
        cluster.close()


def connections(pod: PodProcess) -> int:
    """How many clients a gateway has, as it tells an autoscaler."""
    status, text = pod.get("/metrics")
    assert status == 200
    (value,) = re.findall(r"^holdmq_gateway_connections (\S+)$", text, re.MULTILINE)
    return int(float(value))


def test_every_probe_of_every_pod_is_answered(cluster: LoopbackCluster) -> None:
    assert {pod.component for pod in cluster.pods.values()} == {"registry", "broker", "gateway", "console"}
    for pod in cluster.pods.values():
        probes = [name for name in pod.container if name.endswith("Probe")]
        assert len(probes) == 3
        assert {name: pod.probe(name) for name in probes} == dict.fromkeys(probes, 200), pod.log()


def test_what_helm_test_runs_sends_a_message_through_the_gateway_and_back(cluster: LoopbackCluster) -> None:
    pod = cluster.start("test", f"{NAME}-test")
    assert pod.process.wait(60) == 0, pod.log()
    assert "took a message on holdmq-ping and gave it out again" in pod.log()
    del cluster.pods[pod.name]


def test_the_console_shows_the_brokers(cluster: LoopbackCluster) -> None:
    console = cluster.pods[f"{NAME}-console-0"]
    assert console.get("/", "http")[0] == 200
    status, text = console.get("/metrics")
    assert status == 200
    assert "holdmq_console_requests" in text


@pytest.mark.timeout(240)
def test_a_gateway_is_added_and_another_drains_under_load_and_nothing_acknowledged_is_lost(
    cluster: LoopbackCluster,
) -> None:
    fleet = Fleet(cluster.service(GATEWAY, 1883).port, DEVICES, 10, "devices/{i}/temp")
    fleet.start()
    first, second = (cluster.pods[f"{GATEWAY}-{index}"] for index in range(2))
    wait_until(lambda: connections(first) + connections(second) == DEVICES, "all devices are connected")
    assert connections(first) > 0
    assert connections(second) > 0

    third = cluster.start("gateway", f"{GATEWAY}-2")
    cluster.wait_ready(third)
    before = fleet.acknowledged
    assert cluster.delete(first) == 0
    wait_until(lambda: connections(second) + connections(third) == DEVICES, "all devices are back")
    assert connections(third) > 0, "the new gateway takes none of those that were sent away"
    goal = max(before, fleet.acknowledged) + 1000
    wait_until(lambda: fleet.acknowledged > goal, "devices go on")
    fleet.stop()
    assert fleet.error is None

    registry = cluster.pods[f"{NAME}-registry-0"]
    # As an application in the cluster would: with an access key of the chart's.
    secret = cluster.secret(cluster.pods[f"{NAME}-console-0"], "admin.secret")
    security = Security("admin", secret_file=str(secret))
    place = f"{registry.address}:{registry.port('rpc')}"
    stored: dict[str, set[int]] = defaultdict(set)
    for message in asyncio.run(messages_of([place], "devices", security=security)):
        name, _, number = message.body.decode().partition(":")
        stored[name].add(int(number))
    for device in fleet.devices:
        assert set(device.acknowledged) <= stored[device.name], f"{device.name} lost acknowledged messages"


def test_dashboard_and_rules_name_only_what_processes_export(cluster: LoopbackCluster) -> None:
    job = cluster.start("stats", f"{NAME}-stats-0")
    wait_until(lambda: job.get("/metrics")[0] == 200 or job.process.poll() is not None, "the job answers")
    assert job.process.poll() is None, job.log()
    exported: dict[str, set[str]] = defaultdict(set)
    for pod in cluster.pods.values():
        status, text = pod.get("/metrics")
        assert status == 200
        exported[pod.component] |= metric_names(text)
    cluster.delete(job)
    asked = _asked_by_rules() | _asked_by_dashboard()
    assert len(asked) > 40
    # What only brokers of the key-value engine export is held against one of them in tests/holdmq/cli, and
    # what only replicas do in tests/faults/replication.
    of_others = {f"holdmq_store_{name}" for name in STORE if name.startswith(("kv_", "replica_"))}
    of_others |= {f"holdmq_replication_{name}" for name in REPLICATION}
    for name in sorted(asked - of_others):
        # A metric of an area is exported by that area's process: a broker's is not looked for at a gateway.
        area = {"store": "broker", "rpc": "broker", "build": "broker"}.get(
            name.split("_")[1], name.split("_")[1]
        )
        assert name in exported[area], f"no {area} exports {name}"


def _expressions(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "query") and isinstance(inner, str):
                yield inner
            else:
                yield from _expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _expressions(inner)


def _names_in(expressions: Iterator[str]) -> set[str]:
    return {name for text in expressions for name in re.findall(r"\bholdmq_\w+", text)}


def _asked_by_rules() -> set[str]:
    rules: Manifest = render(CHART / "ci/production.yaml").one("PrometheusRule")
    return _names_in(_expressions(rules["spec"]))


def _asked_by_dashboard() -> set[str]:
    text = render(CHART / "ci/production.yaml").one("ConfigMap", "-dashboard")["data"]["holdmq.json"]
    return _names_in(_expressions(json.loads(text)))
