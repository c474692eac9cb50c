"""The console as it is served: answers, errors, headers, bounds, drain."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_answers import conforms

from console.api.endpoint import ErrorAnswer
from console.api.live import Tps
from console.app import STATIC
from console.main import main
from holdmq.config.model import Config
from holdmq.errors import ConfigError, StartupError
from holdmq.service import telemetry
from holdmq.service.process import Service

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
Append = Callable[..., None]


async def read_event(lines: AsyncIterator[str], kind: str) -> Any:
    """Return the data of the next event of this kind."""
    found = False
    async for line in lines:
        if line.startswith("event: "):
            found = line == f"event: {kind}"
        elif found and line.startswith("data: "):
            return json.loads(line[6:])
    raise AssertionError(f"the stream ended before an event {kind!r}")


@asynccontextmanager
async def open_stream(client: httpx.AsyncClient) -> AsyncIterator[httpx.Response]:
    async with client.stream("GET", "/api/v1/stream") as response:
        yield response


def metric(text: str, name: str) -> float:
    """Return the value of a metric without labels."""
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


async def test_tps_answers_what_the_table_has(serve: Serve, append_rows: Append) -> None:
    now = int(time.time())
    append_rows([(now - 3, "devices", 2, 20), (now - 3, "meters", 1, 5)], 0)
    append_rows([(now - 3, "devices", 3, 30), (now - 2, "devices", 9, 90)], 1)
    append_rows([(now - 200, "devices", 1, 1)], 2)
    async with serve() as client:
        answer = (await client.get("/api/v1/tps?seconds=60")).json()
        second = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 3))
        assert answer["topics"]["devices"][0] == {"second": second, "messages": 5, "bytes": 50}
        assert [cell["messages"] for cell in answer["topics"]["devices"]] == [5, 9]
        assert answer["topics"]["meters"] == [{"second": second, "messages": 1, "bytes": 5}]
        assert [cell["messages"] for cell in answer["total"]] == [6, 9]
        assert "notice" not in answer
        conforms(answer, Tps)
        only = (await client.get("/api/v1/tps?seconds=60&top=1")).json()
        assert list(only["topics"]) == ["devices"]
        assert only["total"] == answer["total"]


async def test_an_absent_table_is_an_empty_answer_with_a_notice(serve: Serve) -> None:
    async with serve() as client:
        response = await client.get("/api/v1/tps")
        assert response.status_code == 200
        assert response.json()["topics"] == {}
        assert "holdmq stats" in response.json()["notice"]
        conforms(response.json(), Tps)


@pytest.mark.parametrize(
    "query",
    [
        "seconds=0",
        "seconds=901",
        "seconds=-1",
        "seconds=x",
        "seconds=",
        "top=0",
        "seconds=1e9",
        "seconds=99999999999",
    ],
)
async def test_a_wrong_parameter_is_refused_by_name(serve: Serve, query: str) -> None:
    async with serve() as client:
        response = await client.get(f"/api/v1/tps?{query}")
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "INVALID_ARGUMENT"
        assert query.partition("=")[0] in response.json()["error"]["message"]
        conforms(response.json(), ErrorAnswer)


async def test_a_cluster_that_is_away_is_a_503_with_the_reason(serve: Serve) -> None:
    async with serve() as client:
        for name in ("topics", "brokers", "gateways", "connections"):
            response = await client.get(f"/api/v1/{name}")
            assert response.status_code == 503
            assert "127.0.0.1:1" in response.json()["error"]["message"]


async def test_every_answer_has_the_security_headers(serve: Serve) -> None:
    async with serve() as client:
        for path in ("/", "/api/v1/tps", "/static/shell.js", "/api/v1/none", "/healthz"):
            headers = (await client.get(path)).headers
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "script-src 'self'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert "server" not in headers


PATHS = (
    "/",
    "/analysis",
    "/static/shell.js",
    "/api/v1/stream",
    "/api/v1/tps",
    "/api/v1/queries",
    "/api/v1/openapi.json",
    "/healthz",
    "/readyz",
    "/metrics",
    "/none",
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_whatever_is_asked_of_a_name_that_is_not_ours_is_refused(serve: Serve, method: str) -> None:
    async with serve(origins=["https://console.example.org"], hosts=["gw.example.net"]) as client:
        rebound = f"evil.example:{client.base_url.port}"
        headers = {"Host": rebound, "Origin": f"http://{rebound}"}
        for path in PATHS:
            answer = await client.request(method, path, headers=headers)
            assert answer.status_code == 421, path
            assert "content-security-policy" in answer.headers
            if method != "HEAD":
                assert answer.json()["error"]["code"] == "MISDIRECTED"
                assert "security.hosts" in answer.json()["error"]["message"]
        upgrade = {**headers, "Connection": "Upgrade", "Upgrade": "websocket"}
        assert (await client.request(method, "/api/v1/stream", headers=upgrade)).status_code == 421
        own = (await client.get("/metrics")).text
        assert metric(own, "holdmq_console_misdirected_requests_total") >= len(PATHS) + 1


async def test_the_console_answers_under_its_addresses_and_names(serve: Serve) -> None:
    async with serve(origins=["https://console.example.org"], hosts=["*.example.net"]) as client:
        for host in ("127.0.0.1", "[::1]:8080", "localhost:1", "Console.Example.ORG", "gw.example.net:8080"):
            assert (await client.get("/api/v1/tps", headers={"Host": host})).status_code == 200, host


async def exchanged(client: httpx.AsyncClient, request: bytes) -> tuple[int, bytes]:
    """Status and text that the console answers to these bytes before it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 40)
    writer.close()
    return int(answer.split(b" ", 2)[1]), answer


