"""The job on a standalone Spark cluster of two workers, one of which dies in the middle of a batch.

Who reads is what the broker and Spark's page say; the truth of the counts is what `holdmq log stat` finds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from counted import check_all, delta_sums, truth_of
from processes import Stack, free_port, running_stack
from security import ADMIN_SECRET, SERVICE_SECRET, write_keys
from spark_cluster import SLOW_S, SparkCluster, descendants, get_json, option_of, running_cluster, wait_long

from holdmq.client import Message, SyncProducer
from holdmq.client.sync import SyncAdmin
from holdmq.errors import TransportError
from holdmq.rpc.security import Security
from spark_streaming.source.plan import PARTITION_RECORDS_MIN

TOPICS = ("north", "south", "east", "west")
BATCH = 2 * PARTITION_RECORDS_MIN
"""Records of a batch: one task for each worker."""
SENT_AT_ONCE = 1000
TRIES = 5
"""Batches until one is planned whole: its planner might have been asked for the one before just then."""
STARVED = "Initial job has not accepted any resources"
"""What Spark says, and the job passes on, of a cluster without cores for it."""
SECURITY = Security("admin", secret=ADMIN_SECRET)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    keys = {"security.keys_file": write_keys(directory / "keys.toml")}
    service = {"client.access_key": "service", "client.secret": SERVICE_SECRET}
    with running_stack(directory, "registry", "broker", **keys, **service) as made:
        yield made


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("spark"), 2) as made:
        yield made


def send(stack: Stack, messages: int) -> None:
    """Produce to all topics in turn; bodies of many lengths."""
    with SyncProducer([stack.registry], security=SECURITY) as producer:
        for start in range(0, messages, SENT_AT_ONCE):
            topic = TOPICS[start // SENT_AT_ONCE % len(TOPICS)]
            some = range(start, min(messages, start + SENT_AT_ONCE))
            producer.send_batch([Message(topic, b"b" * (i % 97)) for i in some], key=f"{start}")


def reads(executor: psutil.Process, clients: set[str]) -> bool:
    """Whether a Python worker of the executor is one of the broker's clients."""
    return bool(clients & {f"spark-{process.pid}" for process in descendants(executor.pid)})


def write_configuration(stack: Stack, directory: Path) -> None:
    (directory / "holdmq.toml").write_text(
        f"""
[registry]
port = {stack.registry_port}
[client]
access_key = "service"
[stats]
data_dir = "{directory / "stats"}"
admin_port = {stack.admin_ports["stats"]}
max_records_per_batch = {BATCH}
devices = false
backlog_interval_s = 0
"""
    )


def check_nothing_written(spark: SparkCluster, secret: str) -> None:
    """No log, of the daemons or of executors, has the secret."""
    written = [path for pattern in ("*.log", "stderr") for path in spark.directory.rglob(pattern)]
    assert len(written) > 5
    assert not [path for path in written if secret in path.read_text(errors="replace")]


def submit(stack: Stack, spark: SparkCluster, page: int) -> subprocess.Popen[bytes]:
    """Start the job as the page says, with Spark's own page on a port."""
    write_configuration(stack, spark.directory)
    return spark.run(
        "job",
        "spark-submit",
        # Both executors are there before the first batch is cut for them.
        f"--conf spark.ui.port={page} --conf spark.scheduler.minRegisteredResourcesRatio=1 "
        f"--conf spark.scheduler.maxRegisteredResourcesWaitingTime={SLOW_S:.0f}s "
        "--conf spark.driver.host=127.0.0.1",
        HOLDMQ_CLIENT__SECRET=SERVICE_SECRET,
    )


@pytest.mark.timeout(1800)
def test_two_workers_count_together_and_one_that_dies_in_a_batch_changes_no_count(
    stack: Stack, spark: SparkCluster
) -> None:
    data_dir = spark.directory / "stats"
    page = free_port()
    send(stack, BATCH)
    job = submit(stack, spark, page)

    def counted() -> int:
        assert job.poll() is None, spark.log("job")[-3000:]
        return sum(messages for messages, _ in delta_sums(data_dir, "latency").values())

    # A worker of Python lives for a minute after its last task.
    readers: set[str] = set()
    with SyncAdmin([stack.registry], security=SECURITY) as admin:

        def both_read() -> bool:
            assert job.poll() is None, spark.log("job")[-3000:]
            try:
                (connections,) = admin.connections().values()
            except TransportError:
                return False
            if not isinstance(connections, list):
                return False  # it had no time to answer while JVMs start
            readers.update(row.client_id for row in connections if row.role == "stats")
            executors = spark.executors().values()
            return len(executors) == 2 and all(reads(executor, readers) for executor in executors)

        wait_long(both_read, "each executor is connected to the broker")
    wait_long(lambda: counted() >= BATCH, "the first batch is counted")

    (application,) = get_json(page, "/api/v1/applications")
    about = f"/api/v1/applications/{application['id']}"
    executors = spark.executors()
    name, executor = executors.popitem()
    number = option_of(executor, "--executor-id")

    def is_at_work() -> bool:
        (row,) = [row for row in get_json(page, f"{about}/executors") if row["id"] == number]
        return bool(row["activeTasks"])

    # One task of a batch does not get on. The batch is there as a whole when it is planned: else one executor
    # might do all of it.
    executor.suspend()
    sent = BATCH
    for _ in range(TRIES):
        job.send_signal(signal.SIGSTOP)
        send(stack, BATCH)
        sent += BATCH
        job.send_signal(signal.SIGCONT)
        wait_long(lambda: is_at_work() or counted() >= sent, "a batch is under way")  # noqa: B023
        if is_at_work():
            break
    assert is_at_work()
    assert counted() < sent
    # The machine dies: worker, executor and what reads for it.
    for pid in [spark.processes[name].pid, *[one.pid for one in descendants(spark.processes[name].pid)]]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_long(lambda: counted() >= sent, "that batch is counted")
    assert SERVICE_SECRET not in json.dumps(get_json(page, f"{about}/environment"))
    job.terminate()
    assert job.wait(SLOW_S) == 0, spark.log("job")[-3000:]
    assert '"event": "stopped"' in spark.log("job")
    check_all(truth_of(stack), partial(delta_sums, data_dir))

    check_nothing_written(spark, SERVICE_SECRET)


@pytest.mark.timeout(1800)
def test_a_job_that_nobody_on_the_cluster_takes_says_so_and_can_be_stopped(
    stack: Stack, spark: SparkCluster
) -> None:
    write_configuration(stack, spark.directory)
    for worker in [process for name, process in spark.processes.items() if name.startswith("worker-")]:
        worker.terminate()
        worker.wait(SLOW_S)
    job = spark.run("waiting", "holdmq stats", HOLDMQ_CLIENT__SECRET=SERVICE_SECRET)
    wait_long(lambda: STARVED in spark.log("waiting"), "the job says that nobody takes it")
    assert [row["name"] for row in get_json(spark.pages, "/json/")["activeapps"]] == ["holdmq-stats"]
    job.terminate()
    assert job.wait(SLOW_S) == 0, spark.log("waiting")[-3000:]
    assert '"event": "stopped"' in spark.log("waiting")
