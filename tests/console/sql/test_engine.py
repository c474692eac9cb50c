"""Statements over Delta tables: what is read, what is refused twice over, what is cut and stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from console.live.core.cells import csv_line, json_line
from console.sql.core.functions import FUNCTIONS
from console.sql.core.select import TABLE_FUNCTIONS
from console.sql.engine import Engine, QueryError, StatementBounds, check, csv_body, json_body, open_database

SECOND = 1_800_000_000
MEMORY = 64 << 20
BOUNDS = StatementBounds(seconds=120, rows_max=100, bytes_max=1 << 20)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Two seconds of two topics, one of them in two micro-batches; and a table without a commit."""
    tables = tmp_path_factory.mktemp("tables")
    (tables / "latency" / "_delta_log").mkdir(parents=True)
    for batch, found in enumerate(
        (
            [(SECOND, "devices", 2, 20), (SECOND, "meters", 1, 5)],
            [(SECOND, "devices", 3, 30), (SECOND + 1, "devices", 4, 40)],
        )
    ):
        seconds, topics, messages, sizes = zip(*found, strict=True)
        columns = {
            "second": pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC")),
            "topic": pa.array(topics),
            "messages": pa.array(messages, pa.int64()),
            "bytes": pa.array(sizes, pa.int64()),
            "latency_max_ms": pa.array([1] * len(found), pa.int64()),
            "batch_id": pa.array([batch] * len(found), pa.int64()),
        }
        write_deltalake(str(tables / "tps_1s"), pa.table(columns), mode="append")
    return Engine(tables, MEMORY)


def rows(engine: Engine, text: str, bounds: StatementBounds = BOUNDS) -> list[Any]:
    return [json.loads(line) for line in engine.select(text, bounds, json_line).lines]


def outcome(engine: Engine, text: str, bounds: StatementBounds = BOUNDS) -> tuple[str, str]:
    with pytest.raises(QueryError) as caught:
        engine.select(text, bounds, json_line)
    return caught.value.outcome, str(caught.value)


def test_a_statement_reads_the_tables(engine: Engine) -> None:
    result = engine.select(
        "SELECT second, topic, sum(messages) AS n FROM tps_1s GROUP BY ALL ORDER BY ALL", BOUNDS, json_line
    )
    assert json.loads(json_body(result))["rows"] == [
        ["2027-01-15T08:00:00Z", "devices", 5],
        ["2027-01-15T08:00:00Z", "meters", 1],
        ["2027-01-15T08:00:01Z", "devices", 4],
    ]
    assert [name for name, _ in result.columns] == ["second", "topic", "n"]
    assert result.notice == ""


def test_the_same_result_as_csv(engine: Engine) -> None:
    result = engine.select(
        "SELECT topic, sum(bytes) AS size FROM tps_1s GROUP BY ALL ORDER BY ALL", BOUNDS, csv_line
    )
    assert csv_body(result) == b"topic,size\r\ndevices,90\r\nmeters,5\r\n"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("FROM tps_1s SELECT count(*)", [4]),
        ("WITH a AS (SELECT max(messages) AS m FROM tps_1s) SELECT m FROM a", [4]),
        ("SELECT count(*) FROM generate_series(1, 5)", [5]),
        ("SELECT sum(i) FROM range(4) t(i)", [6]),
        ("SELECT unnest([7])", [7]),
        ("SELECT messages FROM tps_1s WHERE second >= TIMESTAMPTZ '2027-01-15 08:00:01+00'", [4]),
        ("SELECT sum(messages) OVER (ORDER BY second, messages) FROM tps_1s ORDER BY 1 DESC", [10]),
        ("SELECT count(*) FROM information_schema.columns WHERE table_name = 'tps_1s'", [6]),
        ("VALUES (1, 'x')", [1, "x"]),
        ("SHOW TABLES", ["tps_1s"]),
        ("SELECT column_name FROM (DESCRIBE tps_1s)", ["second"]),
        ("SELECT 9007199254740993, 'ä', NULL, [1, 2], 0.5", ["9007199254740993", "ä", None, [1, 2], 0.5]),
        ("SELECT 1 AS a, 2 AS a", [1, 2]),
        ("SELECT max(second) - min(second) FROM tps_1s", ["PT1S"]),
        ("SELECT INTERVAL '14 months -3 days 90.25 s', INTERVAL '0 s'", ["P14M-3DT90.25S", "PT0S"]),
        ("SELECT INTERVAL '-0.5 s', [INTERVAL '2 days']", ["PT-0.5S", ["P2D"]]),
        ("SELECT topic FROM tps_1s -- with a comment; and more\n ORDER BY messages;", ["meters"]),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 5) SELECT max(i) FROM n",
            [5],
        ),
    ],
)
def test_what_an_analyst_writes_is_run(engine: Engine, text: str, first: list[Any]) -> None:
    assert rows(engine, text)[0] == first


