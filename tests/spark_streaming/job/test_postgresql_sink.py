from __future__ import annotations

import datetime as dt
import itertools
import signal
import threading
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from postgresql import Postgresql, running_postgresql
from processes import free_port, wait_until

from holdmq.errors import ConfigError, HoldMQError, StartupError
from spark_streaming.job import postgresql_sink
from spark_streaming.job.postgresql_sink import PostgresqlSink
from spark_streaming.job.sink import MAINTENANCE_BATCHES
from spark_streaming.tables import TPS_1S, TPS_1S_TABLE

BASE = dt.datetime(2026, 1, 2, 3, 0, 0, tzinfo=dt.UTC)
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgresql]:
    with running_postgresql() as running:
        yield running


@pytest.fixture
def url(server: Postgresql) -> str:
    return server.new_database(f"test_{next(NUMBERS)}")


def made(url: str) -> PostgresqlSink:
    sink = PostgresqlSink(url, (TPS_1S_TABLE,), lambda _: dt.timedelta(hours=1))
    sink.create()
    return sink


def batch(batch_id: int, seconds: int = 1) -> dict[str, pa.Table]:
    times = [BASE + dt.timedelta(seconds=second) for second in range(seconds)]
    rows = [
        {"second": at, "topic": "a", "messages": 1, "bytes": 2, "latency_max_ms": 3, "batch_id": batch_id}
        for at in times
    ]
    return {TPS_1S: pa.Table.from_pylist(rows, TPS_1S_TABLE.schema)}


def counted(url: str) -> tuple[int, int]:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT coalesce(sum(messages), 0)::int, (SELECT max(batch_id) FROM holdmq.batches) "
            "FROM holdmq.tps_1s"
        ).fetchone()
    assert row is not None
    return row


def test_columns_and_types_are_those_of_the_delta_table(url: str) -> None:
    made(url).close()
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
            "WHERE table_schema = 'holdmq' AND table_name = 'tps_1s' ORDER BY ordinal_position"
        ).fetchall()
    assert rows == [
        ("second", "timestamp with time zone", "NO"),
        ("topic", "text", "NO"),
        ("messages", "bigint", "NO"),
        ("bytes", "bigint", "NO"),
        ("latency_max_ms", "bigint", "NO"),
        ("batch_id", "bigint", "NO"),
    ]


def test_rows_and_the_batch_s_id_are_one_transaction(url: str) -> None:
    sink = made(url)
    sink.write("app", 0, batch(0))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE holdmq.batches ADD CHECK (batch_id < 1)")
    with pytest.raises(HoldMQError, match=r"refused writing batch 1: .*violates check constraint"):
        sink.write("app", 1, batch(1))
    assert counted(url) == (1, 0)
    sink.close()


def test_a_batch_waits_for_a_server_that_restarts_and_is_there_once(server: Postgresql, url: str) -> None:
    sink = made(url)
    assert sink.write("app", 0, batch(0))
    server.stop(signal.SIGQUIT)
    done = threading.Event()

    def write() -> None:
        assert sink.write("app", 1, batch(1))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    server.start()
    wait_until(done.is_set, "the batch is written after the restart", 100)
    thread.join()
    assert counted(url) == (2, 1)
    sink.close()


def test_a_session_that_was_ended_behind_its_commit_is_not_counted_twice(url: str) -> None:
    sink = made(url)
    assert sink.write("app", 0, batch(0))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'holdmq-stats' AND datname = current_database()"
        )
    # The answer to the commit never came: the batch is written again, on a new connection.
    assert not sink.write("app", 0, batch(0))
    assert counted(url) == (1, 0)
    sink.close()


def test_a_first_batch_waits_for_one_that_is_still_being_committed(url: str) -> None:
    sink = made(url)
    done = threading.Event()

    def write() -> None:
        sink.write("app", 0, batch(0))
        done.set()

    thread = threading.Thread(target=write)
    # A session whose client lost it behind its first commit, which the server has in hand.
    with psycopg.connect(url) as lost, psycopg.connect(url, autocommit=True) as beside:
        lost.execute("INSERT INTO holdmq.tps_1s VALUES (%s, 'a', 1, 2, 3, 0)", (BASE,))
        lost.execute("INSERT INTO holdmq.batches VALUES ('app', 0)")
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        wait_until(lambda: beside.execute(waiting).fetchone() is not None, "the sink waits for it")
        lost.commit()
    wait_until(done.is_set, "the sink has seen it")
    thread.join()
    assert counted(url) == (1, 0)
    sink.close()


def test_a_server_that_stays_away_is_named_without_its_password(
    server: Postgresql, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_sink, "WAIT_S", 0.0)
    sink = made(url.replace("holdmq@", "holdmq:secret@"))
    server.stop()
    try:
        with pytest.raises(HoldMQError) as caught:
            sink.write("app", 0, batch(0))
    finally:
        server.start()
    assert f"PostgreSQL at 127.0.0.1:{server.port}/" in str(caught.value)
    assert "failed at writing batch 0" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_start_without_a_server_or_with_a_wrong_address_is_one_sentence() -> None:
    port = free_port()
    with pytest.raises(StartupError, match=rf"PostgreSQL at 127\.0\.0\.1:{port}/x \(stats\.postgresql_url\)"):
        PostgresqlSink(f"postgresql://u:p@127.0.0.1:{port}/x", (TPS_1S_TABLE,), lambda _: dt.timedelta(1))
    with pytest.raises(ConfigError, match=r"stats\.postgresql_url is no address of a database"):
        PostgresqlSink("a table, please", (TPS_1S_TABLE,), lambda _: dt.timedelta(1))


def test_old_rows_go_in_steps(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_sink, "EXPIRE_ROWS_MAX", 7)
    sink = made(url)
    sink.write("app", 0, batch(0, seconds=20))
    assert sink.maintain(BASE + dt.timedelta(minutes=59))
    assert counted(url) == (20, 0)
    for batch_id in range(1, 1 + MAINTENANCE_BATCHES):
        assert not sink.maintain(BASE + dt.timedelta(hours=2))
        sink.write("app", batch_id, {})
    assert sink.maintain(BASE + dt.timedelta(hours=2))
    assert counted(url) == (0, MAINTENANCE_BATCHES)
    sink.close()
