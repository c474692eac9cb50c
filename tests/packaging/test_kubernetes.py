"""The manifests for Kubernetes and the Containerfile: valid, and true of the product and of each other."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from kubeflow_spark_api.models import SparkV1beta2SparkApplication
from packaging.requirements import Requirement
from pydantic import ValidationError

from holdmq.cli.app import command_line
from holdmq.config.model import Config
from holdmq.config.sources import load
from holdmq.files.private_file import open_to_others
from holdmq.service import process
from holdmq.service.admin import AdminServer
from spark_streaming import main as stats

ROOT = Path(__file__).parent.parent.parent
MANIFESTS = ROOT / "spark_streaming" / "kubernetes"
CONTAINERFILE = (ROOT / "Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE_PACKAGES = PurePosixPath("/opt/holdmq/lib/python3.11/site-packages")
"""Debian 12's Python is 3.11."""
OLDEST_KUBERNETES = "1.30"

Manifest = dict[str, Any]


def manifests(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def manifest(name: str, kind: str) -> Manifest:
    (found,) = (one for one in manifests(name) if one["kind"] == kind)
    return found


FILES = sorted(path.name for path in MANIFESTS.glob("*.yaml"))
APPLICATION = manifest("spark-application.yaml", "SparkApplication")["spec"]
POD_FILES = {"driver": "driver-pod.yaml", "executor": "executor-pod.yaml"}


def pods() -> dict[str, Manifest]:
    """The pod specs, by what runs in them."""
    return {
        "deployment": manifest("deployment.yaml", "Deployment")["spec"]["template"]["spec"],
        **{role: manifest(name, "Pod")["spec"] for role, name in POD_FILES.items()},
    }


def mounts(pod: Manifest) -> dict[str, Manifest]:
    """Where the pod's container has which volume: mount path → volume."""
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


@pytest.fixture(scope="module")
def job_config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """What the job in a pod reads."""
    path = tmp_path_factory.mktemp("config") / "holdmq.toml"
    path.write_text(manifest("config.yaml", "ConfigMap")["data"]["holdmq.toml"])
    return load(path, environ={})


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", [name for name in FILES if name != "spark-application.yaml"])
def test_kubernetes_takes_the_manifests_and_knows_every_field(name: str, version: str) -> None:
    for one in manifests(name):
        kubernetes_validate.validate(one, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_would_be_found() -> None:
    broken = manifest("deployment.yaml", "Deployment")
    broken["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFileSystem"):
        kubernetes_validate.validate(broken, OLDEST_KUBERNETES, strict=True)


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
    """The fields that the operator's model of an application lacks; ValidationError for wrong values."""
    model = SparkV1beta2SparkApplication.from_dict(application)
    assert model is not None
    return list(lost(application, model.to_dict()))


def test_the_operators_own_model_takes_the_application_and_knows_every_field() -> None:
    given = manifest("spark-application.yaml", "SparkApplication")
    assert unknown_to_operator(given) == []
    # Words that the operator's CRD lists and its model does not: config/crd, sparkapplications.
    assert given["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert APPLICATION["type"] in {"Java", "Python", "Scala", "R"}
    assert APPLICATION["mode"] in {"cluster", "client"}
    assert APPLICATION["restartPolicy"]["type"] in {"Never", "Always", "OnFailure"}


def test_a_field_that_the_operator_does_not_know_would_be_found() -> None:
    given = manifest("spark-application.yaml", "SparkApplication")
    given["spec"]["driver"]["coreRequests"] = "1"
    given["spec"]["executor"]["template"]["spec"]["containers"][0]["securityContexts"] = {}
    assert unknown_to_operator(given) == [
        ".spec.driver.coreRequests",
        ".spec.executor.template.spec.containers[0].securityContexts",
    ]
    given["spec"]["executor"]["cores"] = "two"
    with pytest.raises(ValidationError, match="cores"):
        unknown_to_operator(given)


@pytest.mark.parametrize("role", POD_FILES)
def test_the_operator_and_spark_submit_start_the_same_pods(role: str) -> None:
    pod = manifest(POD_FILES[role], "Pod")
    assert APPLICATION[role]["template"] == {"metadata": pod["metadata"], "spec": pod["spec"]}
    # The names by which the operator tells Spark's container from others.
    assert [one["name"] for one in pod["spec"]["containers"]] == [f"spark-kubernetes-{role}"]


def test_the_operator_and_spark_submit_have_the_same_settings() -> None:
    lines = (MANIFESTS / "spark-submit.conf").read_text().splitlines()
    given = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    account = given.pop("spark.kubernetes.authenticate.driver.serviceAccountName")
    assert account == APPLICATION["driver"]["serviceAccount"]
    for role, name in POD_FILES.items():
        assert given.pop(f"spark.kubernetes.{role}.podTemplateFile") == name
        of_role = {
            f"spark.{role}.cores": str(APPLICATION[role]["cores"]),
            f"spark.kubernetes.{role}.request.cores": APPLICATION[role]["coreRequest"],
            f"spark.{role}.memory": APPLICATION[role]["memory"],
            f"spark.{role}.memoryOverhead": APPLICATION[role]["memoryOverhead"],
            f"spark.{role}.extraJavaOptions": APPLICATION[role]["javaOptions"],
        }
        assert {key: given.pop(key) for key in of_role} == of_role
    assert given == {
        "spark.app.name": "holdmq-stats",
        "spark.executor.instances": str(APPLICATION["executor"]["instances"]),
        "spark.kubernetes.container.image": APPLICATION["image"],
        "spark.kubernetes.container.image.pullPolicy": APPLICATION["imagePullPolicy"],
        **APPLICATION["sparkConf"],
    }


def test_the_job_takes_its_configuration_and_finds_it_where_the_pods_mount_it(job_config: Config) -> None:
    (container,) = pods()["deployment"]["containers"]
    service, *of_service = container["args"]
    group: Any = typer.main.get_command(command_line("stats"))
    assert service == "stats"
    for arguments, role in ((of_service, "deployment"), (APPLICATION["arguments"], "driver")):
        # Options that the command does not know are refused here.
        parsed = group.commands[service].make_context(service, list(arguments)).params
        config = PurePosixPath(parsed["config_file"])
        assert mounts(pods()[role])[str(config.parent)]["configMap"]["name"] == "holdmq-stats"
        assert config.name in manifest("config.yaml", "ConfigMap")["data"]
    assert job_config.registries() == [f"holdmq-registry:{Config().registry.port}"]


def test_the_job_keeps_its_data_on_the_volume_which_executors_do_not_have(job_config: Config) -> None:
    claim = {
        "persistentVolumeClaim": {
            "claimName": manifest("config.yaml", "PersistentVolumeClaim")["metadata"]["name"]
        }
    }
    data = PurePosixPath(job_config.stats.data_dir)
    for role, pod in pods().items():
        holding = {path for path, volume in mounts(pod).items() if "persistentVolumeClaim" in volume}
        if role == "executor":
            assert holding == set()
            continue
        (path,) = holding
        assert data.is_relative_to(path)
        assert list(lost(claim, mounts(pod)[path])) == []


def test_driver_and_executors_find_the_secret_and_may_read_it(job_config: Config) -> None:
    secret = PurePosixPath(job_config.client.secret_file)
    assert job_config.client.access_key
    # The key of the secret that the page and the file tell to create.
    for text in ((MANIFESTS / "config.yaml").read_text(), (ROOT / "docs" / "spark.md").read_text()):
        assert f"create secret generic holdmq-stats --from-file={secret.name}=reader.secret" in text
    for pod in pods().values():
        volume = mounts(pod)[str(secret.parent)]["secret"]
        assert volume["secretName"] == "holdmq-stats"
        # Kubernetes gives the files to root and to this group, which may read what is root's.
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
        assert volume["defaultMode"] & 0o040
        assert not open_to_others(volume["defaultMode"], owner=0)


def test_probes_ask_what_the_job_answers_where_it_listens(job_config: Config) -> None:
    section = job_config.stats
    assert section.admin_bind == "0.0.0.0"
    asked = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    admin = AdminServer(
        "127.0.0.1", 0, started=lambda: (True, ""), ready=lambda: (True, ""), alive=lambda: (True, "")
    )
    try:
        for path in asked.values():
            with urllib.request.urlopen(f"http://127.0.0.1:{admin.port}{path}", timeout=40) as answer:
                assert answer.status == 200
    finally:
        admin.close()
    # Executors find the driver by a headless service, which has ready pods only, and the job is ready once
    # they have worked: a driver that waited to be ready would wait for ever.
    of_driver = {name: path for name, path in asked.items() if name != "readinessProbe"}
    for role, probes in (("deployment", asked), ("driver", of_driver), ("executor", {})):
        (container,) = pods()[role]["containers"]
        given = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
        assert given == {name: {"path": path, "port": "admin"} for name, path in probes.items()}
        ports = [{"name": "admin", "containerPort": section.admin_port}] if probes else []
        assert container.get("ports", []) == ports


def test_one_job_at_a_time_has_the_data_and_is_given_the_time_to_stop() -> None:
    deployment = manifest("deployment.yaml", "Deployment")["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {"type": "Recreate"}
    for role in ("deployment", "driver"):
        grace_s = pods()[role]["terminationGracePeriodSeconds"]
        assert grace_s > process.STOP_LIMIT_S > stats.DRAIN_WAIT_S


def test_the_memory_of_the_pods_holds_the_heap_and_as_much_again_for_python(job_config: Config) -> None:
    (container,) = pods()["deployment"]["containers"]
    mib = {"m": 1, "g": 1024, "Mi": 1, "Gi": 1024}

    def size_mib(text: str) -> int:
        number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()  # type: ignore[union-attr]
        return int(number) * mib[unit]

    heap_mib = job_config.stats.driver_heap_bytes >> 20
    assert size_mib(container["resources"]["requests"]["memory"]) >= 2 * heap_mib
    for role in POD_FILES:
        assert size_mib(APPLICATION[role]["memory"]) == heap_mib
        assert size_mib(APPLICATION[role]["memoryOverhead"]) >= heap_mib


def test_the_driver_may_do_what_it_does_and_the_others_ask_nothing_of_kubernetes() -> None:
    account = manifest("rbac.yaml", "ServiceAccount")["metadata"]["name"]
    role = manifest("rbac.yaml", "Role")["metadata"]["name"]
    binding = manifest("rbac.yaml", "RoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role)
    assert APPLICATION["driver"]["serviceAccount"] == account
    tokens = {name: pod.get("automountServiceAccountToken", True) for name, pod in pods().items()}
    assert tokens == {"deployment": False, "driver": True, "executor": False}


def test_files_that_are_named_inside_the_image_are_in_the_wheel() -> None:
    main = APPLICATION["mainApplicationFile"].removeprefix("local://")
    java_options = [
        *APPLICATION["driver"]["javaOptions"].split(),
        *APPLICATION["executor"]["javaOptions"].split(),
    ]
    option = "-Dlog4j2.configurationFile="
    logging = {one.removeprefix(option) for one in java_options if one.startswith(option)}
    assert main not in logging
    for path in (main, *logging):
        inside = PurePosixPath(path).relative_to(SITE_PACKAGES)
        package = importlib.util.find_spec(inside.parts[0])
        assert package is not None
        assert package.submodule_search_locations is not None
        assert Path(package.submodule_search_locations[0], *inside.parts[1:]).is_file()


def test_the_versions_that_are_named_are_those_of_the_project() -> None:
    (spark,) = (
        wanted
        for wanted in map(Requirement, PROJECT["optional-dependencies"]["spark"])
        if wanted.name == "pyspark"
    )
    assert APPLICATION["sparkVersion"] in spark.specifier
    assert set(re.findall(r"^ARG VERSION=(.*)$", CONTAINERFILE, re.MULTILINE)) == {PROJECT["version"]}


def stage(name: str) -> str:
    """The lines of a stage of the Containerfile."""
    found = re.search(
        rf"^FROM \S+ AS {re.escape(name)}\n(.*?)(?=^FROM |\Z)", CONTAINERFILE, re.DOTALL | re.MULTILINE
    )
    assert found is not None, name
    return found[1]


def test_pods_run_the_images_as_their_user_and_write_where_it_may() -> None:
    user, group = re.findall(r"^USER (\d+):(\d+)$", stage("holdmq-stats"), re.MULTILINE)[0]
    assert f"groupadd --gid {group} " in stage("base")
    assert f"useradd --uid {user} --gid {group} " in stage("base")
    (home,) = re.findall(r"^WORKDIR (.*)$", stage("holdmq-stats"), re.MULTILINE)
    assert f"install -d -o {user} -g {group} {home}\n" in stage("base")
    assert APPLICATION["image"] == "holdmq-stats"
    assert pods()["deployment"]["containers"][0]["image"] == "holdmq-stats"
    for pod in pods().values():
        context = pod["securityContext"]
        assert context["runAsNonRoot"]
        assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        writable = {
            path
            for path, volume in mounts(pod).items()
            if {"emptyDir", "persistentVolumeClaim"} & volume.keys()
        }
        assert writable == {home, "/tmp"}


def test_the_image_of_the_job_has_what_its_entrypoint_and_spark_look_for() -> None:
    lines = stage("holdmq-stats")
    assert f"SPARK_HOME={SITE_PACKAGES}/pyspark" in lines
    assert "COPY --chmod=0755 spark_streaming/kubernetes/entrypoint.sh /opt/entrypoint.sh\n" in lines
    assert 'ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/entrypoint.sh"]\n' in lines
    for name in ("holdmq", "holdmq-stats"):
        assert "USER 10001:10001\n" in stage(name)
        assert '"-m", "holdmq.service.health"' in stage(name)
    assert importlib.util.find_spec("holdmq.service.health") is not None


def test_ports_of_the_images_are_the_defaults_of_what_runs_in_them() -> None:
    config = Config()
    exposed = {
        name: set(map(int, re.findall(r"\d+", *re.findall(r"^EXPOSE (.*)$", stage(name), re.MULTILINE))))
        for name in ("holdmq", "holdmq-stats")
    }
    services = (config.gateway, config.registry, config.broker)
    assert exposed["holdmq"] == {port for one in services for port in (one.port, one.admin_port)}
    assert exposed["holdmq-stats"] == {config.stats.admin_port}


def test_the_images_are_built_from_all_packages_with_extras_that_there_are() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    copied = re.findall(r"^COPY (\S+) (\S+)$", stage("wheel"), re.MULTILINE)
    assert copied == [(name, name) for name in packages["packages"]]
    let_in = set(re.findall(r"^!/(.*)$", (ROOT / ".containerignore").read_text(), re.MULTILINE))
    assert let_in == {*packages["packages"], "pyproject.toml", "README.md", "LICENSE", "requirements"}
    given = ",".join(re.findall(r"^ARG (?:STATS_)?EXTRAS=(.*)$", CONTAINERFILE, re.MULTILINE))
    extras = set(filter(None, given.split(",")))
    assert extras <= PROJECT["optional-dependencies"].keys()
    assert {"spark", "postgresql"} <= extras


EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "stats-exec-3",
}


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """Variables of a container whose `java` and `spark-submit` print their arguments, one a line."""
    for path in (tmp_path / "bin" / "java", tmp_path / "spark" / "bin" / "spark-submit"):
        path.parent.mkdir(parents=True)
        path.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        path.chmod(0o755)
    holdmq = Path(sys.executable).parent
    return {"PATH": f"{tmp_path / 'bin'}:{holdmq}:{os.defpath}", "SPARK_HOME": str(tmp_path / "spark")}


def enter(variables: dict[str, str], *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", MANIFESTS / "entrypoint.sh", *arguments],
        env=variables, cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_container_of_an_executor_is_sparks_executor_with_what_spark_gave_it(
    image: dict[str, str], tmp_path: Path
) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number} of 12" for number in range(12)}
    classes = {"SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_CLASSPATH": "/own.jar"}
    done = enter({**image, **EXECUTOR, **options, **classes}, "executor", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "java",
        *(f"-Dnumber={number} of 12" for number in range(12)),
        "-Xms512m",
        "-Xmx512m",
        "-cp",
        f"/opt/spark/conf:/own.jar:{tmp_path}/spark/jars/*:{tmp_path}",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@driver:7078"),
        *("--executor-id", "3"),
        *("--cores", "2"),
        *("--app-id", "spark-1"),
        *("--hostname", "10.0.0.7"),
        *("--resourceProfileId", "0"),
        *("--podName", "stats-exec-3"),
    ]


def test_the_container_of_a_driver_is_spark_submit_in_client_mode(
    image: dict[str, str], tmp_path: Path
) -> None:
    given = (
        "--properties-file",
        "/opt/spark/conf/spark.properties",
        "local:///a file.py",
        "--set",
        "a.b=c d",
    )
    done = enter({**image, "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.8"}, "driver", *given, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "spark-submit",
        *("--conf", "spark.driver.bindAddress=10.0.0.8"),
        *("--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.8"),
        *("--deploy-mode", "client"),
        *given,
    ]


@pytest.mark.parametrize("name", EXECUTOR)
def test_a_variable_that_spark_did_not_give_is_named(
    name: str, image: dict[str, str], tmp_path: Path
) -> None:
    given = {key: value for key, value in EXECUTOR.items() if key != name}
    done = enter({**image, **given}, "executor", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"{name}: is set by Spark on Kubernetes" in done.stderr


def test_everything_else_is_a_command_of_holdmq(image: dict[str, str], tmp_path: Path) -> None:
    done = enter(image, "--version", cwd=tmp_path)
    assert done.stdout == f"holdmq {PROJECT['version']}\n"