REFUSED = [
    "COPY tps_1s TO '/tmp/out.csv'",
    "COPY (SELECT 1) TO '/tmp/out.parquet'",
    "ATTACH '/tmp/other.db'",
    "DETACH memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "PRAGMA memory_limit='9GB'",
    "SET memory_limit = '9GB'",
    "SET lock_configuration = false",
    "RESET memory_limit",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "INSERT INTO tps_1s VALUES (1)",
    "UPDATE tps_1s SET messages = 0",
    "DELETE FROM tps_1s",
    "DROP VIEW tps_1s",
    "EXPORT DATABASE '/tmp/out'",
    "CALL pragma_version()",
    "WITH a AS (DELETE FROM tps_1s RETURNING *) SELECT * FROM a",
    "WITH a AS (INSERT INTO tps_1s VALUES (1) RETURNING *) SELECT * FROM a",
    "WITH a AS (UPDATE tps_1s SET messages = 0 RETURNING *) SELECT * FROM a",
    "SHOW DATABASES",
    "SHOW VARIABLES",
    "EXPLAIN ANALYZE SELECT 1",
    "BEGIN",
    "CHECKPOINT",
    "VACUUM",
    "PREPARE p AS SELECT 1",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv_auto('/etc/passwd')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_parquet('/tmp/x.parquet')",
    "SELECT * FROM parquet_scan('/tmp/x.parquet')",
    "SELECT * FROM parquet_metadata('/tmp/x.parquet')",
    "SELECT * FROM read_json('/tmp/x.json')",
    "SELECT * FROM read_ndjson('/tmp/x.json')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "/tmp/x.csv"',
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('tps_1s')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_settings",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM json_execute_serialized_sql('{}')",
    "SELECT (SELECT count(*) FROM read_text('/etc/passwd'))",
    "WITH a AS (SELECT * FROM glob('/*')) SELECT * FROM a",
    "SELECT * FROM tps_1s, LATERAL (SELECT * FROM read_text(topic))",
    "SELECT 1 WHERE EXISTS (FROM glob('/*'))",
    "SELECT 1 UNION ALL SELECT length(content) FROM read_text('/etc/passwd')",
    "SELECT getenv('HOME')",
    "SELECT current_setting('secret_directory')",
    "SELECT system.main.getenv('HOME')",
    "SELECT list_transform(['HOME'], lambda x: getenv(x))",
    "SELECT topic FROM tps_1s ORDER BY GETENV(topic)",
    "SELECT sum(messages) OVER (PARTITION BY getenv(topic)) FROM tps_1s",
    "SELECT 'HOME'.getenv()",
    "SELECT getvariable('x')",
    "SELECT current_query()",
    "SELECT current_database()",
    "SELECT sleep_ms(100000)",
    "SELECT pg_sleep(100)",
    "SELECT setseed(0.5)",
    "SELECT write_log('x')",
    "SELECT nextval('x')",
    "SELECT json_serialize_sql('SELECT 1')",
    "SELECT json_deserialize_sql('{}')",
    "SELECT version()",
    "SELECT inet_server_addr()",
    "SELECT pg_get_viewdef(1)",
    "SELECT txid_current()",
    "SELECT what_comes_with_the_next_release(1)",
    "SELECT * FROM what_comes_with_the_next_release(1)",
    "SELECT * FROM pragma_version()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('x', 'y')",
    "SELECT * FROM histogram('tps_1s', 'topic')",
    "SELECT * FROM test_all_types()",
    "WITH pg_settings AS (FROM pg_settings) FROM pg_settings",
    "WITH Duckdb_databases AS (FROM duckdb_databases) FROM duckdb_databases",
    "SELECT 1 FROM sqlite_master, (WITH sqlite_master AS (SELECT 1) FROM sqlite_master)",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY tps_1s TO '/tmp/out.csv'",
    "",
    " ; -- nothing",
]


def test_of_all_that_duckdb_has_only_what_computes_may_be_called(engine: Engine) -> None:
    database = open_database(MEMORY)
    found = database.execute(
        "SELECT DISTINCT function_name, function_type, stability FROM duckdb_functions()"
    )
    kinds: dict[str, set[str]] = {}
    volatile = set()
    for name, kind, stability in found.fetchall():
        kinds.setdefault(name.lower(), set()).add(kind)
        if stability == "VOLATILE":
            volatile.add(name.lower())
    of_values = {name for name, has in kinds.items() if has & {"scalar", "aggregate", "macro", "window"}}
    assert set() == FUNCTIONS - of_values, "names that DuckDB does not have"
    assert FUNCTIONS & volatile == {"random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7"}
    others = sorted(name for name in of_values - FUNCTIONS - TABLE_FUNCTIONS if name.isidentifier())
    assert {"current_setting", "getenv", "write_log", "sleep_ms"} - {"getenv"} <= set(others)
    for name in others:
        with pytest.raises(QueryError) as caught:
            check(database, f'SELECT "{name}"(1)', set())
        assert f"{name}(…) is not available here" in str(caught.value), name
    in_from = sorted(name for name, has in kinds.items() if has & {"table", "table_macro"})
    for name in in_from:
        text = f'SELECT * FROM "{name}"(1)'
        if name in TABLE_FUNCTIONS:
            check(database, text, set())
            continue
        with pytest.raises(QueryError, match="is not available here"):
            check(database, text, set())
    database.close()


