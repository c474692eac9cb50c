"""The Spark session of the job: a JVM set up for a small machine, quiet, and bound to this process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import IO, Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from holdmq.config_analytics import StatsSection
from holdmq.errors import StartupError
from spark_streaming.java import find_java_home

TASK_FAILURES: Final = 4
"""Runs of a task before its batch fails: a read that meets a restarting broker is run again."""
BATCHES_RETAINED: Final = 20
"""Batches whose offsets the checkpoint keeps: enough to see what happened, few files."""
JVM_END_TIMEOUT_S: Final = 10.0
"""How long the JVM may take to end once its session has stopped, before it is killed."""

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


class Session:
    """One Spark session and its JVM, a child of this process.

    The JVM ends when its standard input closes, so it never outlives this process, however that ends.
    """

    __slots__ = ("_jvm", "spark")

    def __init__(self, spark: SparkSession, jvm: subprocess.Popen[bytes]) -> None:
        self.spark = spark
        self._jvm = jvm

    def jvm_exit_code(self, wait_s: float = 0) -> int | None:
        """Return the JVM's exit code, None if it still runs after `wait_s`."""
        try:
            return self._jvm.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Stop Spark and wait for the JVM to end; blocking, at most a few seconds."""
        try:
            self.spark.stop()
        except (Py4JError, OSError) as error:
            # The JVM died first, or dies with us: a signal to the whole group reaches it too.
            log.warning("Spark was gone before it was stopped", reason=str(error))
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
            SparkContext._gateway = None
            SparkContext._jvm = None
        if self._jvm.stdin is not None:
            self._jvm.stdin.close()
        try:
            self._jvm.wait(JVM_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()


def start_session(stats: StatsSection, say: Callable[[str], None]) -> Session:
    """Start a JVM and a session for `stats`; blocking, 4–5 s.

    `say` gets every line that the JVM and the Python workers write, from a thread of its own. Raises
    StartupError when there is no Java, or when the JVM does not start.
    """
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    conf = SparkConf(loadDefaults=False).setAll(list(_settings(stats).items()))
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
    # What py4j reports there is also raised to its caller, which says it once.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    return Session(spark, gateway.proc)


def _settings(stats: StatsSection) -> dict[str, str]:
    data = Path(stats.data_dir).resolve()
    log4j = resources.files("spark_streaming.job") / "log4j2.properties"
    java = [
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={log4j}",
    ]
    return {
        "spark.app.name": "holdmq-stats",
        "spark.master": f"local[{stats.cores},{TASK_FAILURES}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{stats.driver_heap_bytes >> 20}m",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.local.dir": str(data / "tmp"),
        "spark.sql.warehouse.dir": str(data / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # 200, the default, cost 12 s a batch.
        "spark.sql.shuffle.partitions": str(stats.cores),
        "spark.default.parallelism": str(stats.cores),
        # A plan of one small shuffle is not worth planning twice.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": str(BATCHES_RETAINED),
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        "spark.cleaner.periodicGC.interval": "10min",
    }


def _listen(stream: IO[bytes], hear: Callable[[str], None]) -> None:
    with stream:
        for raw in stream:
            line = raw.decode("utf-8", "replace").rstrip()
            if line and not line.startswith(_NOISE):
                hear(line)
