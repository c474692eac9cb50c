"""The analysts' API as it is served: statements, history, saved queries, and who may send them."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
from openapi_answers import conforms

from console.api.analysis import History, Report, ResultRows, SavedQueryList
from console.sql.box import WAITING

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
Append = Callable[..., None]

HOUR = int(time.time()) // 3600 * 3600 - 7200
"""A moment that every table still has."""


ENDLESS = "SELECT count(*) FROM range(10000000) a(i), range(10000000) b(j) WHERE i + j = 7"


def text_of(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


async def run(client: httpx.AsyncClient, sql: str, form: str = "json", **headers: str) -> httpx.Response:
    return await client.post(f"/api/v1/sql?format={form}", json={"sql": sql}, headers=headers)


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_a_statement_is_answered_as_json_and_as_a_file(serve: Serve, append_rows: Append) -> None:
    append_rows([(HOUR, "devices", 2, 20), (HOUR, "=a,b", 1, 5)])
    sql = "SELECT topic, sum(messages) AS n FROM tps_1s GROUP BY ALL ORDER BY n DESC"
    async with serve(sql_rows_max=2) as client:
        answer = (await run(client, sql)).json()
        assert answer["rows"] == [["devices", 2], ["=a,b", 1]]
        assert answer["columns"][0] == {"name": "topic", "type": "VARCHAR"}
        assert "notice" not in answer
        file = await run(client, sql, "csv")
        assert file.headers["content-type"] == "text/csv; charset=utf-8"
        assert 'filename="holdmq-query.csv"' in file.headers["content-disposition"]
        assert list(csv.reader(io.StringIO(file.text))) == [["topic", "n"], ["devices", "2"], ["'=a,b", "1"]]
        cut = await run(client, "SELECT i FROM range(9) t(i)", "csv")
        assert "sql_rows_max" in cut.headers["holdmq-notice"]
        assert len(cut.text.splitlines()) == 3
        refused = await run(client, "SELECT * FROM read_csv('/etc/passwd')")
        assert error_of(refused) == (400, "QUERY_REFUSED")
        assert "read_csv" in refused.json()["error"]["message"]
        assert error_of(await run(client, "SELEC 1")) == (400, "QUERY_ERROR")
        assert error_of(await run(client, sql, "xml")) == (400, "INVALID_ARGUMENT")
        metrics = (await client.get("/metrics")).text
        assert 'holdmq_console_queries_total{box="sql",outcome="refused"}' in metrics


async def test_a_long_query_holds_up_nobody_else(serve: Serve, append_rows: Append) -> None:
    append_rows([(HOUR, "devices", 2, 20)])
    async with serve(sql_seconds_max=120, sql_waiting_max=1) as client:
        running = asyncio.create_task(run(client, ENDLESS))
        while not WAITING.labels("sql")._value.get():
            await asyncio.sleep(0.01)
        full = await run(client, "SELECT 1")
        assert error_of(full) == (503, "BUSY")
        assert full.headers["retry-after"] == "1"
        past = await client.get(f"/api/v1/history?from={HOUR}&to={HOUR + 60}")
        assert past.json()["topics"][0]["topic"] == "devices"
        assert (await client.get("/api/v1/tps")).status_code == 200
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])


async def test_a_query_that_takes_too_long_is_ended_and_that_is_said(serve: Serve) -> None:
    async with serve(sql_seconds_max=1) as client:
        assert error_of(await run(client, ENDLESS)) == (422, "QUERY_TIME")


ORIGINS: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"Origin": "{own}"}, True),
    ({"Origin": "https://console.example.org"}, True),
    ({"Origin": "https://evil.example"}, False),
    ({"Origin": "null"}, False),
    ({"Origin": "http://[bad"}, False),
    ({"Origin": "http://127.0.0.1:1"}, False),
    # Its own under a name of this installation, but not another such name's.
    ({"Origin": "http://gw.example.net:{port}", "Host": "gw.example.net:{port}"}, True),
    ({"Origin": "http://gw.example.net:{port}"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Sec-Fetch-Site": "same-origin"}, True),
]


async def test_a_page_of_another_origin_can_neither_query_nor_save(serve: Serve) -> None:
    async with serve(origins=["https://console.example.org"], hosts=["gw.example.net"]) as client:
        own = {"own": str(client.base_url).rstrip("/"), "port": str(client.base_url.port)}
        for headers, accepted in ORIGINS:
            sent = {name: value.format(**own) for name, value in headers.items()}
            saved = await client.put("/api/v1/queries/mine", json={"sql": "SELECT 1"}, headers=sent)
            # An unreadable statement: whether it got so far is what is asked.
            ran = await client.post("/api/v1/sql", json={"sql": ""}, headers=sent)
            gone = await client.delete("/api/v1/queries/mine", headers=sent)
            if accepted:
                assert (saved.status_code, gone.status_code) == (204, 204), headers
                assert error_of(ran) == (400, "INVALID_ARGUMENT"), headers
                continue
            for refused in (saved, ran, gone):
                assert error_of(refused) == (403, "FOREIGN_ORIGIN"), headers
                assert "access-control-allow-origin" not in refused.headers
            assert (await client.get("/api/v1/queries", headers=sent)).status_code == 200
        metrics = (await client.get("/metrics")).text
        assert "holdmq_console_foreign_requests_refused_total" in metrics


REQUESTS = [
    (b'{"sql": "SELECT 1"}', "text/plain", 400, "application/json"),
    (b"sql=SELECT+1", "application/x-www-form-urlencoded", 400, "application/json"),
    (b"{", "application/json", 400, "no JSON"),
    (b"[" * 100_000, "application/json", 400, "no JSON"),
    (b"\xff", "application/json", 400, "no JSON"),
    (b'{"sql": 1}', "application/json", 400, "sql"),
    (rb'{"sql": "SELECT 1 -- \ud800"}', "application/json", 400, "half of a character"),
    (b"[]", "application/json", 400, "the request"),
    (b'{"sql": "' + b"x" * 70_000 + b'"}', "application/json", 400, "sql"),
    (b'{"sql": "' + b"x" * 600_000 + b'"}', "application/json", 413, "at most"),
]


async def test_a_request_that_is_none_is_refused(serve: Serve) -> None:
    async with serve() as client:
        for content, kind, status, part in REQUESTS:
            response = await client.post("/api/v1/sql", content=content, headers={"Content-Type": kind})
            assert response.status_code == status, content[:40]
            assert part in response.json()["error"]["message"], content[:40]


async def test_history_is_the_sum_of_the_table_that_fits_the_range(serve: Serve, append_rows: Append) -> None:
    append_rows([(HOUR, "devices", 2, 20), (HOUR + 1, "meters", 1, 5)], 0)
    append_rows([(HOUR, "devices", 3, 30), (HOUR + 1, "rare", 1, 1)], 1)
    append_rows([(HOUR, "devices", 700, 7000), (HOUR + 3600, "devices", 9, 90)], 0, "tps_1m")
    append_rows([(HOUR, "devices", 70_000, 70)], 0, "tps_1h")
    async with serve() as client:

        async def ask(query: str) -> Any:
            return (await client.get(f"/api/v1/history?{query}")).json()

        fine = await ask(f"from={HOUR}&to={HOUR + 3}&top=1")
        assert (fine["table"], fine["step_seconds"]) == ("tps_1s", 1)
        assert fine["topics"] == [
            {"topic": "devices", "messages": [5, 0, 0], "bytes": [50, 0, 0], "latency_max_ms": [1, 0, 0]}
        ]
        assert fine["others"]["messages"] == [0, 2, 0]
        day = f"from={text_of(HOUR - 43_200)}&to={text_of(HOUR + 43_200).replace('Z', '%2B00:00')}"
        found = await ask(day)
        assert (found["table"], found["step_seconds"]) == ("tps_1m", 120)
        assert len(found["topics"][0]["messages"]) == 720
        assert sum(found["topics"][0]["messages"]) == 709
        year = await ask(f"from={HOUR - 300 * 86_400}&to={HOUR + 60 * 86_400}")
        assert (year["table"], sum(year["topics"][0]["messages"])) == ("tps_1h", 70_000)
        file = await client.get(f"/api/v1/history?{day}&format=csv")
        assert file.text.splitlines() == [
            "time,topic,messages,bytes,latency_max_ms",
            f"{text_of(HOUR)},devices,700,7000,1",
            f"{text_of(HOUR + 3600)},devices,9,90,1",
        ]
        assert 'filename="holdmq-history.csv"' in file.headers["content-disposition"]


RANGES = [
    ("from=x", "from"),
    ("from=2026-01-01T00:00:00", "zone"),
    ("from=-5", "from"),
    ("from=10&to=10", "before"),
    ("from=20&to=10", "before"),
    ("from=0&to=1800000000", "ten years"),
    ("to=99999999999999999999", "to:"),
    ("from=9999-12-31T00:00:00Z&to=9999-12-31T23:00:00-12:00", "to:"),
    ("top=0", "top"),
    ("top=x", "top"),
    ("format=xml", "format"),
]


async def test_a_wrong_range_is_refused_by_name(serve: Serve) -> None:
    async with serve() as client:
        for query, part in RANGES:
            response = await client.get(f"/api/v1/history?{query}")
            assert error_of(response) == (400, "INVALID_ARGUMENT"), query
            assert part in response.json()["error"]["message"], query


async def test_tables_that_are_not_there_are_said_and_nothing_fails(serve: Serve) -> None:
    async with serve() as client:
        for kind, table, needs in (
            ("history", "tps_1s", ""),
            ("latency", "latency", ""),
            ("backlog", "backlog", " and stats.backlog_interval_s above 0"),
            ("talkers", "talkers_1m", " and stats.devices = true"),
        ):
            response = await client.get(f"/api/v1/{kind}")
            assert response.status_code == 200, response.text
            assert response.json()["notice"] == (
                f"there is no table {table} yet: the statistics job writes it "
                f'(holdmq stats, with stats.sink = "delta"{needs})'
            )


async def test_latency_backlog_and_talkers_come_from_their_tables(
    serve: Serve, append_reports: Callable[[int], None]
) -> None:
    append_reports(HOUR)
    async with serve() as client:

        async def ask(kind: str, form: str = "json") -> httpx.Response:
            return await client.get(f"/api/v1/{kind}?from={HOUR}&to={HOUR + 120}&format={form}")

        latency = (await ask("latency")).json()
        assert latency["columns"] == ["time", "messages", "p50_ms", "p95_ms", "p99_ms"]
        assert latency["rows"] == [
            [text_of(HOUR), 99, 5, 5, 5],
            [text_of(HOUR + 60), 10, 100, 100, 100],
        ]
        backlog = (await ask("backlog")).json()
        assert [row[1:] for row in backlog["rows"]] == [["readers", 7, 1000], ["readers", 9, 2000]]
        assert (await ask("talkers", "csv")).text == "client_id,messages\r\nloud,50\r\nquiet,1\r\n"


async def test_queries_are_saved_listed_and_deleted(serve: Serve) -> None:
    async with serve(saved_queries_max=1) as client:
        path = "/api/v1/queries/caf%C3%A9%20%26%2Fmore"
        assert (await client.put(path, json={"sql": "SELECT 1"})).status_code == 204
        listed = (await client.get("/api/v1/queries")).json()["queries"]
        assert (listed[0]["name"], listed[0]["sql"], listed[0]["ready_made"]) == (
            "café &/more",
            "SELECT 1",
            False,
        )
        full = await client.put("/api/v1/queries/other", json={"sql": "SELECT 1"})
        assert error_of(full) == (503, "BUSY")
        assert (await client.delete(path)).status_code == 204
        assert error_of(await client.delete(path)) == (404, "NOT_FOUND")


async def test_every_ready_made_query_runs_and_finds_rows(
    serve: Serve, append_rows: Append, append_reports: Callable[[int], None]
) -> None:
    recent = int(time.time()) - 200
    append_rows([(recent, "devices", 2, 20)])
    append_rows([(HOUR, "devices", 2, 20)], 0, "tps_1h")
    append_reports(recent)
    async with serve() as client:
        found = {}
        for row in (await client.get("/api/v1/queries")).json()["queries"]:
            response = await run(client, row["sql"])
            assert response.status_code == 200, (row["name"], response.text)
            found[row["name"]] = response.json()["rows"]
    # A day may have begun since.
    assert all(rows for name, rows in found.items() if "today" not in name)
    assert found["Latency percentiles per topic, last hour"] == [["devices", 5, 100, 100]]
    assert found["Largest backlog per group, last hour"] == [["readers", 9, 2000]]


async def test_answers_are_as_the_openapi_document_says(serve: Serve, append_rows: Append) -> None:
    append_rows([(HOUR, "devices", 2, 20)])
    async with serve() as client:
        answers = [
            (ResultRows, await run(client, "SELECT 1 AS one, 0.5, 'text', NULL, [1, 2], {'a': true}")),
            (History, await client.get(f"/api/v1/history?from={HOUR}&to={HOUR + 60}")),
            (Report, await client.get("/api/v1/latency")),
            (SavedQueryList, await client.get("/api/v1/queries")),
        ]
        for model, response in answers:
            conforms(response.json(), model)
