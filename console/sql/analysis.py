"""The analysts' side: their statements, the past by ranges, saved queries. None of it blocks the event loop.

Statements of analysts and what the page asks for go to two query processes: a long statement does not keep
others from looking at the past.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from console.sql.box import QueryBox
from console.sql.questions import SqlQuestion, SqlReply
from console.sql.saved import SavedQueries
from holdmq.config.analytics import ConsoleSection, StatsSection

LINES_MAX: Final = 1000
"""Topics of a range as CSV, the busiest; the others are one line together."""

TOP_DEFAULT: Final = 8
"""Topics of a range that is drawn: as many as there are colours."""


class Analysis:
    """Both query processes over the tables below `tables_dir`, and the saved queries. End with `close`."""

    def __init__(
        self,
        tables_dir: Path,
        section: ConsoleSection,
        stats: StatsSection,
    ) -> None:
        self._section = section
        self._retention_s = {
            "tps_1s": stats.tps_1s_retention_s,
            "tps_1m": stats.tps_1m_retention_s,
            "tps_1h": stats.tps_1h_retention_s,
        }
        memory, waiting = section.sql_memory_bytes, section.sql_waiting_max
        self._statements = QueryBox("sql", tables_dir, memory, waiting)
        self._page = QueryBox("page", tables_dir, memory, waiting)
        self.saved = SavedQueries(Path(section.data_dir), section.saved_queries_max)

    def reconfigure(self, section: ConsoleSection) -> None:
        """Take other bounds of a query's time and result; memory and line are those of the start."""
        self._section = section

    def now(self) -> int:
        """Return the second that it is."""
        return int(time.time())

    def get_ready(self) -> None:
        """Have the process for the page start, if there is none. Returns at once."""
        self._page.get_ready()

    async def select(self, statement: str, form: str) -> SqlReply:
        """Run an analyst's statement; `form` is json or csv. Raises BoxFullError."""
        return await self._statements.ask(self._question("sql", {"sql": statement}, form))

    async def history(self, first: int, until: int, top: int, form: str) -> SqlReply:
        """Return the counts between two seconds since 1970, `top` topics by name. Raises BoxFullError."""
        kept_from = {name: self.now() - age for name, age in self._retention_s.items()}
        arguments = {"first": first, "until": until, "top": top, "kept_from": kept_from}
        return await self._page.ask(self._question("history", arguments, form))

    async def report(self, kind: str, first: int, until: int, form: str) -> SqlReply:
        """Return latency, backlog or talkers between two seconds since the epoch. Raises BoxFullError."""
        return await self._page.ask(self._question(kind, {"first": first, "until": until}, form))

    def _question(self, kind: str, arguments: dict[str, Any], form: str) -> SqlQuestion:
        section = self._section
        return SqlQuestion(
            kind, arguments, form, section.sql_seconds_max, section.sql_rows_max, section.sql_result_max_bytes
        )

    async def close(self) -> None:
        """End both processes, as `QueryBox.close` does: whoever still asks is to be cancelled before."""
        await asyncio.gather(self._statements.close(), self._page.close())
