"""The Spark source beside Parquet: rows per second, and CPU per row, of the same work over the same messages.

    python -m loadtest.bench.spark_source [--rows 1000000] [--body-bytes 130] [--topics 4] [--rounds 3]

Produces `--rows` messages, copies them to a Parquet directory with Spark, and then reads both in turns, in
one session on local[`--cores`]:

    header    topic, store_time, body_size: messages and bytes by second and topic
    payload   offset, store_time, body: every row is made and dropped
    all       every column: every row is made and dropped

CPU is that of the JVM and its Python workers, and of the broker beside it, as the kernel counts it. The whole
of it shares this machine's cores: a rate "per core" is rows per second of CPU.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdmq.client import Producer
from holdmq.errors import StartupError
from loadtest.bench.harness.command import BenchCommand, Options, medians, say, take_turns
from loadtest.peers import BrokerProcess, holdmq_broker
from loadtest.usage import cpu_of_tree_s
from spark_streaming.java import find_java_home

PAUSE_S: Final = 1.0
"""Between two measurements: what the last one left behind is done by then."""
BATCH: Final = 4_096
TAGS: Final = 50


class Work(NamedTuple):
    """What is read, and what is done with it."""

    name: str
    columns: str
    run: Callable[[DataFrame], object]


class Sample(NamedTuple):
    """One measurement: seconds on the clock, and of CPU at the reader and at the broker."""

    wall_s: float
    reader_cpu_s: float
    broker_cpu_s: float


def _count(rows: DataFrame) -> object:
    by = rows.groupBy(F.date_trunc("second", "store_time"), "topic")
    return by.agg(F.count(F.lit(1)), F.sum("body_size")).collect()


def _drop(rows: DataFrame) -> object:
    rows.write.format("noop").mode("overwrite").save()
    return None


WORKS: Final = (
    Work("header", "topic,store_time,body_size", _count),
    Work("payload", "offset,store_time,body", _drop),
    Work("all", "*", _drop),
)


async def produce(registry: str, rows: int, body_bytes: int, topics: int) -> None:
    """Store messages with tags in topics, in turns."""
    async with Producer([registry]) as producer:
        body = os.urandom(body_bytes)
        left, turn = rows, 0
        while left:
            count = min(BATCH, left)
            await producer.send_bodies(f"bench-{turn % topics}", [body] * count, tag=f"{turn % TAGS}/temp")
            left -= count
            turn += 1


def start_spark(directory: Path, cores: int) -> SparkSession:
    """Start a session of the settings that matter on a small machine."""
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName("spark_source")
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory / "tmp"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class SourceBench:
    """Reads the same messages from a broker and from files."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, files: Path, rows: int) -> None:
        self._spark = spark
        self._broker = broker
        self._files = files
        self._rows = rows
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self._jvm_pid: int = gateway.proc.pid

    def source(self, columns: str) -> DataFrame:
        """The messages at the broker."""
        reader = self._spark.read.format("holdmq")
        return reader.options(registry=self._broker.registry, topics="bench-*", columns=columns).load()

    def parquet(self, columns: str) -> DataFrame:
        """The messages in files."""
        found = self._spark.read.parquet(str(self._files))
        return found if columns == "*" else found.select(*columns.split(","))

    def copy(self) -> None:
        """Write the files, and check that they have every message."""
        self.source("*").write.parquet(str(self._files))
        found = self.parquet("*").count()
        if found != self._rows:
            raise StartupError(f"{self._rows} messages were produced, and {found} read")

    def do(self, work: Work, read: Callable[[str], DataFrame]) -> Sample:
        """Do one work once."""
        reader, broker, begin = self._cpu()
        work.run(read(work.columns))
        reader_after, broker_after, end = self._cpu()
        return Sample(end - begin, reader_after - reader, broker_after - broker)

    def _cpu(self) -> tuple[float, float, float]:
        return cpu_of_tree_s(self._jvm_pid), cpu_of_tree_s(self._broker.pid), time.perf_counter()


def report(name: str, what: str, samples: list[Sample], rows: int) -> str:
    """Medians of some samples, as a line."""
    wall, reader, broker = medians(samples)
    return (
        f"{name:8} {what:8} {rows / wall:12,.0f} rows/s {rows / max(reader, 1e-9):12,.0f} rows/s per core "
        f"{reader / rows * 1e6:8.2f} us/row at the reader {broker / rows * 1e6:6.2f} us/row at the broker"
    )


def measure(options: Options, home: Path) -> None:
    """Produce messages, copy them, and read both in turns."""
    with holdmq_broker(home) as broker:
        asyncio.run(produce(broker.registry, options.rows, options.body_bytes, options.topics))
        spark = start_spark(home, options.cores)
        try:
            bench = SourceBench(spark, broker, home / "parquet", options.rows)
            bench.copy()
            ways = {"holdmq": bench.source, "parquet": bench.parquet}
            readings = {
                (work.name, what): partial(bench.do, work, read)
                for work in WORKS
                for what, read in ways.items()
            }
            found = take_turns(options.rounds + 1, readings, PAUSE_S)
            for (name, what), samples in found.items():
                say(report(name, what, samples[1:], options.rows))  # the first one compiles
        finally:
            spark.stop()


def main() -> int:
    """Run the benchmark and print its table; the exit code."""
    return BenchCommand(__doc__, rows=1_000_000, body_bytes=130, topics=4, cores=2, rounds=3).run(
        measure, machine=platform.machine(), pyspark=pyspark.__version__
    )


if __name__ == "__main__":
    sys.exit(main())
