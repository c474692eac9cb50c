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

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdmq.client import Producer
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
            raise SystemExit(f"{self._rows} messages were produced, and {found} read")

    def measure(self, work: Work, read: Callable[[str], DataFrame]) -> Sample:
        """Do one work once."""
        time.sleep(PAUSE_S)
        reader, broker, begin = self._cpu()
        work.run(read(work.columns))
        reader_after, broker_after, end = self._cpu()
        return Sample(end - begin, reader_after - reader, broker_after - broker)

    def _cpu(self) -> tuple[float, float, float]:
        return cpu_of_tree_s(self._jvm_pid), cpu_of_tree_s(self._broker.pid), time.perf_counter()


def report(name: str, what: str, samples: list[Sample], rows: int) -> str:
    """Medians of some samples, as a line."""
    wall, reader, broker = (statistics.median(values) for values in zip(*samples, strict=True))
    return (
        f"{name:8} {what:8} {rows / wall:12,.0f} rows/s {rows / max(reader, 1e-9):12,.0f} rows/s per core "
        f"{reader / rows * 1e6:8.2f} us/row at the reader {broker / rows * 1e6:6.2f} us/row at the broker"
    )


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=130)
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    out = sys.stdout.write
    out(
        f"rows={given.rows} body_bytes={given.body_bytes} topics={given.topics} cores={given.cores} "
        f"rounds={given.rounds} machine={platform.machine()} cpus={os.cpu_count()} "
        f"python={platform.python_version()} pyspark={pyspark.__version__}\n"
    )
    with tempfile.TemporaryDirectory(prefix="holdmq-bench-") as directory:
        home = Path(directory)
        with holdmq_broker(home) as broker:
            asyncio.run(produce(broker.registry, given.rows, given.body_bytes, given.topics))
            spark = start_spark(home, given.cores)
            try:
                bench = SourceBench(spark, broker, home / "parquet", given.rows)
                bench.copy()
                ways = {"holdmq": bench.source, "parquet": bench.parquet}
                found: dict[tuple[str, str], list[Sample]] = {}
                for turn in range(given.rounds + 1):
                    for work in WORKS:
                        for what, read in ways.items():
                            sample = bench.measure(work, read)
                            if turn:  # the first one compiles
                                found.setdefault((work.name, what), []).append(sample)
                for (name, what), samples in found.items():
                    out(report(name, what, samples, given.rows) + "\n")
            finally:
                spark.stop()


if __name__ == "__main__":
    main()
