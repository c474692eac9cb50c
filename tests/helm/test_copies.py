"""Brokers with copies: a StatefulSet for each shard, whose pods find each other and the coordinator."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from helm_chart import CHART, NAME, NAMESPACE, ROOT, HelmRefused, Manifest, Rendered, anonymous, render

from broker.alerts.core.shard_copies import COPIES_MISSING, NO_LEADER, ONE_COPY_LEFT, REPLICA_LAG
from holdmq.config.model import Config
from holdmq.config.sources import load
from holdmq.files.private_file import open_to_others
from holdmq.service import process

COPIES = CHART / "ci/copies.yaml"
ETCD = CHART / "ci/etcd.yaml"
DOMAIN = f"{NAME}-broker.{NAMESPACE}.svc.cluster.local"


def shards(rendered: Rendered) -> dict[str, Manifest]:
    """The StatefulSets of brokers, by their names."""
    sets = {one["metadata"]["name"]: one["spec"] for one in rendered.all("StatefulSet")}
    return {name: spec for name, spec in sets.items() if name.startswith(f"{NAME}-broker")}


def configs(rendered: Rendered, directory: Path) -> dict[str, Config]:
    """What each broker's process reads, by its pod's name."""
    path = directory / "holdmq.toml"
    path.write_text(rendered.toml("broker"))
    found = {}
    for name, spec in shards(rendered).items():
        for ordinal in range(spec["replicas"]):
            environ: dict[str, str] = {}
            for one in spec["template"]["spec"]["containers"][0]["env"]:
                if "valueFrom" in one:
                    assert one["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
                value = one.get("value", f"{name}-{ordinal}")
                # Kubernetes puts in the variables that come before.
                for known, content in environ.items():
                    value = value.replace(f"$({known})", content)
                environ[one["name"]] = value
            found[f"{name}-{ordinal}"] = load(path, environ=environ)
    return found


def test_every_copy_knows_its_shard_itself_and_the_others_by_stable_names(tmp_path: Path) -> None:
    found = configs(render(COPIES), tmp_path)
    assert sorted(found) == [f"{NAME}-broker-{shard}-{copy}" for shard in range(2) for copy in range(3)]
    for pod, config in found.items():
        shard = pod.rpartition("-")[0]
        assert config.broker.name == shard
        assert config.broker.advertise == f"{pod}.{DOMAIN}:{config.broker.port}"
        replication = config.replication
        assert replication.replica == pod
        assert replication.addresses() == {
            f"{shard}-{copy}": f"{shard}-{copy}.{DOMAIN}:{replication.port}" for copy in range(3)
        }
        assert (replication.bind, replication.min_in_sync, replication.lag_ms) == ("0.0.0.0", 2, 5000)
        assert config.coordination.kind == "kubernetes"


def test_a_name_of_a_copy_is_one_also_where_names_are_long(tmp_path: Path) -> None:
    rendered = anonymous(fullnameOverride="x" * 60, broker={"shards": 100, "copies": 7})
    path = tmp_path / "holdmq.toml"
    path.write_text(rendered.toml("broker"))
    for one in rendered.all("StatefulSet"):
        if "broker" not in one["metadata"]["name"]:
            continue
        (given,) = (
            variable["value"]
            for variable in one["spec"]["template"]["spec"]["containers"][0]["env"]
            if variable["name"] == "HOLDMQ_REPLICATION__REPLICAS"
        )
        found = load(path, environ={"HOLDMQ_REPLICATION__REPLICAS": given}).replication
        assert len(found.addresses()) == 7
        assert max(map(len, found.addresses())) <= 63


def test_the_headless_service_names_copies_and_has_their_port() -> None:
    rendered = render(COPIES)
    service = rendered.one("Service", f"{NAME}-broker")["spec"]
    assert {"name": "replicas", "port": Config().replication.port, "targetPort": "replicas"} in service[
        "ports"
    ]
    assert service["publishNotReadyAddresses"]
    for spec in shards(rendered).values():
        assert spec["serviceName"] == f"{NAME}-broker"
        labels = spec["template"]["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()
        (container,) = spec["template"]["spec"]["containers"]
        assert {"name": "replicas", "containerPort": Config().replication.port} in container["ports"]


def test_the_first_start_has_all_copies_at_once_and_an_upgrade_one_after_the_other() -> None:
    for spec in shards(render(COPIES)).values():
        assert spec["podManagementPolicy"] == "Parallel"
        # Without a strategy of its own a set is updated a pod at a time, each once the one before is ready.
        assert "updateStrategy" not in spec
        (container,) = spec["template"]["spec"]["containers"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_a_copy_is_given_the_time_to_hand_the_lead_over() -> None:
    for spec in shards(render(COPIES)).values():
        grace_s = spec["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace_s >= process.STOP_LIMIT_S + Config().replication.switch_ms / 1e3


def test_a_node_that_is_emptied_takes_one_copy_of_a_shard() -> None:
    rendered = render(COPIES)
    budgets = {
        one["metadata"]["name"]: one["spec"]
        for one in rendered.all("PodDisruptionBudget")
        if one["metadata"]["name"].startswith(f"{NAME}-broker")
    }
    sets = shards(rendered)
    assert budgets.keys() == sets.keys()
    for name, budget in budgets.items():
        assert budget["maxUnavailable"] == 1
        chosen = budget["selector"]["matchLabels"].items()
        of = [one for one, spec in sets.items() if chosen <= spec["template"]["metadata"]["labels"].items()]
        assert of == [name]


def test_copies_of_a_shard_are_on_nodes_of_their_own() -> None:
    for spec in shards(render(COPIES)).values():
        (term,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"]
    for spec in shards(render(ETCD)).values():
        ((weighed,),) = spec["template"]["spec"]["affinity"]["podAntiAffinity"].values()
        assert weighed["weight"] == 100
        assert weighed["podAffinityTerm"]["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"]


def test_an_affinity_of_the_users_is_added_to_and_one_against_pods_is_the_users_alone() -> None:
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    both = anonymous(broker={"copies": 3, "pod": {"affinity": {"nodeAffinity": nodes}}})
    (spec,) = shards(both).values()
    assert spec["template"]["spec"]["affinity"].keys() == {"nodeAffinity", "podAntiAffinity"}
    against: dict[str, Any] = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    own = anonymous(broker={"copies": 3, "pod": {"affinity": {"podAntiAffinity": against}}})
    (spec,) = shards(own).values()
    assert spec["template"]["spec"]["affinity"] == {"podAntiAffinity": against}


def test_brokers_may_change_leases_of_their_namespace_and_nothing_else() -> None:
    rendered = render(COPIES)
    role = rendered.one("Role", f"{NAME}-broker")
    guide = (ROOT / "docs/coordination.md").read_text()
    (documented,) = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", guide, re.DOTALL)
    assert role["rules"] == yaml.safe_load(documented)["rules"]
    account = rendered.one("ServiceAccount", f"{NAME}-broker")["metadata"]["name"]
    binding = rendered.one("RoleBinding", f"{NAME}-broker")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    for spec in shards(rendered).values():
        assert spec["template"]["spec"]["serviceAccountName"] == account
    assert rendered.all("ClusterRole") == []


@pytest.mark.parametrize("rendered", [anonymous(), render(ETCD)], ids=["one copy", "etcd"])
def test_nobody_has_an_account_who_asks_kubernetes_nothing(rendered: Rendered) -> None:
    for kind in ("ServiceAccount", "Role", "RoleBinding"):
        assert rendered.all(kind) == []
    assert "serviceAccountName" not in rendered.pod("broker")


def test_an_etcd_is_reached_with_the_files_of_one_secret(tmp_path: Path) -> None:
    rendered = render(ETCD)
    config = configs(rendered, tmp_path)[f"{NAME}-broker-0-1"]
    etcd = config.coordination.etcd
    assert (config.coordination.kind, config.coordination.ttl_s) == ("etcd", 12)
    assert config.replication.min_in_sync == 1
    assert (len(etcd.urls), etcd.user, etcd.prefix) == (3, "holdmq", "/iot/")
    pod = rendered.pod("broker")
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "etcd")
    (volume,) = (one["secret"] for one in pod["volumes"] if one["name"] == "etcd")
    assert volume["secretName"] == "etcd"
    assert not open_to_others(volume["defaultMode"], owner=0)
    there = {str(PurePosixPath(mount["mountPath"]) / item["path"]) for item in volume["items"]}
    assert there == {etcd.password_file, etcd.tls_ca, etcd.tls_cert, etcd.tls_key}


def test_policies_let_copies_reach_each_other_and_who_decides_and_the_console_ask_them() -> None:
    rendered = render(COPIES)
    policy, console = (
        rendered.one("NetworkPolicy", f"{NAME}-{component}")["spec"] for component in ("broker", "console")
    )
    port = Config().replication.port
    for rules, side, peers in (
        (policy["ingress"], "from", ["broker", "console"]),
        (policy["egress"], "to", ["broker"]),
        (console["egress"], "to", ["broker"]),
    ):
        (rule,) = (one for one in rules if {"port": port} in one["ports"])
        (peer,) = rule[side]
        (expression,) = peer["podSelector"]["matchExpressions"]
        assert expression["values"] == peers
    assert {"ports": [{"port": 443}, {"port": 6443}]} in policy["egress"]
    alone = json.dumps(anonymous().all("NetworkPolicy"))
    assert f"{port}" not in alone
    assert "6443" not in alone


def test_alerts_of_copies_lead_to_the_section_of_their_alarm() -> None:
    guide = (ROOT / "docs/replication.md").read_text()
    for runbooks in ("https://holdmq.example.org/docs", "https://wiki.example.com/holdmq/"):
        given = {"metrics": {"rules": {"enabled": True, "runbooks": runbooks}}}
        (group,) = anonymous(**given).one("PrometheusRule")["spec"]["groups"]
        links = {
            rule["alert"]: rule["annotations"].get("runbook_url", "")
            for rule in group["rules"]
            if "holdmq_replication_" in rule["expr"]
        }
        page = f"{runbooks.rstrip('/')}/replication.md#"
        assert {link.removeprefix(page) for link in links.values()} == {
            REPLICA_LAG, COPIES_MISSING, ONE_COPY_LEFT, NO_LEADER,
        }  # fmt: skip
        for alert, link in links.items():
            assert f"\n### {link.removeprefix(page)}\n" in guide, alert
            assert f"`{alert}`" in guide, alert


def test_one_copy_is_as_it_was(tmp_path: Path) -> None:
    rendered = anonymous(broker={"shards": 2})
    assert shards(rendered).keys() == {f"{NAME}-broker"}
    config = rendered.config("broker", tmp_path)
    assert (config.replication, config.coordination) == (Config().replication, Config().coordination)
    assert "affinity" not in rendered.pod("broker")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {
                "broker": {"copies": 3, "engine": "kv", "kv": {"url": "redis://h"}},
                "networkPolicy": {"enabled": False},
            },
            "broker.copies is of the engine log",
        ),
        ({"broker": {"copies": 2, "minInSync": 3}}, "broker.minInSync is more than broker.copies"),
        (
            {"broker": {"copies": 3, "coordination": {"kind": "etcd"}}},
            "found by the URLs of its members: broker.coordination.etcd.urls",
        ),
        (
            {"broker": {"copies": 3, "coordination": {"kind": "etcd", "etcd": {"urls": ["http://e:2379"]}}}},
            "networkPolicy.brokerEgress has to let brokers reach the members of broker.coordination.etcd",
        ),
        (
            {
                "broker": {
                    "copies": 3,
                    "coordination": {"kind": "etcd", "etcd": {"urls": ["https://e:2379"], "caKey": "ca.crt"}},
                }
            },
            "are keys of the secret broker.coordination.etcd.existingSecret, which is not set",
        ),
        (
            {
                "broker": {
                    "copies": 3,
                    "coordination": {"kind": "etcd", "etcd": {"urls": ["http://e:2379"], "user": "u"}},
                }
            },
            "broker.coordination.etcd.user and passwordKey belong together",
        ),
        (
            {"broker": {"copies": 3}, "config": {"replication": {"replicas": ["a=b:1", "c=d:1"]}}},
            "config.replication.replicas is set by the chart; see broker.copies",
        ),
        (
            {"broker": {"copies": 3}, "config": {"coordination": {"kind": "etcd"}}},
            "config.coordination.kind is set by the chart; see its values",
        ),
    ],
)
def test_copies_that_could_not_work_are_refused_in_a_sentence(values: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmRefused, match=re.escape(said)):
        render(**values)
