"""The examples of docs/spark.md that are Python or SQL, run as an analyst runs them: in one notebook.

Its session is one of the page's server of Spark Connect. What notebooks use and HoldMQ does without is in
`build/notebook` (`.ci/setup test`).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import datasketches
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from guides import Example, examples_of
from processes import Stack, free_port, running_stack, wait_until
from spark_cluster import SparkCluster, wait_long

from holdmq.analytics.schemas import SKETCH_LG_K
from holdmq.client import Message, SyncProducer
from holdmq.config.analytics import StatsSection
from spark_streaming.job.backlog import BACKLOG_TABLE
from spark_streaming.job.parts import every_part
from spark_streaming.source.link import link_to

NOTEBOOK = Path(__file__).parents[2] / "build" / "notebook"
NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
MINUTE = NOW.replace(second=0)
SOON = NOW + dt.timedelta(hours=1)
"""Not older than a minute when an example looks for what is not."""
MARK = "=== line "
NOTEBOOK_S = 1200.0
"""All cells together, a JVM for them included, on a machine that has much else to do."""
# Whichever comes first waits for the server and for the notebook.
pytestmark = pytest.mark.timeout(2400)


def sketch_of(*devices: str) -> bytes:
    sketch = datasketches.hll_sketch(SKETCH_LG_K)
    for device in devices:
        sketch.update(device)
    return bytes(sketch.serialize_compact())


ROWS = {
    "tps_1s": [(SOON, "devices", 3, 30, 5, 0), (SOON, "devices", 4, 40, 6, 1)],
    "tps_1m": [(MINUTE, "devices", 3, 30, 5, 0), (MINUTE, "devices", 8, 80, 6, 1)],
    "latency": [(MINUTE, "devices", 5, 90, 0), (MINUTE, "devices", 100, 10, 0)],
    "backlog": [
        (NOW, "jobs", "devices", "broker-0", 12, 340, 0),
        (NOW, "jobs", "devices", "broker-1", 13, 20, 0),
    ],
    "devices_1m": [
        (MINUTE, "devices", 7, 2, sketch_of("a", "b"), 0),
        (MINUTE, "more", 1, 2, sketch_of("b", "c"), 0),
    ],
    "talkers_1m": [(MINUTE, "devices", "a", 5, 0), (MINUTE, "devices", "b", 2, 0)],
}
"""What the job wrote: rows of its tables, a batch each."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), "registry", "broker") as stack:
        yield stack


