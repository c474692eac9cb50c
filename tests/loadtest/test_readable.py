from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import deltalake
import psycopg
import pyarrow as pa
import pytest
from postgresql import running_postgresql

from loadtest.figures import quantile
from loadtest.readable import DeltaSeconds, PostgresqlSeconds, Readable


def test_a_second_is_readable_when_its_last_message_is() -> None:
    readable = Readable()
    readable.see({100: 5}, 100.9)
    readable.see({100: 5, 101: 1}, 101.25)
    readable.see({100: 7, 101: 1}, 101.5)
    readable.see({100: 7, 101: 1, 102: 3}, 103.75)
    assert readable.totals == {100: 7, 101: 1, 102: 3}
    assert readable.lags_s(100, 103) == [0.5, -0.75, 0.75]
    assert readable.lags_s(101, 102) == [-0.75]


def test_what_nobody_named_again_is_what_it_was() -> None:
    readable = Readable()
    readable.see({100: 5}, 101.5)
    readable.see({}, 102)
    assert readable.lags_s(0, 200) == [0.5]


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([1, 2, 3, 4], share) for share in (0, 0.5, 0.95, 1)] == [1, 3, 4, 4]
    assert math.isnan(quantile([], 0.5))


def write(path: Path, rows: list[tuple[int, str, int]]) -> None:
    seconds = [dt.datetime.fromtimestamp(second, dt.UTC) for second, _, _ in rows]
    table = {
        "second": pa.array(seconds, pa.timestamp("us", tz="UTC")),
        "topic": [topic for _, topic, _ in rows],
        "messages": [messages for _, _, messages in rows],
    }
    deltalake.write_deltalake(path, pa.table(table), mode="append")


@pytest.mark.parametrize("is_kept_open", [True, False])
def test_seconds_of_a_delta_table_are_summed_over_topics_and_batches_and_compaction(
    tmp_path: Path, is_kept_open: bool
) -> None:
    kept = DeltaSeconds(tmp_path / "tps_1s")
    assert kept.totals() == {}

    def totals() -> dict[int, int]:
        seconds = kept if is_kept_open else DeltaSeconds(tmp_path / "tps_1s")
        return dict(seconds.totals())

    write(tmp_path / "tps_1s", [(100, "a", 1), (100, "b", 2)])
    assert totals() == {100: 3}
    write(tmp_path / "tps_1s", [(100, "a", 4), (101, "b", 5)])
    assert totals() == {100: 7, 101: 5}
    table = deltalake.DeltaTable(tmp_path / "tps_1s")
    table.optimize.compact()
    assert len(table.file_uris()) == 1
    assert totals() == {100: 7, 101: 5}


def test_seconds_of_a_postgresql_table_are_summed_over_topics_as_far_back_as_is_looked() -> None:
    with running_postgresql() as server, psycopg.connect(server.url(), autocommit=True) as connection:
        kept = PostgresqlSeconds(server.url())
        assert kept.totals() == {}
        connection.execute("CREATE SCHEMA holdmq")
        connection.execute("CREATE TABLE holdmq.tps_1s (second timestamptz, topic text, messages bigint)")
        now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        old = now - dt.timedelta(seconds=10 * PostgresqlSeconds.LOOK_BACK_S)
        for row in [(now, "a", 1), (now, "b", 2), (old, "a", 4)]:
            connection.execute("INSERT INTO holdmq.tps_1s VALUES (%s, %s, %s)", row)
        assert kept.totals() == {int(now.timestamp()): 3}
        kept.close()
