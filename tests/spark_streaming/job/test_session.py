from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import free_port
from pydantic import ValidationError

from holdmq.config.analytics import StatsSection
from holdmq.errors import StartupError
from spark_streaming.job.session import SparkJobSession, cluster_settings, start_session, submitted_cores

RPC_REQUEST, RPC_RESPONSE, OPEN_BLOCKS = 3, 4, 0
"""Of Spark's transport (`Message.Type`, `BlockTransferMessage.Type`)."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJobSession]:
    """A session on this machine, as the job has it."""
    session = start_session(StatsSection(data_dir=str(tmp_path_factory.mktemp("stats"))), lambda _: None)
    yield session
    session.stop()


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


def test_on_one_machine_spark_asks_everybody_for_its_secret_and_shows_it_nowhere(
    alone: SparkJobSession,
) -> None:
    conf = dict(alone.spark.sparkContext.getConf().getAll())
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert conf["spark.network.crypto.saslFallback"] == "false"
    assert conf["spark.ui.enabled"] == "false"
    assert not [name for name in conf if "secret" in name]
    words = _below(psutil.Process.cmdline)
    assert any("spark.authenticate=true" in word for word in words)
    assert not [word for word in words if "spark.authenticate.secret" in word]


def test_on_one_machine_everything_of_spark_listens_on_loopback(alone: SparkJobSession) -> None:
    alone.spark.range(3).rdd.map(str).collect()  # Python workers too
    listening = [place.laddr.ip for place in _below(_listening)]
    assert len(listening) >= 3, "driver, block manager, py4j"
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}


def test_a_stranger_gets_no_answer_of_sparks_block_manager(alone: SparkJobSession) -> None:
    context = alone.spark.sparkContext
    known = {int(context.getConf().get("spark.driver.port") or 0), context._gateway.java_parameters.port}
    (port,) = {place.laddr.port for place in _listening(_jvm())} - known
    body = struct.pack("!B", OPEN_BLOCKS) + _text("app") + _text("driver") + struct.pack("!i", 0)
    head = struct.pack("!BQi", RPC_REQUEST, 7, len(body))
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 60) as stranger:
        stranger.sendall(struct.pack("!Q", 8 + len(head) + len(body)) + head + body)
        while len(answer) < 9 and (more := stranger.recv(65_536)):
            answer += more
    assert answer[8:9] != bytes([RPC_RESPONSE]), "blocks were opened for him"


def _below(read: Callable[[psutil.Process], list[Any]]) -> list[Any]:
    """What `read` finds of every process below this one; one that ends meanwhile has nothing."""
    found = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += read(process)
    return found


def _jvm() -> psutil.Process:
    (jvm,) = _below(lambda process: [process] if "java" in process.name() else [])
    return jvm


def _listening(process: psutil.Process) -> list[Any]:
    return [place for place in process.net_connections("inet") if place.status == psutil.CONN_LISTEN]


def _text(text: str) -> bytes:
    return struct.pack("!i", len(text)) + text.encode()
