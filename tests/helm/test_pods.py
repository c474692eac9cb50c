"""What every pod of the chart is: an unprivileged process with a configuration that the product takes."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import typer
from helm_chart import CHART, NAME, NAMESPACE, ROOT, VALUES, Manifest, Rendered, anonymous, render
from packaging.requirements import Requirement

from holdmq.cli.app import command_line
from holdmq.config.model import Config
from holdmq.credentials.access_keys import load_keys
from holdmq.credentials.permissions import Role
from holdmq.files.private_file import open_to_others
from holdmq.service import process
from holdmq.service.admin import AdminServer
from spark_streaming import main as stats

CONTAINERFILE = (ROOT / "Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE_PACKAGES = PurePosixPath("/opt/holdmq/lib/python3.11/site-packages")
SERVICES = ("registry", "broker", "gateway", "stats", "console")
EVERY = [pytest.param(file, id=file.stem) for file in VALUES]


def mounts(pod: Manifest) -> dict[str, Manifest]:
    """Where the pod's container has which volume: mount path → volume; a claim of a StatefulSet is empty."""
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    return {mount["mountPath"]: volumes.get(mount["name"], {}) for mount in container["volumeMounts"]}


def files_of(pod: Manifest, rendered: Rendered) -> set[str]:
    """The files of ConfigMaps and secrets, as the container finds them, that the pod names."""
    found = set()
    for path, volume in mounts(pod).items():
        if "configMap" in volume:
            data = rendered.one("ConfigMap", volume["configMap"]["name"])["data"]
            found |= {f"{path}/{name}" for name in data}
        for item in volume.get("secret", {}).get("items", []):
            found.add(f"{path}/{item['path']}")
    return found


@pytest.mark.parametrize("file", EVERY)
def test_no_pod_may_do_more_than_it_must(file: Path) -> None:
    user, gid = re.findall(r"^USER (\d+):(\d+)$", CONTAINERFILE, re.MULTILINE)[0]
    rendered = render(file)
    # Only Spark's driver asks something of Kubernetes, and brokers whose copies it tells which one leads.
    asking = {"stats-driver"}
    if 'kind = "kubernetes"' in rendered.toml("broker"):
        asking.add("broker")
    for component, pod in rendered.pods():
        context = pod["securityContext"]
        assert context["runAsNonRoot"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
            int(user),
            int(gid),
            int(gid),
        )
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.get("automountServiceAccountToken", True) == (component in asking)
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        # What can be written is where the images say that processes write.
        for path, volume in mounts(pod).items():
            if not volume or {"emptyDir", "persistentVolumeClaim"} & volume.keys():
                assert path in {"/tmp", "/var/lib/holdmq", "/var/lib/holdmq-stats", "/scratch"}


@pytest.mark.parametrize("file", EVERY)
def test_each_process_takes_its_configuration_and_finds_the_files_that_it_names(
    file: Path, tmp_path: Path
) -> None:
    rendered = render(file)
    for component in SERVICES:
        if component not in dict(rendered.pods()):
            continue
        config = rendered.config(component, tmp_path)
        pod = rendered.pod(component)
        there = files_of(pod, rendered)
        named = [
            config.client.secret_file,
            config.client.tls_ca,
            config.security.keys_file,
            config.security.tls_cert,
            config.security.tls_key,
            config.storage.kv.ca_file,
            config.coordination.etcd.password_file,
            config.coordination.etcd.tls_ca,
            config.coordination.etcd.tls_cert,
            config.coordination.etcd.tls_key,
        ]
        assert set(filter(None, named)) <= there
        others = [config.access.password_file, config.access.scram_file, config.access.acl_file]
        for listener in config.gateway.all_listeners():
            others += [listener.tls_cert, listener.tls_key, listener.tls_client_ca]
        for name in filter(None, others):
            assert "secret" in mounts(pod)[str(PurePosixPath(name).parent)]
        assert isinstance(config.gateway.anonymous_allowed(), bool)
        for section in ("registry", "broker"):
            assert not config.rpc_anonymous_allowed(section) or component not in ("registry", "broker")


@pytest.mark.parametrize("file", EVERY)
def test_arguments_are_a_command_of_the_product(file: Path) -> None:
    for component, pod in render(file).pods():
        (container,) = pod["containers"]
        if "args" not in container:
            continue
        service, *options = container["args"]
        line: Any = typer.main.get_command(command_line(service))
        parsed = line.commands[service].make_context(service, list(options)).params
        if component in SERVICES:
            assert parsed["config_file"] == Path("/etc/holdmq/holdmq.toml")
            assert service == component


