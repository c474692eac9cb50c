"""The Spark session of the job: a JVM of its own, set up for a small machine and quiet, or spark-submit's.

With ``stats.master`` the own JVM is the driver of a standalone cluster. One that spark-submit started comes
with its configuration: master, executors, memory and addresses are then as they were submitted, and only what
counting needs is added.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import IO, Any, Final

import structlog
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from holdmq.config.analytics import StatsSection
from holdmq.errors import ConfigError, StartupError
from spark_streaming.java import find_java_home
from spark_streaming.job import class_archive
from spark_streaming.job.jvm import END_TIMEOUT_S, ChildJvm, Jvm, is_submitted, submitting_jvm
from spark_streaming.job.worker_python import workers_run, write_launcher

TASK_FAILURES: Final = 4
"""Runs of a task before its batch fails: a read that meets a restarting broker is run again."""
_CHECKPOINT_WRITER: Final = {
    # Left to itself Spark starts 20 processes a batch (chmod, readlink) for the two files that it adds to the
    # checkpoint and their checksums; so it starts two. A file gets its name, by rename(2), when it is whole.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
BATCHES_RETAINED: Final = 20
"""Batches whose offsets the checkpoint keeps: enough to see what happened, few files."""
_CLOSED_TO_STRANGERS: Final = {
    # With a local master Spark makes the secret by itself, in the JVM's memory: on no command line, in no
    # file. Without one, whoever else is on the machine may have the driver read objects of his.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""Of the driver and its block manager, which listen though nobody but the JVM itself has to connect."""
MASTER_WAIT_S: Final = 5.0
"""How long each master of the cluster may take to answer, before a JVM is started for it."""

_NEEDED: Final = {"spark.sql.session.timeZone": "UTC"}
"""Minutes and hours are cut in this zone, whatever a cluster's is."""
_APP_NAME: Final = "holdmq-stats"
_MASTERS: Final = "spark://"
_MAIN_FILE: Final = "submit.py"
"""What spark-submit calls the job unless it is told a name."""

# What a healthy JVM says at every start, and nobody needs.
_NOISE: Final = (
    "WARNING: Using incubator modules:",
    # What Spark asks of older runtimes, said by those of version 24 and newer.
    "WARNING: package sun.security.action not in java.base",
    "Setting default log level to",
    "To adjust logging level use",
    # Of the sketches: they live on the heap.
    "Warning: Java versions > Java 11 can only operate in restricted mode",
)


log = structlog.get_logger("holdmq.stats")


class SparkJobSession:
    """One Spark session and its JVM."""

    __slots__ = ("_jvm", "spark")

    def __init__(self, spark: SparkSession, jvm: Jvm) -> None:
        self.spark = spark
        self._jvm = jvm

    @property
    def cores(self) -> int:
        """How many tasks the session may run at once."""
        return self.spark.sparkContext.defaultParallelism

    def jvm_end(self, wait_s: float = 0) -> str | None:
        """Return how the JVM ended ("ended with exit code 3"), None if it still runs after `wait_s`."""
        return self._jvm.end(wait_s)

    def stop(self, jvm_wait_s: float = END_TIMEOUT_S) -> None:
        """Stop Spark and give its JVM back, which then has `jvm_wait_s` to end; blocking."""
        try:
            self.spark.stop()
        except (Py4JError, OSError) as error:
            # The JVM died first, or dies with us: a signal to the whole group reaches it too.
            log.warning("Spark was gone before it was stopped", reason=str(error))
        self._jvm.close(jvm_wait_s)


def start_session(
    stats: StatsSection, say: Callable[[str], None], java_options: Sequence[str] | None = None
) -> SparkJobSession:
    """Start a session for `stats`, and its JVM unless spark-submit did; blocking, 2–5 s.

    `say` gets every line that an own JVM and its Python workers write, from a thread of its own. Without
    `java_options` that JVM uses the archive of its classes, if there is one. Raises StartupError when there
    is no Java, no master that answers, or when the JVM does not start; ConfigError when ``stats.master`` is
    another than spark-submit's.
    """
    return _submitted(stats) if is_submitted() else _own(stats, say, java_options)


def _own(
    stats: StatsSection, say: Callable[[str], None], java_options: Sequence[str] | None
) -> SparkJobSession:
    where = cluster_settings(stats) if stats.master else _this_machine(stats)
    java_home = find_java_home()
    os.environ["JAVA_HOME"] = str(java_home)
    if java_options is None:
        java_options = class_archive.options(java_home)
    if stats.master:
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    else:
        python = str(write_launcher(Path(stats.data_dir)))
    settings = {**_small(stats, java_options), **where, **_wanted(stats.cores), **_NEEDED}
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with workers_run(python):
        return _launched(conf, say)