@pytest.fixture(scope="module")
def connect_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    server = SparkCluster(tmp_path_factory.mktemp("connect"), spark_connect_grpc_binding_port=port)
    try:
        process = server.run("connect", "start-connect-server", SPARK_DAEMON_MEMORY="512m")

        def answers() -> bool:
            assert process.poll() is None, server.log("connect")[-3000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_long(answers, "the server of Spark Connect answers")
        yield port
    finally:
        server.end()


@pytest.fixture(scope="module")
def notebook(cluster: Stack, connect_port: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each example of the page printed, by its first line of code."""
    directory = tmp_path_factory.mktemp("notebook")
    write_tables(directory / "holdmq-data" / "stats" / "tables")
    bodies = [("1/t", "a", 20.5), ("2/t", "b", 3), ("2/t", "a", 21.5)]
    with SyncProducer([cluster.registry]) as producer:
        producer.send_batch(
            [
                Message("devices", json.dumps({"celsius": celsius}).encode(), tag, client_id=device)
                for tag, device, celsius in bodies
            ]
        )
    examples = in_order(examples_of("spark.md", "python", "sql"))
    here = {
        "10.0.0.5:15002": f"127.0.0.1:{connect_port}",
        "10.0.0.5:9876": cluster.registry,
        'format("holdmq")': f'format("holdmq").option("registry", "{cluster.registry}")',
        "/tmp/checkpoint": str(directory / "checkpoint"),
        "…": f"timestamptz '{(NOW - dt.timedelta(hours=1)).isoformat()}'",
    }
    program = []
    for example in examples:
        code = as_python(example)
        for theirs, ours in here.items():
            code = code.replace(theirs, ours)
        program.append(f'print("{MARK}{example.line}")\n{code}')
    path = [str(NOTEBOOK), *([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*program, THE_END])],
        capture_output=True, text=True, timeout=NOTEBOOK_S, check=False, cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.split(MARK)[1:]
    return {example.code: text.partition("\n")[2] for example, text in zip(examples, printed, strict=True)}


THE_END = """
for query in spark.streams.active:
    assert query.exception() is None
    query.stop()
spark.stop()
"""


def write_tables(directory: Path) -> None:
    tables = [table for part in every_part(StatsSection()) for table in part.tables]
    for table in [*tables, BACKLOG_TABLE]:
        rows = ROWS.get(table.name, [])
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(table.schema)]
        write_deltalake(str(directory / table.name), pa.Table.from_arrays(columns, schema=table.schema))


def in_order(examples: list[Example]) -> list[Example]:
    """The session first, which the page has near its end, and the others as they are."""
    (session,) = [example for example in examples if "SparkSession.builder" in example.code]
    return [session, *[example for example in examples if example is not session]]


def as_python(example: Example) -> str:
    """A query as the notebook's cell: sketches are Spark's, the others any reader's."""
    if example.language == "python":
        return example.code
    (name,) = set(re.findall(r"FROM (\w+_1[sm]|latency|backlog)\b", example.code))
    table = f'deltalake.DeltaTable("holdmq-data/stats/tables/{name}")'
    if "hll_" in example.code:
        query = example.code.replace("…", "timestamp '2020-01-01'")
        view = f'spark.createDataFrame({table}.to_pyarrow_table()).createOrReplaceTempView("{name}")'
        return f'import deltalake\n{view}\nspark.sql("""{query}""").show()'
    opened = f"import deltalake, duckdb\n{name} = {table}.to_pyarrow_dataset()"
    return f'{opened}\nduckdb.sql("""{example.code}""").show()'


def printed_by(notebook: dict[str, str], words: str) -> str:
    """What the one example that has `words` printed, spaces left out."""
    (text,) = [text for code, text in notebook.items() if words in code]
    return text.replace(" ", "")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("/tps_1s", ["messages_sum:int64", "[[7]]"]),
        ("read_devices", ["devices=3", "client_id='a'"]),
        ("FROM tps_1s", ["│devices│7│70│6│"]),
        ("p99_ms", ["│devices│5│100│100│"]),
        ("FROM backlog", ["│jobs│25│340│"]),
        ("hll_union_agg(sketch)", ["|3|"]),
        ('.groupBy("tag")', ["|1/t|1|", "|2/t|2|"]),
        ("from_json", ["|a|21.5|", "|b|3.0|"]),
        ('queryName("live")', ["|devices|", "|3|"]),
        ("duckdb.sql", ["│devices│11│"]),
        ("groupby", ["devices11"]),
        ("scan_delta", ["┆devices┆11│"]),
        ('sum("messages")', ["|devices|11|"]),
    ],
)
def test_an_example_gives_what_the_page_says(notebook: dict[str, str], words: str, wanted: list[str]) -> None:
    printed = printed_by(notebook, words)
    for each in wanted:
        assert each in printed, printed


def test_no_example_is_forgotten(notebook: dict[str, str]) -> None:
    assert len(notebook) == len(examples_of("spark.md", "python", "sql"))


def test_what_an_example_writes_is_in_its_topic(cluster: Stack, notebook: dict[str, str]) -> None:
    assert [code for code in notebook if '.option("topic", "commands")' in code]
    link = link_to((cluster.registry,))
    wait_until(lambda: bool(link.snapshot(lambda topic: topic == "commands").bounds), "the topic is listed")
    held = link.snapshot(lambda topic: topic == "commands")
    assert sum(bounds.end for bounds in held.bounds.values()) == 1