ORDINARY = Path(__file__).with_name("ordinary.sql").read_text(encoding="utf-8").splitlines()[1:]


@pytest.mark.parametrize("text", ORDINARY)
def test_what_people_write_is_not_refused(engine: Engine, text: str) -> None:
    assert engine.select(text, BOUNDS, json_line).columns


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_read_of_the_tables_is_refused_with_a_sentence(
    engine: Engine, text: str, tmp_path: Path
) -> None:
    kind, said = outcome(engine, text.replace("/tmp", str(tmp_path)))
    assert kind == "refused"
    assert len(said) > 15
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT 1) TO '/tmp/out.csv'",
        "ATTACH '/tmp/other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '9GB'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET memory_limit",
        "EXPORT DATABASE '/tmp/out'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM read_parquet('/tmp/x.parquet')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM '/etc/passwd.csv'",
        "SELECT * FROM variable_of_this_test",
    ],
)
def test_the_database_itself_reaches_nothing_were_it_asked(text: str, tmp_path: Path) -> None:
    variable_of_this_test = pa.table({"x": [1]})
    assert variable_of_this_test.num_rows == 1
    database = open_database(MEMORY)
    with pytest.raises(duckdb.Error):
        database.execute(text.replace("/tmp", str(tmp_path))).fetchall()
    database.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nothing FROM tps_1s", "nothing"),
        ("SELECT 1/(SELECT 'x')::INT FROM tps_1s", "x"),
        ("SELECT * FROM tps_9z", "there is no table tps_9z; there are latency, tps_1s"),
        ("SELECT " + "1+" * 5000 + "1", "depth"),
        ("SELECT DATE 'infinity'", "before the year 1 or after 9999"),
        ("SELECT TIMESTAMPTZ '290000-01-01 00:00:00+00'", "cast it to VARCHAR"),
    ],
)
def test_a_wrong_statement_says_what_is_wrong(engine: Engine, text: str, part: str) -> None:
    assert part in outcome(engine, text)[1]


ENDLESS = [
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "SELECT count(*) FROM range(10000000) a(i), range(10000000) b(j) WHERE a.i + b.j = 7",
    "SELECT count(*) FROM generate_series(1, 1000000000000) t(i) WHERE hash(i) = 9",
    "SELECT i FROM range(1000000000000) t(i) WHERE i < 0",
]


@pytest.mark.parametrize("text", ENDLESS)
def test_an_endless_query_is_stopped(engine: Engine, text: str) -> None:
    kind, said = outcome(engine, text, BOUNDS._replace(seconds=0.3))
    assert kind in ("time", "memory"), said
    assert "console.sql_" in said


@pytest.mark.parametrize(
    "text",
    [
        "SELECT list(i) FROM range(1000000000) t(i)",
        "SELECT count(DISTINCT i) FROM range(1000000000) t(i)",
        "SELECT * FROM range(100000000) t(i) ORDER BY hash(i)",
    ],
)
def test_a_query_that_needs_too_much_memory_is_refused_by_duckdb(engine: Engine, text: str) -> None:
    kind, said = outcome(engine, text)
    assert (kind, "64 MiB" in said, "console.sql_memory_bytes" in said) == ("memory", True, True)


def test_a_gigantic_result_is_cut_at_its_rows(engine: Engine) -> None:
    result = engine.select("SELECT i FROM range(1000000000000) t(i)", BOUNDS, json_line)
    assert [json.loads(line) for line in result.lines] == [[i] for i in range(100)]
    assert "first 100 rows (console.sql_rows_max)" in result.notice
    assert "only the first" in json.loads(json_body(result))["notice"]


def test_a_result_of_as_many_rows_as_may_be_is_whole(engine: Engine) -> None:
    assert engine.select("SELECT i FROM range(100) t(i)", BOUNDS, json_line).notice == ""


def test_a_gigantic_result_is_cut_at_its_bytes(engine: Engine) -> None:
    text = "SELECT repeat('x', 100000) FROM range(1000000)"
    result = engine.select(text, BOUNDS, json_line)
    assert len(result.lines) == 10
    assert "console.sql_result_max_bytes" in result.notice
    one = engine.select("SELECT repeat('x', 3000000)", BOUNDS, json_line)
    assert one.lines == []
    assert "first 0 rows" in one.notice


def test_a_damaged_table_is_named_and_the_others_are_read(engine: Engine) -> None:
    assert rows(engine, "SELECT count(*) FROM tps_1s") == [[4]]
    kind, said = outcome(engine, "SELECT * FROM latency")
    assert kind == "error"
    assert "The table latency cannot be read" in said


def test_without_tables_a_query_says_how_to_get_them(tmp_path: Path) -> None:
    assert "holdmq stats" in outcome(Engine(tmp_path / "none", MEMORY), "SELECT * FROM tps_1s")[1]