def _launched(conf: SparkConf, say: Callable[[str], None]) -> SparkJobSession:
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        del said[:-5]
        say(line)

    reading, writing = os.pipe()
    threading.Thread(target=_listen, args=(os.fdopen(reading, "rb"), hear), daemon=True).start()
    try:
        launch: Callable[..., Any] = launch_gateway
        # A session of its own: signals of a terminal or a supervisor are for us, and we stop Spark in order.
        gateway = launch(conf, {"stdout": writing, "stderr": writing, "start_new_session": True})
    except Exception as error:
        last = f"; its last words: {' | '.join(said)}" if said else ""
        raise StartupError(f"the JVM of Spark does not start: {error}{last}") from error
    finally:
        os.close(writing)
    return _session(conf, gateway, ChildJvm(gateway.proc))


def _submitted(stats: StatsSection) -> SparkJobSession:
    launch: Callable[..., Any] = launch_gateway
    gateway = launch()
    conf = SparkConf(_jvm=gateway.jvm)
    master = conf.get("spark.master")
    if stats.master and stats.master != master:
        raise ConfigError(
            f"stats.master is {stats.master}, but spark-submit chose {master}; leave stats.master out, or "
            "submit with --master of the same"
        )
    if conf.get("spark.app.name") == _MAIN_FILE:
        conf.setAppName(_APP_NAME)
    for name, value in _wanted(submitted_cores(conf.get, stats.cores)).items():
        conf.setIfMissing(name, value)
    conf.setAll(list(_NEEDED.items()))
    return _session(conf, gateway, submitting_jvm(gateway))


def _session(conf: SparkConf, gateway: JavaGateway, jvm: Jvm) -> SparkJobSession:
    # What py4j reports there is also raised to its caller, which says it once.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        return SparkJobSession(SparkSession(SparkContext(conf=conf, gateway=gateway)), jvm)
    except Exception as error:
        java = getattr(error, "java_exception", None)
        cause = str(error if java is None else java.toString()).strip().splitlines()[0]
        jvm.close()
        raise StartupError(f"Spark does not start at {conf.get('spark.master')}: {cause}") from error


def submitted_cores(submitted: Callable[[str], str | None], otherwise: int) -> int:
    """Return how many tasks may run at once, by the properties that were `submitted`.

    `otherwise` if none of them says so. It is asked of the cluster then: a standalone one would give all.
    """
    for name in ("spark.default.parallelism", "spark.cores.max"):
        found = submitted(name)
        if found:
            return int(found)
    executors = submitted("spark.executor.instances")
    if executors:
        return int(executors) * int(submitted("spark.executor.cores") or 1)
    return otherwise


def _wanted(cores: int) -> dict[str, str]:
    """What a batch a second wants; whoever submits the job may know better."""
    return {
        "spark.cores.max": str(cores),
        "spark.default.parallelism": str(cores),
        # 200, the default, cost 12 s a batch.
        "spark.sql.shuffle.partitions": str(cores),
        # A plan of one small shuffle is not worth planning twice.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": str(BATCHES_RETAINED),
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        "spark.cleaner.periodicGC.interval": "10min",
    }


def _this_machine(stats: StatsSection) -> dict[str, str]:
    return {
        "spark.master": f"local[{stats.cores},{TASK_FAILURES}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **_CLOSED_TO_STRANGERS,
    }


def cluster_settings(stats: StatsSection) -> dict[str, str]:
    """Where the executors of ``stats.master`` reach the driver. StartupError if no master answers."""
    address = _address_towards(stats.master)
    return {
        "spark.master": stats.master,
        "spark.driver.host": stats.driver_host or address,
        "spark.driver.bindAddress": address,
        "spark.task.maxFailures": str(TASK_FAILURES),
    }


def _address_towards(masters: str) -> str:
    """This machine's address on the way to the first of `masters` that answers, as Spark wants it written."""
    reasons = []
    for place in masters.removeprefix(_MASTERS).split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), MASTER_WAIT_S) as connection:
                found = str(connection.getsockname()[0])
                return f"[{found}]" if ":" in found else found
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
    raise StartupError(
        f"no Spark master answers at {masters} (stats.master; {'; '.join(reasons)}); start one, or leave "
        "stats.master empty to count on this machine"
    )


def _small(stats: StatsSection, java_options: Sequence[str]) -> dict[str, str]:
    """What keeps the own JVM small, quiet, and in the job's directory."""
    data = Path(stats.data_dir).resolve()
    log4j = resources.files("spark_streaming.job") / "log4j2.properties"
    java = [
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={log4j}",
        *java_options,
    ]
    return {
        "spark.app.name": _APP_NAME,
        "spark.driver.memory": f"{stats.driver_heap_bytes >> 20}m",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.local.dir": str(data / "tmp"),
        "spark.sql.warehouse.dir": str(data / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_CHECKPOINT_WRITER,
    }


def _listen(stream: IO[bytes], hear: Callable[[str], None]) -> None:
    with stream:
        for raw in stream:
            line = raw.decode("utf-8", "replace").rstrip()
            if line and not line.startswith(_NOISE):
                hear(line)