def test_secrets_may_be_read_by_the_process_and_by_nobody_else() -> None:
    for _, pod in render(CHART / "ci/production.yaml").pods():
        for volume in mounts(pod).values():
            if "secret" in volume:
                mode = volume["secret"]["defaultMode"]
                assert mode & 0o040
                assert not open_to_others(mode, owner=0)


def test_the_chart_makes_access_keys_each_with_the_least_role_that_will_do(tmp_path: Path) -> None:
    rendered = anonymous()
    secret = rendered.one("Secret", f"{NAME}-keys")
    data = {name: _base64(text) for name, text in secret["data"].items()}
    path = tmp_path / "keys.toml"
    path.write_text(data["keys.toml"])
    path.chmod(0o600)
    keys = load_keys(path)
    assert {name: key.roles for name, key in keys.items()} == {
        "broker": {Role.BROKER},
        "gateway": {Role.SERVICE},
        "reader": {Role.READER},
        "admin": {Role.ADMIN},
    }
    assert {name: key.secret for name, key in keys.items()} == {
        name: data[f"{name}.secret"].strip() for name in keys
    }
    assert len({key.secret for key in keys.values()}) == 4
    # Nobody has a secret of somebody else's, and what runs keeps its keys over upgrades and removals.
    given = {
        component: {PurePosixPath(name).name for name in files_of(pod, rendered) if "/secrets/" in name}
        for component, pod in rendered.pods()
    }
    assert given == {
        "registry": {"keys.toml", "broker.secret"},
        "broker": {"keys.toml", "broker.secret"},
        "gateway": {"gateway.secret"},
        "stats": {"reader.secret"},
        "console": {"admin.secret"},
        "test": set(),
    }
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def _base64(text: str) -> str:
    import base64

    return base64.b64decode(text).decode()


def test_a_secret_of_the_users_takes_the_place_of_the_charts() -> None:
    rendered = anonymous(keys={"existingSecret": "mine"})
    assert rendered.all("Secret") == []
    assert mounts(rendered.pod("broker"))["/run/secrets/holdmq"]["secret"]["secretName"] == "mine"


def test_tls_comes_from_a_secret_or_from_cert_manager() -> None:
    own = render(CHART / "ci/production.yaml")
    assert own.all("Certificate") == []
    assert mounts(own.pod("gateway"))["/run/secrets/mqtt-tls"]["secret"]["secretName"] == "mqtt-tls"
    made = render(CHART / "ci/keda.yaml")
    for component, path in (("broker", "tls"), ("gateway", "mqtt-tls")):
        name = mounts(made.pod(component))[f"/run/secrets/{path}"]["secret"]["secretName"]
        (certificate,) = [one for one in made.all("Certificate") if one["spec"]["secretName"] == name]
        assert certificate["metadata"]["name"] == name
    internal = made.one("Certificate", f"{NAME}-tls")["spec"]["dnsNames"]
    # The names by which brokers and registries are asked.
    asked = [registry.partition(":")[0] for registry in _toml(made, "gateway")["client"]["registries"]]
    advertised = _variables(made, "broker")["HOLDMQ_BROKER__ADVERTISE"]
    asked.append(advertised.replace("$(HOLDMQ_BROKER__NAME)", f"{NAME}-broker-0").partition(":")[0])
    for name in asked:
        assert f"*.{name.partition('.')[2]}" in internal
    # Who only connects has the authority, and no key.
    assert files_of(made.pod("gateway"), made) >= {"/run/secrets/tls/ca.crt"}
    assert "/run/secrets/tls/tls.key" not in files_of(made.pod("gateway"), made)


def _toml(rendered: Rendered, component: str) -> dict[str, Any]:
    return tomllib.loads(rendered.toml(component))


def _variables(rendered: Rendered, component: str) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in rendered.container(component).get("env", [])}


def test_brokers_and_registries_are_found_by_the_names_that_their_services_give_them() -> None:
    rendered = anonymous(registry={"replicas": 3}, broker={"shards": 2})
    for component in ("broker", "registry"):
        pods = rendered.one("StatefulSet", component)["spec"]
        service = rendered.one("Service", f"{NAME}-{component}")
        assert pods["serviceName"] == service["metadata"]["name"]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"]
        assert service["spec"]["selector"].items() <= pods["template"]["metadata"]["labels"].items()
    domain = f"{NAME}-registry.{NAMESPACE}.svc.cluster.local"
    assert _toml(rendered, "gateway")["client"]["registries"] == [
        f"{NAME}-registry-{index}.{domain}:{Config().registry.port}" for index in range(3)
    ]
    assert rendered.one("StatefulSet", "broker")["spec"]["replicas"] == 2


