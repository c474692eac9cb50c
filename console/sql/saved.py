"""Queries that analysts saved under a name, in a small file, and a few that are always there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import Gauge

from console.live.answers import second_text
from console.sql.questions import TEXT_MAX
from holdmq.errors import UsageError
from holdmq.files.atomic_file import AtomicFile
from holdmq.service import telemetry

FILE: Final = "queries.json"

NAME_MAX: Final = 80
"""Characters of a name: a line on the page."""

SAVED: Final = Gauge("holdmq_console_saved_queries", "Queries that are saved.", registry=telemetry.METRICS)

READY_MADE: Final = {
    "Messages per topic, last hour": """SELECT topic, sum(messages) AS messages, sum(bytes) AS bytes
FROM tps_1s
WHERE second >= now() - INTERVAL 1 HOUR
GROUP BY topic
ORDER BY messages DESC""",
    "Busiest seconds of today": """SELECT second, sum(messages) AS messages, sum(bytes) AS bytes
FROM tps_1s
WHERE second >= date_trunc('day', now())
GROUP BY second
ORDER BY messages DESC
LIMIT 20""",
    "Average and peak rate per topic, last hour": """WITH per_second AS (
  SELECT second, topic, sum(messages) AS messages
  FROM tps_1s
  WHERE second >= now() - INTERVAL 1 HOUR
  GROUP BY second, topic
)
SELECT topic, round(sum(messages) / 3600, 2) AS per_second, max(messages) AS peak
FROM per_second
GROUP BY topic
ORDER BY per_second DESC""",
    "Slowest minutes, last hour": """SELECT
  date_trunc('minute', second) AS minute, topic, max(latency_max_ms) AS latency_max_ms
FROM tps_1s
WHERE second >= now() - INTERVAL 1 HOUR
GROUP BY minute, topic
ORDER BY latency_max_ms DESC
LIMIT 20""",
    "Messages per topic and day, last 30 days": """SELECT
  date_trunc('day', hour) AS day, topic, sum(messages) AS messages, sum(bytes) AS bytes
FROM tps_1h
WHERE hour >= now() - INTERVAL 30 DAYS
GROUP BY day, topic
ORDER BY day DESC, messages DESC""",
    "Latency percentiles per topic, last hour": """WITH histogram AS (
  SELECT topic, le_ms, sum(messages) AS messages
  FROM latency
  WHERE minute >= now() - INTERVAL 1 HOUR
  GROUP BY topic, le_ms
), cumulated AS (
  SELECT topic, le_ms,
    sum(messages) OVER (PARTITION BY topic ORDER BY le_ms) AS up_to,
    sum(messages) OVER (PARTITION BY topic) AS whole
  FROM histogram
)
SELECT topic,
  min(le_ms) FILTER (up_to >= 0.5 * whole) AS p50_ms,
  min(le_ms) FILTER (up_to >= 0.95 * whole) AS p95_ms,
  min(le_ms) FILTER (up_to >= 0.99 * whole) AS p99_ms
FROM cumulated
GROUP BY topic
ORDER BY topic""",
    "Largest backlog per group, last hour": """WITH samples AS (
  SELECT time, "group", sum(lag) AS lag, max(age_ms) AS age_ms
  FROM backlog
  WHERE time >= now() - INTERVAL 1 HOUR
  GROUP BY time, "group"
)
SELECT "group", max(lag) AS lag, max(age_ms) AS age_ms
FROM samples
GROUP BY "group"
ORDER BY lag DESC""",
    "Tables and their columns": """SELECT table_name, column_name, data_type
FROM information_schema.columns
ORDER BY table_name, ordinal_position""",
}
"""By name; they can neither be changed nor deleted."""


class SavedQuery(NamedTuple):
    """A statement and when it was saved, in seconds since the epoch."""

    sql: str
    saved: int


class QueriesFullError(Exception):
    """As many queries are saved as may be."""


class SavedQueries:
    """The queries of one directory, at most `most` of them. The file is read when it is first asked for.

    All calls may raise StorageError: the file is damaged beyond its backup, or the disk refuses it. What is
    on the disk is never replaced unread.
    """

    def __init__(self, directory: Path, most: int) -> None:
        self._file = AtomicFile(directory / FILE)
        self._most = most
        self._turn = asyncio.Lock()
        self._queries: dict[str, SavedQuery] | None = None
        self._version = 0

    async def listing(self) -> dict[str, Any]:
        """Return ``{"queries": [{"name", "sql", "saved", "ready_made"}]}``, saved ones first, by name."""
        async with self._turn:
            saved = dict(await self._loaded())
        rows = [
            {"name": name, "sql": query.sql, "saved": second_text(query.saved), "ready_made": False}
            for name, query in sorted(saved.items(), key=lambda item: item[0].lower())
        ]
        ready = [
            {"name": name, "sql": sql, "saved": None, "ready_made": True} for name, sql in READY_MADE.items()
        ]
        return {"queries": rows + ready}

    async def save(self, name: str, sql: str) -> None:
        """Save under this name, durably; what it had before is replaced.

        Raises UsageError for a name or statement that cannot be, QueriesFullError.
        """
        if not name.strip() or len(name) > NAME_MAX or not name.isprintable():
            raise UsageError(f"a query's name has 1 to {NAME_MAX} printable characters, not {name[:100]!r}")
        if name in READY_MADE:
            raise UsageError(f"{name!r} is one of the ready-made queries; take another name")
        if not sql.strip() or len(sql) > TEXT_MAX:
            raise UsageError(f"a query has 1 to {TEXT_MAX:,} characters")
        async with self._turn:
            queries = dict(await self._loaded())
            if name not in queries and len(queries) >= self._most:
                raise QueriesFullError(
                    f"{self._most} queries are saved (console.saved_queries_max); delete one first"
                )
            queries[name] = SavedQuery(sql, int(time.time()))
            await self._write(queries)

    async def delete(self, name: str) -> bool:
        """Delete the query of this name, durably; False: there is none. Ready-made ones raise UsageError."""
        if name in READY_MADE:
            raise UsageError(f"{name!r} is one of the ready-made queries: they stay")
        async with self._turn:
            queries = dict(await self._loaded())
            if queries.pop(name, None) is None:
                return False
            await self._write(queries)
            return True

    async def _loaded(self) -> dict[str, SavedQuery]:
        if self._queries is None:
            # The backup is older by one change, which is better than nothing to choose from.
            found = await asyncio.to_thread(self._file.load, True)
            content = found.content.get("queries", {}) if found else {}
            self._version = found.data_version if found else 0
            self._queries = {name: SavedQuery(row["sql"], row["saved"]) for name, row in content.items()}
            SAVED.set(len(self._queries))
        return self._queries

    async def _write(self, queries: dict[str, SavedQuery]) -> None:
        content = {"queries": {name: query._asdict() for name, query in queries.items()}}
        # Not ended half-way when who asked leaves: the file and what is in memory would differ.
        writing = asyncio.ensure_future(asyncio.to_thread(self._file.save, content, self._version + 1))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise
        finally:
            if writing.done() and not writing.cancelled() and writing.exception() is None:
                self._version += 1
                self._queries = queries
                SAVED.set(len(queries))