@pytest.mark.parametrize(
    ("line", "hosts", "status"),
    [
        (b"GET /healthz HTTP/1.1", [], 400),
        (b"GET /healthz HTTP/1.0", [], 200),
        (b"GET /healthz HTTP/1.0", [b"evil.example"], 421),
        (b"GET /healthz HTTP/1.1", [b"localhost", b"localhost"], 400),
        (b"GET /healthz HTTP/1.1", [b"localhost", b"evil.example"], 400),
        (b"GET http://localhost:1/healthz?x HTTP/1.1", [b"localhost"], 200),
        (b"GET http://evil.example/healthz HTTP/1.1", [b"localhost"], 421),
        (b"GET http://localhost/healthz HTTP/1.1", [b"evil.example"], 421),
        (b"GET healthz HTTP/1.1", [b"localhost"], 400),
        (b"CONNECT evil.example:443 HTTP/1.1", [b"localhost"], 400),
    ],
)
async def test_a_request_has_one_host_which_is_ours(
    serve: Serve, line: bytes, hosts: list[bytes], status: int
) -> None:
    async with serve() as client:
        headers = b"".join(b"Host: " + host + b"\r\n" for host in hosts)
        found, answer = await exchanged(client, line + b"\r\n" + headers + b"Connection: close\r\n\r\n")
        assert found == status, answer


async def test_the_page_asks_nobody_else_for_anything(serve: Serve) -> None:
    async with serve() as client:
        page = (await client.get("/")).text
        assert "http://" not in page.replace("http://www.w3.org", "")
        assert "https://" not in page
        for path in page.split('"'):
            if path.startswith("/static/"):
                assert (await client.get(path)).status_code == 200, path


async def test_probes_and_metrics_answer_on_the_same_port(serve: Serve) -> None:
    async with serve() as client:
        assert (await client.get("/healthz")).text == "ok\n"
        assert (await client.get("/readyz")).text == "ready\n"
        assert "holdmq_console_tps_refresh_seconds" in (await client.get("/metrics")).text


async def test_what_does_not_exist_is_said_in_json(serve: Serve) -> None:
    async with serve() as client:
        for path in ("/api/v1/nothing", "/nothing.js", "/static/nothing"):
            missing = await client.get(path)
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "NOT_FOUND"), path
        assert (await client.get("/topics/one/two")).headers["content-type"].startswith("text/html")
        refused = await client.post("/api/v1/tps")
        assert refused.status_code == 405
        assert refused.json()["error"]["code"] == "METHOD_NOT_ALLOWED"
        assert (await client.get("/static/../main.py")).status_code == 404
        assert (await client.get("/static/%2e%2e/main.py")).status_code == 404


