"""How long the console takes for the past and for SQL, over tables of a large job.

    python -m loadtest.bench.console_queries [--topics 50] [--hours 12] [--rounds 5]

Writes tables as the statistics job leaves them, one file each: `tps_1s` of `--hours`, minutes of five days,
hours of a year. Then it asks a console for ranges and sums, each `--rounds` times, in turns; the first
statement of all starts the process that runs it. Everything runs on this machine.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import deltalake
import numpy as np
import pyarrow as pa

from holdmq.errors import StartupError
from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.figures import show_ms
from loadtest.peers import holdmq_console

DAY_S: Final = 86_400
WAIT_S: Final = 60
SUMS: Final = (
    "SELECT topic, sum(messages) AS messages FROM tps_1s {where} GROUP BY topic ORDER BY messages DESC"
)
RANGES: Final = {
    "an hour": 3600,
    "two hours": 7200,
    "a day": DAY_S,
    "five days": 5 * DAY_S,
    "a year": 365 * DAY_S,
}


class Question(NamedTuple):
    """What is asked: its name, and a statement or the seconds of a range."""

    name: str
    asked: str | int


QUESTIONS: Final = (
    Question("SELECT 1", "SELECT 1"),
    Question("sum, last hour", SUMS.format(where="WHERE second >= now() - INTERVAL 1 HOUR")),
    Question("sum, all of tps_1s", SUMS.format(where="")),
    *(Question(f"history, {name}", seconds) for name, seconds in RANGES.items()),
)


def write(tables: Path, name: str, column: str, step_s: int, span_s: int, topics: int) -> int:
    """Write a table of counts with a row for each step and topic; returns its rows."""
    last = int(time.time()) // step_s * step_s
    steps = np.arange(last - span_s + step_s, last + step_s, step_s, dtype=np.int64)
    times = np.repeat(steps * 1_000_000, topics)
    count = len(times)
    messages = np.full(count, 100 * step_s, dtype=np.int64)
    columns: dict[str, Any] = {
        column: pa.array(times, pa.timestamp("us", tz="UTC")),
        "topic": pa.array([f"topic-{number}" for number in range(topics)] * len(steps)),
        "messages": messages,
        "bytes": messages * 100,
        "latency_max_ms": np.full(count, 5, dtype=np.int64),
        "batch_id": np.zeros(count, dtype=np.int64),
    }
    rows = pa.table(columns)
    rows = rows.cast(pa.schema([field.with_nullable(False) for field in rows.schema]))
    deltalake.write_deltalake(tables / name, rows, target_file_size=1 << 30)
    return count


def ask(console: str, question: Question) -> float:
    """Ask one question; the seconds that its answer took. StartupError for a refusal."""
    connection = http.client.HTTPConnection(console, timeout=WAIT_S)
    began = time.perf_counter()
    if isinstance(question.asked, int):
        until = dt.datetime.now(dt.UTC)
        first = until - dt.timedelta(seconds=question.asked)
        moments = f"from={first.timestamp():.0f}&to={until.timestamp():.0f}"
        connection.request("GET", f"/api/v1/history?{moments}")
    else:
        body = json.dumps({"sql": question.asked})
        connection.request("POST", "/api/v1/sql", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    took = time.perf_counter() - began
    connection.close()
    if response.status != http.client.OK:
        raise StartupError(f"{question.name} was answered {response.status}: {answer.decode()}")
    return took


def measure(options: Options, directory: Path) -> None:
    """Write the tables, and ask."""
    tables = directory / "stats" / "tables"
    tables.mkdir(parents=True)
    seconds = write(tables, "tps_1s", "second", 1, options.hours * 3600, options.topics)
    minutes = write(tables, "tps_1m", "minute", 60, 5 * DAY_S, options.topics)
    hours = write(tables, "tps_1h", "hour", 3600, 365 * DAY_S, options.topics)
    say(f"tables    {seconds:,} rows of seconds, {minutes:,} of minutes, {hours:,} of hours")
    with holdmq_console(directory, "console.auth=none") as services:
        say(f"first     {ask(services.console, QUESTIONS[0]):.2f} s, with the start of its process")
        took: dict[str, list[float]] = {question.name: [] for question in QUESTIONS}
        for _ in range(options.rounds):
            for question in QUESTIONS:
                took[question.name].append(ask(services.console, question))
    width = max(map(len, took))
    for name, found in took.items():
        say(f"{name:{width}}  {show_ms(found, 0.5)}")


if __name__ == "__main__":
    sys.exit(BenchCommand(__doc__, topics=50, hours=12, rounds=5).run(measure))
