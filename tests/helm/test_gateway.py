"""How the chart's gateway scales, drains, and is reached; and who may talk to whom."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from helm_chart import CHART, NAME, Manifest, Rendered, anonymous, render

from gateway.parent.supervisor import KILL_AFTER_S
from gateway.worker.draining import FLUSH_S
from holdmq.config.model import Config

PRODUCTION = CHART / "ci/production.yaml"


def drain_of(tmp_path: Path, **gateway: Any) -> tuple[Config, Manifest]:
    rendered = anonymous(gateway=gateway)
    return rendered.config("gateway", tmp_path), rendered.pod("gateway")


@pytest.mark.parametrize(
    ("connections", "workers", "rate", "delay"),
    [(20000, 1, 500, 5), (100000, 4, 1000, 15), (1000, 1, 500, 0), (30001, 7, 100, 60), (10, 8, 1, 1)],
)
def test_a_full_pod_has_the_time_to_send_all_its_clients_away(
    tmp_path: Path, connections: int, workers: int, rate: int, delay: int
) -> None:
    drain = {"ratePerSecond": rate, "delaySeconds": delay}
    config, pod = drain_of(tmp_path, connectionsMax=connections, workers=workers, drain=drain)
    section = config.gateway
    assert section.workers == workers
    # The cap holds for the pod: that of a worker times their number.
    assert connections <= section.connections_max * workers < connections + workers
    flush_s = min(FLUSH_S, section.drain_s / 5)
    away_s = math.ceil(section.connections_max / section.drain_rate)
    assert section.drain_s >= away_s + flush_s
    assert section.drain_rate >= 1
    assert section.drain_rate * workers <= max(rate, workers)
    # A pod that has drained is not seen again under its address.
    assert section.drain_is_final
    # A worker ends by itself, and is killed by the gateway, before Kubernetes kills the pod.
    grace_s = pod["terminationGracePeriodSeconds"]
    assert grace_s >= delay + section.drain_s + 2 * KILL_AFTER_S


def test_a_pod_waits_for_load_balancers_before_the_one_way_to_drain() -> None:
    container = anonymous(gateway={"drain": {"delaySeconds": 7}}).container("gateway")
    assert container["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", "7"]}}}
    assert "lifecycle" not in anonymous(gateway={"drain": {"delaySeconds": 0}}).container("gateway")


def test_a_rollout_takes_no_place_away_before_there_is_another() -> None:
    spec = anonymous().one("Deployment", "gateway")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["progressDeadlineSeconds"] > spec["template"]["spec"]["terminationGracePeriodSeconds"]


def test_replicas_are_the_autoscalers_when_there_is_one() -> None:
    fixed = anonymous(gateway={"replicas": 3})
    assert fixed.one("Deployment", "gateway")["spec"]["replicas"] == 3
    assert fixed.all("HorizontalPodAutoscaler") == fixed.all("ScaledObject") == []
    for file, kind, other in (
        (PRODUCTION, "HorizontalPodAutoscaler", "ScaledObject"),
        (CHART / "ci/keda.yaml", "ScaledObject", "HorizontalPodAutoscaler"),
    ):
        rendered = render(file)
        assert "replicas" not in rendered.one("Deployment", "gateway")["spec"]
        target = rendered.one(kind)["spec"]["scaleTargetRef"]
        assert target["name"] == rendered.one("Deployment", "gateway")["metadata"]["name"]
        assert rendered.all(other) == []


def behavior_of(rendered: Rendered) -> Manifest:
    for one in rendered.all("HorizontalPodAutoscaler"):
        return dict(one["spec"]["behavior"])
    scaled = rendered.one("ScaledObject")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    return dict(scaled["behavior"])


@pytest.mark.parametrize("file", [PRODUCTION, CHART / "ci/keda.yaml"], ids=["hpa", "keda"])
def test_it_grows_at_once_and_shrinks_by_a_pod_in_the_time_that_a_pod_drains(file: Path) -> None:
    rendered = render(file)
    behavior = behavior_of(rendered)
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    grace_s = rendered.pod("gateway")["terminationGracePeriodSeconds"]
    assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": grace_s}]


def test_it_scales_by_connections_and_cpu() -> None:
    spec = render(PRODUCTION).one("HorizontalPodAutoscaler")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (4, 40)
    pods, cpu = spec["metrics"]
    assert pods["pods"]["metric"]["name"] == "holdmq_gateway_connections"
    assert pods["pods"]["target"] == {"type": "AverageValue", "averageValue": "70000"}
    assert cpu["resource"]["target"] == {"type": "Utilization", "averageUtilization": 75}
    (trigger,) = render(CHART / "ci/keda.yaml").one("ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["query"] == (
        f'sum(holdmq_gateway_connections{{namespace="iot",pod=~"{NAME}-gateway-.*"}})'
    )
    assert trigger["metadata"]["threshold"] == "14000"


def test_a_pod_that_is_full_while_others_have_room_sends_clients_to_them(tmp_path: Path) -> None:
    section = render(PRODUCTION).config("gateway", tmp_path).gateway
    # 120 % of 70,000 connections, of four workers.
    assert (section.shed_above, section.shed_rate) == (21_000, 3)
    assert section.shed_above < section.connections_max
    assert anonymous().config("gateway", tmp_path).gateway.shed_above == 0


def test_the_console_believes_the_ingress_that_is_named(tmp_path: Path) -> None:
    console = render(PRODUCTION).config("console", tmp_path).console
    assert console.origins == ["https://holdmq.example.org"]
    assert console.trusted_proxies == ["10.244.0.0/16"]
    assert anonymous().config("console", tmp_path).console.trusted_proxies == []


# How devices come


def listeners(rendered: Rendered, tmp_path: Path) -> dict[str, tuple[str, int, bool]]:
    """Name of a listener → kind, port, whether behind a proxy."""
    found = rendered.config("gateway", tmp_path).gateway.all_listeners()
    return {one.name: (one.kind, one.port or 0, one.proxy) for one in found}


def reached(rendered: Rendered, service: str) -> dict[int, int]:
    """Port of a service → port of the container."""
    ports = {one["name"]: one["containerPort"] for one in rendered.container("gateway")["ports"]}
    spec = rendered.one("Service", service)["spec"]
    return {one["port"]: ports[one["targetPort"]] for one in spec["ports"]}


def test_what_the_service_offers_is_what_the_gateway_listens_at(tmp_path: Path) -> None:
    plain = anonymous()
    assert reached(plain, "-gateway") == {1883: 1883}
    assert listeners(plain, tmp_path) == {"default": ("tcp", 1883, False)}
    large = render(PRODUCTION)
    assert reached(large, "-gateway") == {8883: 8883, 8083: 8083}
    assert listeners(large, tmp_path) == {
        "default": ("tcp", 1883, False),
        "mqtts": ("tls", 8883, False),
        "websocket": ("wss", 8083, False),
    }
    assert reached(large, "-gateway-internal") == {1883: 1883}


def test_behind_a_proxy_only_clients_from_outside_are_told_by_it(tmp_path: Path) -> None:
    rendered = render(CHART / "ci/proxy.yaml")
    found = listeners(rendered, tmp_path)
    assert found == {
        "default": ("tcp", 1883, False),
        "mqtt": ("tcp", 1885, True),
        "websocket": ("ws", 8083, True),
    }
    outside = set(reached(rendered, "-gateway").values())
    assert outside == {port for _, port, proxy in found.values() if proxy}
    assert reached(rendered, "-gateway-internal") == {1883: 1883}
    for one in rendered.config("gateway", tmp_path).gateway.listeners:
        assert one.proxy_networks == ["10.0.0.0/8", "192.168.0.0/16"]


def test_nodes_hand_on_to_their_own_pods_so_that_addresses_stay() -> None:
    service = render(PRODUCTION).one("Service", "-gateway")["spec"]
    assert (service["type"], service["externalTrafficPolicy"]) == ("LoadBalancer", "Local")
    assert "externalTrafficPolicy" not in anonymous().one("Service", "-gateway")["spec"]


def test_metrics_are_offered_by_a_service_of_the_cluster_alone() -> None:
    rendered = render(PRODUCTION)
    for service in rendered.all("Service"):
        targets = {port["targetPort"] for port in service["spec"]["ports"]}
        if "admin" in targets:
            assert service["spec"]["clusterIP"] == "None"


def test_nobody_may_connect_until_somebody_says_who(tmp_path: Path) -> None:
    closed = render()
    assert closed.config("gateway", tmp_path).gateway.allow_anonymous is False
    assert closed.all("Pod") == []
    users = render(mqtt={"access": {"existingSecret": "users"}})
    access = users.config("gateway", tmp_path).access
    assert access.password_file == "/run/secrets/mqtt/passwd"
    # The volume cannot be written.
    assert not access.rehash


def test_the_test_asks_the_gateway_inside_the_cluster_with_its_users_password() -> None:
    pod = render(PRODUCTION).one("Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["args"][:2] == ["ping", f"{NAME}-gateway-internal:1883"]
    assert {one["valueFrom"]["secretKeyRef"]["key"] for one in container["env"]} == {"user", "password"}
    (open_to_all,) = render(mqtt={"allowAnonymous": True, "tcp": {"port": 2883}}).one("Pod")["spec"][
        "containers"
    ]
    assert open_to_all["args"][:2] == ["ping", f"{NAME}-gateway:2883"]


# Who may talk to whom


def allowed(rendered: Rendered) -> set[tuple[str, str, int]]:
    """Each way that policies leave open between pods of ours: from, to, port."""
    ways = set()
    for policy in rendered.all("NetworkPolicy"):
        spec = policy["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        to = spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in spec["ingress"]:
            for peer in rule.get("from", []):
                for one in peer.get("podSelector", {}).get("matchExpressions", []):
                    ways |= {(name, to, port["port"]) for name in one["values"] for port in rule["ports"]}
    return ways


def outgoing(rendered: Rendered) -> set[tuple[str, str, int]]:
    """Each way out that policies leave to pods of ours: from, to, port."""
    ways = set()
    for policy in rendered.all("NetworkPolicy"):
        own = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in policy["spec"]["egress"]:
            if "to" not in rule:
                assert {port["port"] for port in rule["ports"]} == {53}
                continue
            for peer in rule["to"]:
                (one,) = peer["podSelector"]["matchExpressions"]
                ways |= {(own, name, port["port"]) for name in one["values"] for port in rule["ports"]}
    return ways


def test_policies_leave_open_what_processes_ask_of_each_other_and_close_the_rest() -> None:
    rendered = anonymous()
    components = {component for component, _ in rendered.pods()} - {"test"}
    policies = {
        one["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for one in rendered.all("NetworkPolicy")
    }
    assert policies == components
    askers = {"gateway", "stats", "console"}
    wanted = {(name, "broker", 10911) for name in askers}
    wanted |= {(name, "registry", 9876) for name in askers | {"broker", "registry"}}
    assert outgoing(rendered) == wanted
    there = {way for way in allowed(rendered) if way[0] in components}
    assert there == wanted


def test_what_a_broker_takes_over_of_another_is_reached_at_ports_of_the_kernel() -> None:
    rendered = anonymous()
    closed = [{"port": 10911}]
    kernels = [*closed, {"port": 32768, "endPort": 60999}]
    over = render(CHART / "ci/kv.yaml")
    for installed, ports in ((rendered, closed), (over, kernels)):
        assert installed.one("NetworkPolicy", "-broker")["spec"]["ingress"][0]["ports"] == ports
        for component in ("gateway", "stats", "console"):
            rules = installed.one("NetworkPolicy", f"-{component}")["spec"]["egress"]
            assert ports in [rule["ports"] for rule in rules]
    # Admin ports, which anybody may use who reaches them, are none of these.
    assert not any(32768 <= getattr(Config(), name).admin_port <= 60999 for name in ("broker", "gateway"))


def test_only_the_gateway_is_open_to_everybody_and_only_where_devices_come() -> None:
    for rendered, ports in (
        (anonymous(), {1883}),
        (render(PRODUCTION), {1883, 8883, 8083}),
        (render(CHART / "ci/proxy.yaml"), {1883, 1885, 8083}),
    ):
        for policy in rendered.all("NetworkPolicy"):
            open_to_all = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
            if policy["metadata"]["name"].endswith("-gateway"):
                (rule,) = open_to_all
                assert {port["port"] for port in rule["ports"]} == ports
            else:
                assert open_to_all == []


def test_metrics_are_for_the_namespace_of_monitoring() -> None:
    rendered = anonymous()
    for component, _ in rendered.pods():
        if component == "test":
            continue
        admin = getattr(Config(), component).admin_port
        rules = rendered.one("NetworkPolicy", f"-{component}")["spec"]["ingress"]
        (peers,) = [rule["from"] for rule in rules if rule["ports"] == [{"port": admin}]]
        assert peers == [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ]


def test_applications_with_the_label_may_use_brokers_and_registries() -> None:
    rendered = render(PRODUCTION)
    for component in ("broker", "registry"):
        rule = rendered.one("NetworkPolicy", f"-{component}")["spec"]["ingress"][0]
        assert {"podSelector": {"matchLabels": {f"{NAME}-client": "true"}}} in rule["from"]
        assert {"namespaceSelector": {"matchLabels": {"team": "apps"}}} in rule["from"]


def test_driver_and_executors_talk_to_each_other_and_the_driver_to_kubernetes() -> None:
    rendered = render(CHART / "ci/spark.yaml")
    for role, ways in (("driver", {53, 443, 6443}), ("executor", {53})):
        spec = rendered.one("NetworkPolicy", f"stats-{role}")["spec"]
        anywhere = [rule for rule in spec["egress"] if "to" not in rule]
        assert {port["port"] for rule in anywhere for port in rule["ports"]} == ways
        (each_other,) = [rule for rule in spec["egress"] if "to" in rule and "ports" not in rule]
        (peer,) = each_other["to"]
        assert peer["podSelector"]["matchExpressions"][0]["values"] == ["stats-driver", "stats-executor"]