def test_brokers_of_the_key_value_engine_have_no_volume_and_are_told_of_their_servers(tmp_path: Path) -> None:
    rendered = render(CHART / "ci/kv.yaml")
    brokers = rendered.one("StatefulSet", "broker")["spec"]
    assert "volumeClaimTemplates" not in brokers
    assert "/var/lib/holdmq" not in mounts(rendered.pod("broker"))
    told = {one["name"]: one for one in rendered.container("broker")["env"]}["HOLDMQ_STORAGE__KV__URL"]
    assert told["valueFrom"] == {"secretKeyRef": {"name": "valkey", "key": "url"}}
    storage = rendered.config("broker", tmp_path).storage
    # The chart's keys, and beside them the user's.
    kv = storage.kv
    assert (storage.engine, kv.prefix, kv.min_replicas, kv.lease_ms) == ("kv", "iot", 1, 6000)
    for component in ("gateway", "registry", "stats"):
        assert "HOLDMQ_STORAGE__KV__URL" not in _variables(rendered, component)
    open_servers = {"engine": "kv", "kv": {"url": "redis://kv-0:6379,kv-1:6379/"}}
    bare = anonymous(broker=open_servers, networkPolicy={"enabled": False})
    assert bare.config("broker", tmp_path).storage.kv.servers().hosts == (("kv-0", 6379), ("kv-1", 6379))
    assert "HOLDMQ_STORAGE__KV__URL" not in _variables(bare, "broker")
    assert anonymous().config("broker", tmp_path).storage.engine == "log"


def test_probes_ask_on_three_paths_what_each_process_answers() -> None:
    asked = {"startupProbe": "/startz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    admin = AdminServer(
        "127.0.0.1", 0, started=lambda: (True, ""), ready=lambda: (True, ""), alive=lambda: (True, "")
    )
    try:
        import urllib.request

        for path in asked.values():
            with urllib.request.urlopen(f"http://127.0.0.1:{admin.port}{path}", timeout=40) as answer:
                assert answer.status == 200
    finally:
        admin.close()
    rendered = anonymous()
    for component in SERVICES:
        container = rendered.container(component)
        given = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
        assert given == {name: {"path": path, "port": "admin"} for name, path in asked.items()}
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        section = getattr(Config(), component)
        assert ports["admin"] == section.admin_port == _toml(rendered, component)[component]["admin_port"]
        assert _toml(rendered, component)[component]["admin_bind"] == "0.0.0.0"


def test_a_driver_is_not_held_up_by_what_its_executors_wait_for() -> None:
    # Executors find the driver by a headless service, which has ready pods only, and the job is ready once
    # they have worked: a driver that waited to be ready would wait for ever.
    driver = render(CHART / "ci/spark.yaml").container("stats-driver")
    probes = {name: probe["httpGet"]["path"] for name, probe in driver.items() if name.endswith("Probe")}
    assert probes == {"startupProbe": "/healthz", "livenessProbe": "/healthz"}


@pytest.mark.parametrize("component", ["registry", "broker", "stats", "console"])
def test_a_process_is_given_the_time_to_stop(component: str) -> None:
    grace_s = anonymous().pod(component)["terminationGracePeriodSeconds"]
    assert grace_s > process.STOP_LIMIT_S > stats.DRAIN_WAIT_S


def test_only_a_change_of_its_own_configuration_starts_a_process_anew() -> None:
    before, after = anonymous(), anonymous(config={"storage": {"flush": "sync"}})

    def sums(rendered: Rendered) -> dict[str, str]:
        return {
            one["metadata"]["name"].removeprefix(f"{NAME}-"): one["spec"]["template"]["metadata"][
                "annotations"
            ]["checksum/config"]
            for kind in ("Deployment", "StatefulSet")
            for one in rendered.all(kind)
        }

    changed = {name for name, one in sums(before).items() if sums(after)[name] != one}
    assert changed == {"broker"}


def test_what_the_user_adds_is_in_the_pods() -> None:
    rendered = render(CHART / "ci/production.yaml")
    broker = rendered.pod("broker")
    assert broker["nodeSelector"] == {"disks": "nvme"}
    assert {"name": "HOLDMQ_LOG__LEVEL", "value": "info"} in broker["containers"][0]["env"]
    assert mounts(broker)["/scratch"] == {"name": "scratch", "emptyDir": {}}
    gateway = rendered.pod("gateway")
    assert gateway["priorityClassName"] == "high"
    assert gateway["tolerations"] == [{"key": "gateways", "operator": "Exists"}]
    assert gateway["containers"][0]["image"].startswith("registry.example.org/iot/holdmq@sha256:0123456789")
    assert [one["topologyKey"] for one in gateway["topologySpreadConstraints"]] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    for _, pod in rendered.pods():
        assert pod["imagePullSecrets"] == [{"name": "mirror"}]


def test_budgets_let_nodes_be_emptied_a_pod_at_a_time() -> None:
    rendered = anonymous()
    for component in ("gateway", "broker", "registry"):
        budget = rendered.one("PodDisruptionBudget", component)["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"]["app.kubernetes.io/component"] == component


