"""The Containerfile: true of the product, and its entrypoint does what Spark on Kubernetes wants."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from holdmq.config.model import Config

ROOT = Path(__file__).parent.parent.parent
ENTRYPOINT = ROOT / "spark_streaming" / "entrypoint.sh"
CONTAINERFILE = (ROOT / "Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE_PACKAGES = PurePosixPath("/opt/holdmq/lib/python3.11/site-packages")
"""Debian 12's Python is 3.11."""


def test_the_version_of_the_images_is_that_of_the_project() -> None:
    assert set(re.findall(r"^ARG VERSION=(.*)$", CONTAINERFILE, re.MULTILINE)) == {PROJECT["version"]}


def stage(name: str) -> str:
    """The lines of a stage of the Containerfile."""
    found = re.search(
        rf"^FROM \S+ AS {re.escape(name)}\n(.*?)(?=^FROM |\Z)", CONTAINERFILE, re.DOTALL | re.MULTILINE
    )
    assert found is not None, name
    return found[1]


def test_the_image_of_the_job_has_what_its_entrypoint_and_spark_look_for() -> None:
    lines = stage("holdmq-stats")
    assert f"SPARK_HOME={SITE_PACKAGES}/pyspark" in lines
    assert "COPY --chmod=0755 spark_streaming/entrypoint.sh /opt/entrypoint.sh\n" in lines
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
    assert {"spark", "postgresql", "console", "kv", "etcd", "kubernetes"} <= extras


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
        ["bash", ENTRYPOINT, *arguments],
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
    assert done.stdout.startswith(f"holdmq {PROJECT['version']}, ")
