"""Runs the job's plans once over nothing, before the first message.

Loading classes, compiling the plan and starting Python workers takes seconds on a small machine. Done at
start they delay readiness; left to the first batch they would delay the first row that somebody waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from spark_streaming.job.job_source import JOB_FORMAT, register
from spark_streaming.job.parts import QueryPart


def warm_up(spark: SparkSession, parts: Iterable[QueryPart]) -> None:
    """Have every part aggregate a batch without rows; blocking, 1–3 s each."""
    register(spark)
    for part in parts:
        nothing = spark.read.format(JOB_FORMAT).option("columns", part.columns)
        part.rows(nothing.load(), 0)
