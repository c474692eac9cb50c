"""Writes an archive of Spark's classes unless there is one: ``python -m`` with this module's name.

Half a minute: a JVM does once what every start of the job does, and as it ends writes the classes that this
took. Everything works without an archive, so one that cannot be written is a sentence, not a failure.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdmq.config.analytics import StatsSection
from holdmq.errors import HoldMQError
from spark_streaming.java import find_java_home
from spark_streaming.job.class_archive import SUFFIX, archive_path
from spark_streaming.job.parts import parts_of
from spark_streaming.job.session import start_session
from spark_streaming.job.warming import warm_up

WRITE_TIMEOUT_S: Final = 180.0
"""How long the JVM may take to write as it ends: 10 s, or many times that on a busy machine."""
_BATCH_TIMEOUT_S: Final = 120.0


def write() -> str:
    """Write the archive and return a sentence on it, "" if it is there already.

    Raises HoldMQError, OSError or what Spark raises when there is no Java, no room, or a JVM that fails.
    """
    path = archive_path(find_java_home())
    if path.is_file():
        return ""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="spark-") as directory:
        written = Path(directory) / "classes"
        said: list[str] = []
        stats = StatsSection(data_dir=str(Path(directory) / "data"))
        session = start_session(stats, said.append, [f"-XX:ArchiveClassesAtExit={written}"])
        try:
            warm_up(session.spark, parts_of(stats))
            _run_a_stream(session.spark, Path(directory) / "checkpoint")
        finally:
            session.stop(WRITE_TIMEOUT_S)
        if not written.is_file():
            raise OSError(f"the JVM wrote none: {' | '.join(said[-3:]) or 'it said nothing'}")
        # After a power cut a file that was renamed and never written would pass for whole.
        with written.open("rb") as file:
            os.fsync(file.fileno())
        for old in path.parent.glob(f"spark-*{SUFFIX}"):
            old.unlink()
        written.rename(path)
    return f"{path.stat().st_size >> 20} MiB in {path}"


def _run_a_stream(spark: SparkSession, checkpoint: Path) -> None:
    """Run batches of a stream until one had rows: its offsets, its state, its planning in Java."""
    had_rows = threading.Event()

    def take(batch: DataFrame, _number: int) -> None:
        if batch.count():
            had_rows.set()

    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
    had_rows.wait(_BATCH_TIMEOUT_S)
    query.stop()


def main() -> int:
    """Write it; say where it is, or why there is none. The exit code is 0: nothing needs it."""
    try:
        said = write()
    except (HoldMQError, OSError, PySparkException, Py4JError) as error:
        reason = str(error).strip().partition("\n")[0]
        said = f"none written, Spark starts slower: {reason}"
    if said:
        sys.stdout.write(f"archive of Spark's classes: {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