# The job and the console


def test_one_job_at_a_time_has_the_data_which_executors_do_not_have() -> None:
    deployment = anonymous().one("Deployment", "stats")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    spark = render(CHART / "ci/spark.yaml")
    claim = spark.one("PersistentVolumeClaim", "stats")["metadata"]["name"]
    driver = mounts(spark.pod("stats-driver"))["/var/lib/holdmq"]
    assert driver["persistentVolumeClaim"] == {"claimName": claim}
    executor = mounts(spark.pod("stats-executor"))
    assert not any("persistentVolumeClaim" in volume for volume in executor.values())
    # Both read brokers with the same credentials.
    assert executor["/run/secrets/holdmq"]["secret"]["items"] == [
        {"key": "reader.secret", "path": "reader.secret"}
    ]


def test_the_job_is_a_spark_application_where_the_operator_is() -> None:
    found = anonymous(apis="sparkoperator.k8s.io/v1beta2")
    assert [one["metadata"]["name"] for one in found.all("SparkApplication")] == [f"{NAME}-stats"]
    assert anonymous().all("SparkApplication") == []
    forced = anonymous(apis="sparkoperator.k8s.io/v1beta2", stats={"mode": "deployment"})
    assert forced.all("SparkApplication") == []


def test_the_console_reads_the_tables_where_the_job_writes_them(tmp_path: Path) -> None:
    rendered = anonymous()
    writer, reader = rendered.config("stats", tmp_path), rendered.config("console", tmp_path)
    at = {
        component: next(
            PurePosixPath(path)
            for path, volume in mounts(rendered.pod(component)).items()
            if volume.get("persistentVolumeClaim", {}).get("claimName") == f"{NAME}-stats"
        )
        for component in ("stats", "console")
    }
    relative = PurePosixPath(writer.stats.data_dir).relative_to(at["stats"])
    assert PurePosixPath(reader.stats.data_dir).relative_to(at["console"]) == relative
    (term,) = rendered.pod("console")["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "stats"
    assert "affinity" not in render(CHART / "ci/keda.yaml").pod("console")
    database = render(CHART / "ci/production.yaml")
    assert database.config("console", tmp_path).stats.sink == "postgresql"
    assert "/var/lib/holdmq-stats" not in mounts(database.pod("console"))
    for component in ("stats", "console"):
        (variable,) = database.container(component)["env"]
        assert variable["name"] == "HOLDMQ_STATS__POSTGRESQL_URL"


def test_the_driver_may_do_what_it_does_and_no_more() -> None:
    rendered = render(CHART / "ci/spark.yaml")
    application = rendered.one("SparkApplication")["spec"]
    account = rendered.one("ServiceAccount")["metadata"]["name"]
    binding = rendered.one("RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert binding["roleRef"]["name"] == rendered.one("Role")["metadata"]["name"]
    assert application["driver"]["serviceAccount"] == account
    for role in ("driver", "executor"):
        # The names by which the operator tells Spark's container from others.
        assert rendered.container(f"stats-{role}")["name"] == f"spark-kubernetes-{role}"


def test_files_that_are_named_inside_the_image_are_in_the_wheel() -> None:
    application = render(CHART / "ci/spark.yaml").one("SparkApplication")["spec"]
    option = "-Dlog4j2.configurationFile="
    named = {application["mainApplicationFile"].removeprefix("local://")}
    for role in ("driver", "executor"):
        options = application[role]["javaOptions"].split()
        named |= {one.removeprefix(option) for one in options if one.startswith(option)}
    assert len(named) == 2
    for path in named:
        inside = PurePosixPath(path).relative_to(SITE_PACKAGES)
        package = importlib.util.find_spec(inside.parts[0])
        assert package is not None
        assert package.submodule_search_locations is not None
        assert Path(package.submodule_search_locations[0], *inside.parts[1:]).is_file()


def test_versions_and_memory_are_those_of_the_project() -> None:
    chart = (CHART / "Chart.yaml").read_text()
    assert f"\nappVersion: {PROJECT['version']}\n" in chart
    application = render(CHART / "ci/spark.yaml").one("SparkApplication")["spec"]
    (spark,) = (
        wanted
        for wanted in map(Requirement, PROJECT["optional-dependencies"]["spark"])
        if wanted.name == "pyspark"
    )
    assert application["sparkVersion"] in spark.specifier
    heap_mib = Config().stats.driver_heap_bytes >> 20
    assert application["driver"]["memory"] == f"{heap_mib}m"
    resources = anonymous().container("stats")["resources"]
    assert int(resources["requests"]["memory"].removesuffix("Mi")) >= 2 * heap_mib