async def test_a_browser_that_has_a_file_is_not_sent_it_again(serve: Serve) -> None:
    async with serve() as client:
        first = await client.get("/static/shell.js")
        assert first.headers["content-type"] == "text/javascript; charset=utf-8"
        assert first.content == (STATIC / "shell.js").read_bytes()
        has = {"If-None-Match": first.headers["etag"]}
        again = await client.get("/static/shell.js", headers=has)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
        other = await client.get("/static/vendor/uPlot.min.css", headers=has)
        assert (other.status_code, other.headers["content-type"]) == (200, "text/css; charset=utf-8")


async def test_the_stream_brings_new_counts_every_second(serve: Serve, append_rows: Append) -> None:
    async with serve() as client, open_stream(client) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.aiter_lines()
        first = await read_event(lines, "tps")
        assert first["topics"] == {}
        append_rows([(int(time.time()), "devices", 7, 70)])
        while not (event := await read_event(lines, "tps"))["topics"]:
            pass
        assert event["topics"]["devices"][0]["messages"] == 7
        conforms(event, Tps)
        cluster = await read_event(lines, "cluster")
        assert "cannot be asked" in cluster["notice"]


async def test_streams_beyond_the_bound_are_refused_and_counted(serve: Serve) -> None:
    async with serve(streams_max=1) as client:
        refused_before = metric((await client.get("/metrics")).text, "holdmq_console_streams_refused_total")
        async with open_stream(client) as response:
            # Kept in a variable: collecting the iterator would close the stream.
            lines = response.aiter_lines()
            await read_event(lines, "tps")
            refused = await client.get("/api/v1/stream")
            assert refused.status_code == 503
            assert "console.streams_max" in refused.json()["error"]["message"]
            metrics = (await client.get("/metrics")).text
            assert metric(metrics, "holdmq_console_streams") == 1
            assert metric(metrics, "holdmq_console_streams_refused_total") == refused_before + 1
        # A page that leaves gives its place back.
        async with asyncio.timeout(60):
            while True:
                async with open_stream(client) as again:
                    if again.status_code == 200:
                        break
                assert again.status_code == 503
                await asyncio.sleep(0.05)


async def test_requests_beyond_the_bound_are_refused_and_counted(serve: Serve) -> None:
    async with serve(requests_max=2) as client, open_stream(client) as one, open_stream(client) as two:
        # Kept in variables: collecting an iterator would close its stream.
        first, second = one.aiter_lines(), two.aiter_lines()
        await read_event(first, "tps")
        await read_event(second, "tps")
        refused = await client.get("/healthz")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "x-content-type-options" in refused.headers
        from console.api.http import REQUESTS_REFUSED

        assert REQUESTS_REFUSED._value.get() >= 1


async def test_open_streams_end_when_the_process_drains(serve: Serve) -> None:
    async with serve() as client:
        stream = open_stream(client)
        response = await stream.__aenter__()
        lines = response.aiter_lines()
        await read_event(lines, "tps")
    # The server has ended although the page had not left.
    with pytest.raises((AssertionError, httpx.HTTPError, RuntimeError)):
        await read_event(lines, "never")


@pytest.mark.parametrize(
    ("console", "key"),
    [
        ({"bind": "0.0.0.0"}, "console.bind is 0.0.0.0"),
        ({"bind": "::"}, "console.auth is none"),
    ],
)
async def test_an_open_console_must_be_asked_for(tmp_path: Path, console: dict[str, Any], key: str) -> None:
    config = Config.model_validate(
        {"console": {"port": 0, "auth": "none", **console}, "stats": {"data_dir": str(tmp_path)}}
    )
    service = Service("console", config, telemetry.get_logger(), asyncio.Event())
    with pytest.raises(ConfigError, match=key):
        await main(config, service)


async def test_a_console_with_accounts_may_be_reached_from_elsewhere(serve: Serve) -> None:
    async with serve(bind="0.0.0.0", auth="accounts") as client:
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/api/v1/tps")).status_code == 401


async def test_a_busy_port_is_one_sentence(serve: Serve, tmp_path: Path) -> None:
    async with serve() as client:
        config = Config.model_validate(
            {"console": {"port": client.base_url.port}, "stats": {"data_dir": str(tmp_path)}}
        )
        service = Service("console", config, telemetry.get_logger(), asyncio.Event())
        with pytest.raises(StartupError, match=r"console\.port\) on 127\.0\.0\.1 is in use"):
            await main(config, service)
