"""A table as the statistics job writes it, and the console as it is served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import structlog
from deltalake import write_deltalake
from playwright.async_api import Browser
from processes import free_port
from web_pages import launched

from console.main import main
from holdmq.config.model import Config
from holdmq.service.process import Service

TIMES = {"tps_1s": "second", "tps_1m": "minute", "tps_1h": "hour"}


def schema(time: str) -> pa.Schema:
    """The columns of a table of counts by `time`."""
    return pa.schema(
        [
            (time, pa.timestamp("us", "UTC")),
            ("topic", pa.string()),
            ("messages", pa.int64()),
            ("bytes", pa.int64()),
            ("latency_max_ms", pa.int64()),
            ("batch_id", pa.int64()),
        ]
    )


Append = Callable[..., None]


def append(path: Path, rows: list[tuple[int, str, int, int]], batch_id: int = 0) -> None:
    """Append (second, topic, messages, bytes) as one micro-batch to the table of this name."""
    time = TIMES[path.name]
    table = pa.Table.from_pylist(
        [
            {
                time: datetime.fromtimestamp(second, UTC),
                "topic": topic,
                "messages": messages,
                "bytes": size,
                "latency_max_ms": 1,
                "batch_id": batch_id,
            }
            for second, topic, messages, size in rows
        ],
        schema=schema(time),
    )
    write_deltalake(str(path), table, mode="append")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Where the console looks for the table when stats.data_dir is `tmp_path`."""
    path = tmp_path / "tables" / "tps_1s"
    path.parent.mkdir(parents=True)
    return path


@asynccontextmanager
async def _serve(tmp_path: Path, **console: Any) -> AsyncIterator[httpx.AsyncClient]:
    registry = console.pop("registry", "127.0.0.1:1")
    port = console.pop("port", None) or free_port()
    hosts = console.pop("hosts", [])
    config = Config.model_validate(
        {
            "console": {"port": port, "auth": "none", "data_dir": str(tmp_path / "console"), **console},
            "stats": {"data_dir": str(tmp_path)},
            "client": {"registries": [registry]},
            "security": {"hosts": hosts},
        }
    )
    stopping = asyncio.Event()
    service = Service("console", config, structlog.get_logger(), stopping)
    serving = asyncio.create_task(main(config, service))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            deadline = time.monotonic() + 40
            while not service.readiness()[0] and not serving.done() and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            if serving.done():
                await serving
            yield client
    finally:
        stopping.set()
        await serving


Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Serve the console over `tmp_path` with these keys of its section, a `registry` to ask, and `hosts`."""

    def start(**console: Any) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        return _serve(tmp_path, **console)

    return start


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Chromium, without a window."""
    async with launched() as browser:
        yield browser


@pytest.fixture
def append_rows(table: Path) -> Append:
    """Append rows to tps_1s, or another `name`: (second, topic, messages, bytes)."""

    def write(rows: list[tuple[int, str, int, int]], batch_id: int = 0, name: str = "tps_1s") -> None:
        append(table.with_name(name), rows, batch_id)

    return write


@pytest.fixture
def append_reports(table: Path) -> Callable[[int], None]:
    """Write latency, backlog and talkers of two minutes from a second on."""

    def write(first: int) -> None:
        times = pa.array([first * 1_000_000, (first + 60) * 1_000_000], pa.timestamp("us", "UTC"))

        def counts(*values: int) -> pa.Array:
            return pa.array(values, pa.int64())

        topics, batch = pa.array(["devices", "devices"]), counts(0, 1)
        rows = {
            "latency": {
                "minute": times,
                "topic": topics,
                "le_ms": counts(5, 100),
                "messages": counts(99, 10),
            },
            "backlog": {
                "time": times,
                "group": pa.array(["readers", "readers"]),
                "topic": topics,
                "broker": pa.array(["broker-0", "broker-0"]),
                "lag": counts(7, 9),
                "age_ms": counts(1000, 2000),
            },
            "talkers_1m": {
                "minute": times,
                "topic": topics,
                "client_id": pa.array(["quiet", "loud"]),
                "messages": counts(1, 50),
            },
        }
        for name, columns in rows.items():
            write_deltalake(str(table.with_name(name)), pa.table({**columns, "batch_id": batch}))

    return write
