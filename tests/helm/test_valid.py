"""Helm 3 and 4 take the chart, Kubernetes and its extensions what it renders, field by field."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_chart import (
    CHART,
    KUBERNETES,
    MAJORS,
    NODE,
    ROOT,
    VALUES,
    HelmRefused,
    Manifest,
    Rendered,
    anonymous,
    helm,
    render,
)
from kubeflow_spark_api.models import SparkV1beta2SparkApplication
from pydantic import ValidationError

EXTENSIONS = ("keda.sh", "monitoring.coreos.com", "cert-manager.io")
PACKAGES = ("keda", "prometheus-operator", "cert-manager", "apimachinery")
MAPS = {"labels", "annotations", "matchLabels"}
"""Objects whose keys are the user's."""


def group(one: Manifest) -> str:
    return str(one["apiVersion"]).split("/")[0]


def wrong_by_schema(manifests: list[Manifest]) -> list[list[str]]:
    """For each object of an extension what is wrong with it."""
    done = subprocess.run(
        ["node", ROOT / "tests/support/kubernetes_extensions.mjs", NODE],
        input=json.dumps(manifests),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


def known_fields() -> set[str]:
    """The names of all fields that the extensions' types have."""
    folders = [NODE / "node_modules/@kubernetes-models" / name for name in PACKAGES]
    files = [
        file
        for folder in folders
        for file in folder.rglob("*.d.ts")
        if "node_modules" not in file.parts[-5:-1]
    ]
    return {
        name
        for file in files
        for name in re.findall(r'^\s*(?:readonly )?"?(\w+)"?\??:', file.read_text(), re.MULTILINE)
    }


def fields(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in MAPS and not (
                key == "metadata" and "type" in value
            ):  # metadata of a trigger of KEDA
                yield from fields(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner)


def lost(given: Any, kept: Any, at: str = "") -> Iterator[str]:
    """The places in `given` that are not in `kept`, which may have more."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            yield from lost(value, kept.get(name), f"{at}.{name}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, value in enumerate(given):
            yield from lost(value, kept[index], f"{at}[{index}]")
    elif given != kept:
        yield at


def unknown_to_operator(application: Manifest) -> list[str]:
    """The fields that the Spark operator's model lacks; ValidationError for wrong values."""
    model = SparkV1beta2SparkApplication.from_dict(application)
    assert model is not None
    return list(lost(application, model.to_dict()))


@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_finds_nothing_to_say_about_the_chart(values: Path, major: int) -> None:
    done = helm(major, "lint", "--strict", CHART, "--values", values)
    assert done.returncode == 0, done.stdout
    said = re.findall(r"^\[(\w+)\] (.*)$", done.stdout, re.MULTILINE)
    assert said == [("INFO", "Chart.yaml: icon is recommended")]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("major", MAJORS)
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_kubernetes_takes_every_manifest_and_knows_every_field(
    values: Path, major: int, version: str
) -> None:
    rendered = render(values, major=major, version=version)
    assert len(rendered.manifests) > 10
    for one in rendered.manifests:
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        if group(one) not in (*EXTENSIONS, "sparkoperator.k8s.io"):
            take(json.dumps(one), version)


@functools.cache
def take(manifest: str, version: str) -> None:
    """Have Kubernetes's schemas take a manifest, as JSON: once, however many files and helms give it."""
    kubernetes_validate.validate(json.loads(manifest), version, strict=True)


def test_extensions_take_their_objects_and_know_every_field() -> None:
    ours = [one for file in VALUES for one in render(file).manifests if group(one) in EXTENSIONS]
    assert {one["kind"] for one in ours} == {
        "ScaledObject",
        "Certificate",
        "ServiceMonitor",
        "PrometheusRule",
    }
    assert wrong_by_schema(ours) == [[] for _ in ours]
    known = known_fields()
    assert {field for one in ours for field in fields(one)} - known == set()


def test_a_field_that_is_misspelt_or_missing_would_be_found() -> None:
    broken = render(CHART / "ci/keda.yaml").one("ScaledObject")
    broken["spec"]["minReplicasCount"] = broken["spec"].pop("minReplicaCount")
    assert set(fields(broken)) - known_fields() == {"minReplicasCount"}
    del broken["spec"]["triggers"]
    assert wrong_by_schema([broken]) == [["/spec must have required property triggers"]]
    deployment = anonymous().one("Deployment", "gateway")
    deployment["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFileSystem"):
        kubernetes_validate.validate(deployment, KUBERNETES[0], strict=True)


def test_the_spark_operators_own_model_takes_the_application_and_knows_every_field() -> None:
    given = render(CHART / "ci/spark.yaml").one("SparkApplication")
    assert unknown_to_operator(given) == []
    # Words that the operator's CRD lists and its model does not: config/crd, sparkapplications.
    assert given["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert given["spec"]["type"] in {"Java", "Python", "Scala", "R"}
    assert given["spec"]["mode"] in {"cluster", "client"}
    assert given["spec"]["restartPolicy"]["type"] in {"Never", "Always", "OnFailure"}
    for role in ("driver", "executor"):
        template = given["spec"][role]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        for version in KUBERNETES:
            pod["spec"]["containers"][0].setdefault("image", "set by Spark")
            kubernetes_validate.validate(pod, version, strict=True)


def test_a_field_that_the_spark_operator_does_not_know_would_be_found() -> None:
    given = render(CHART / "ci/spark.yaml").one("SparkApplication")
    given["spec"]["driver"]["coreRequests"] = "1"
    assert unknown_to_operator(given) == [".spec.driver.coreRequests"]
    given["spec"]["executor"]["cores"] = "two"
    with pytest.raises(ValidationError, match="cores"):
        unknown_to_operator(given)


def test_schema_and_readme_are_those_of_the_values() -> None:
    spec = importlib.util.spec_from_file_location("chart", ROOT / ".ci/chart.py")
    assert spec is not None
    assert spec.loader is not None
    chart = importlib.util.module_from_spec(spec)
    sys.modules["chart"] = chart
    spec.loader.exec_module(chart)
    for path, text in chart.written().items():
        assert path.read_text() == text, f"{path.name} is not what values.yaml says: make chart"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gatewy": {}}, "gatewy"),
        ({"gateway": {"replica": 3}}, "replica"),
        ({"gateway": {"pod": {"extraEnvs": []}}}, "extraEnvs"),
        ({"gateway": {"replicas": "three"}}, "replicas"),
        ({"broker": {"engine": "files"}}, "engine"),
        ({"broker": {"kv": {"url": "redis://user:password@host"}}}, "url"),
        ({"config": {"storage": {"flsh": "sync"}}}, "flsh"),
        ({"config": {"storage": {"flush": "sometimes"}}}, "flush"),
        ({"image": {"digest": "latest"}}, "digest"),
    ],
)
@pytest.mark.parametrize("major", MAJORS)
def test_a_value_that_there_is_not_is_refused_by_name(major: int, values: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmRefused, match=said):
        render(major=major, **values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"gateway": {"autoscaling": {"enabled": True}, "keda": {"enabled": True}}},
            "gateway.autoscaling and gateway.keda would both scale the gateway: enable one",
        ),
        (
            {"gateway": {"autoscaling": {"minReplicas": 5, "maxReplicas": 2}}},
            "gateway.autoscaling.maxReplicas is less than minReplicas",
        ),
        (
            {"gateway": {"connectionsMax": 1000000, "drain": {"ratePerSecond": 100}}},
            "takes 10006 s to end, and 3600 are the most: raise gateway.drain.ratePerSecond",
        ),
        (
            {"tls": {"enabled": True}},
            "tls.enabled needs a certificate: tls.existingSecret or tls.certManager",
        ),
        ({"mqtt": {"tls": {"enabled": True}}}, "mqtt.tls.enabled needs a certificate"),
        (
            {
                "tls": {
                    "enabled": True,
                    "existingSecret": "a",
                    "certManager": {"enabled": True, "issuer": "b"},
                }
            },
            "would both give the certificate: choose one",
        ),
        ({"tls": {"enabled": True, "certManager": {"enabled": True}}}, "needs the name of an issuer"),
        (
            {"mqtt": {"tls": {"enabled": True, "certManager": {"enabled": True, "issuer": "b"}}}},
            "needs the names under which devices connect: mqtt.tls.certManager.dnsNames",
        ),
        (
            {"mqtt": {"tls": {"enabled": True, "existingSecret": "a", "clientCertificates": "required"}}},
            "needs the authority that signs them: mqtt.tls.clientCaSecret",
        ),
        ({"mqtt": {"proxyProtocol": {"enabled": True}}}, "needs the networks of the load balancer"),
        ({"mqtt": {"tcp": {"enabled": False}}}, "the gateway has nothing to offer"),
        ({"console": {"ingress": {"enabled": True}}}, "console.ingress needs the name"),
        ({"config": {"gateway": {"port": 1884}}}, "config.gateway.port is set by the chart; see its values"),
        ({"broker": {"engine": "kv"}}, "needs servers: broker.kv.existingSecret or broker.kv.url"),
        (
            {"broker": {"engine": "kv", "kv": {"existingSecret": "s", "url": "redis://h"}}},
            "would both say where the servers are: choose one",
        ),
        ({"broker": {"engine": "kv", "kv": {"url": "rediss://h", "caKey": "c"}}}, "is a key of the secret"),
        (
            {"broker": {"engine": "kv", "kv": {"url": "redis://h"}}},
            "networkPolicy.brokerEgress has to let brokers reach the servers of broker.kv",
        ),
        (
            {
                "broker": {"engine": "kv", "kv": {"url": "redis://h"}},
                "networkPolicy": {"enabled": False},
                "config": {"storage": {"kv": {"prefix": "p"}}},
            },
            "config.storage.kv.prefix is set by the chart; see its values",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused_in_a_sentence(values: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmRefused, match=re.escape(said)):
        render(**values)


def test_helm_3_and_4_render_the_same() -> None:
    for file in VALUES:
        ours = [_without_random(render(file, major=major)) for major in MAJORS]
        assert ours[0] == ours[1], file.name


def _without_random(rendered: Rendered) -> list[Manifest]:
    """Manifests by kind and name, without the access keys, which are others each time."""
    manifests = [one for one in rendered.manifests if one["kind"] != "Secret"]
    return sorted(manifests, key=lambda one: (one["kind"], one["metadata"]["name"]))


def test_the_chart_says_what_artifact_hub_shows() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    annotations = chart["annotations"]
    for name in ("changes", "images", "recommendations"):
        assert yaml.safe_load(annotations[f"artifacthub.io/{name}"])
    images = {one["image"] for one in yaml.safe_load(annotations["artifacthub.io/images"])}
    used = {box["image"] for _, pod in anonymous().pods() for box in pod["containers"]}
    assert used == images
