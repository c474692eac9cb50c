from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import free_port
from pydantic import ValidationError

from holdmq.config_analytics import StatsSection
from holdmq.errors import StartupError
from spark_streaming.job.session import cluster_settings, start_session, submitted_cores


@pytest.fixture
def master() -> Iterator[int]:
    """The port of somebody who takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("submitted", "cores"),
    [
        ({}, 2),
        ({"spark.executor.cores": "8"}, 2),
        ({"spark.executor.instances": "3"}, 3),
        ({"spark.executor.instances": "3", "spark.executor.cores": "4"}, 12),
        ({"spark.cores.max": "6", "spark.executor.instances": "3"}, 6),
        ({"spark.default.parallelism": "5", "spark.cores.max": "6"}, 5),
    ],
)
def test_a_batch_has_as_many_tasks_as_cores_were_submitted(submitted: dict[str, str], cores: int) -> None:
    assert submitted_cores(submitted.get, otherwise=2) == cores


def test_executors_are_told_the_address_from_which_the_master_is_reached(master: int) -> None:
    away = free_port()
    stats = StatsSection(master=f"spark://127.0.0.1:{away},localhost:{master}")
    found = cluster_settings(stats)
    assert found["spark.master"] == stats.master
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"


def test_another_address_for_executors_is_told_and_not_bound(master: int) -> None:
    stats = StatsSection(master=f"spark://127.0.0.1:{master}", driver_host="driver.example.org")
    found = cluster_settings(stats)
    assert found["spark.driver.host"] == "driver.example.org"
    assert found["spark.driver.bindAddress"] == "127.0.0.1"


def test_no_jvm_is_started_for_a_master_that_does_not_answer(tmp_path: Path) -> None:
    stats = StatsSection(master=f"spark://127.0.0.1:{free_port()}", data_dir=str(tmp_path))
    with pytest.raises(StartupError, match=r"no Spark master answers at spark://127.*Connection refused"):
        start_session(stats, lambda _: None)


@pytest.mark.parametrize("wrong", ["local[2]", "k8s://host:443", "spark://host", "spark://a:1,b", "a:7077"])
def test_a_master_that_is_no_standalone_cluster_is_for_spark_submit(wrong: str) -> None:
    with pytest.raises(ValidationError, match="master"):
        StatsSection(master=wrong)
