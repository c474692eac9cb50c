"""What every broker of a cluster is to have: rows of several tables, and marks of those that were deleted.

Answers SPREAD_DIGEST and SPREAD_PAGE of the other brokers (`broker.joining.spreading` asks them).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from broker.joining.core.comparing import MARKS
from broker.joining.core.marks import Mark, RowKey, RowMarks, digest_of
from broker.kernel.request_family import RequestFamily
from broker.kernel.spread_table import SpreadTable
from broker.state.state_file import StateFile
from holdmq.errors import Code, HoldMQError, StoreFormatError, WireError
from holdmq.rpc.connection import Request
from holdmq.rpc.server import OnRequest
from holdmq.wire.codes import RequestCode
from holdmq.wire.joining_headers import (
    PAGE_ROWS,
    SpreadDigestResponse,
    SpreadPageRequest,
    SpreadPageResponse,
    SpreadRow,
)

log = structlog.get_logger("holdmq.broker")


class _Sorted:
    """The names of a table as they were at one version, in order."""

    def __init__(self, table: SpreadTable, is_deleted: Callable[[str], bool], name: str) -> None:
        self.names = sorted(one for one in table.names() if not is_deleted(one))
        self.digest = digest_of(name, self.names)


class SpreadBook(RequestFamily):
    """The tables of one broker by name, and their marks, which `file` has."""

    def __init__(
        self, tables: Mapping[str, SpreadTable], file: StateFile, clock_ms: Callable[[], int]
    ) -> None:
        self.tables: Final = dict(tables)
        self.marks = RowMarks()
        self._file = file
        self._clock_ms = clock_ms
        self._sorted: dict[str, tuple[tuple[int, int], _Sorted]] = {}
        self._written = 0
        self._is_closed = False

    def routes(self) -> Mapping[RequestCode, OnRequest]:
        return {RequestCode.SPREAD_DIGEST: self._digest, RequestCode.SPREAD_PAGE: self._page}

    def numbers(self) -> Mapping[str, int]:
        return {"spread_marks": len(self.marks)}

    # Life

    def load(self, accept_backup: bool) -> None:
        """Read the marks (blocking). StorageError if their file is damaged."""
        loaded = self._file.load(accept_backup)
        if loaded is None:
            return
        try:
            self.marks.load(loaded.content)
        except (TypeError, ValueError) as error:
            raise StoreFormatError(
                str(error),
                operation="read",
                path=str(self._file.path),
                hint="restore the file, or start once with its .bak (--accept-backup)",
            ) from error
        self._written = self.marks.version

    def close(self) -> None:
        """Finish the write under way (blocking)."""
        self._is_closed = True
        self._file.close()

    # What happens here

    def row_changed(self, table: str, name: str, is_there: bool) -> None:
        """A row was made here, or deleted, whoever wanted it."""
        key = RowKey(table, name)
        note = self.marks.note_made if is_there else self.marks.note_deleted
        note(key, self._clock_ms())
        self._save()

    def learn(self, rows: Collection[SpreadRow]) -> None:
        """Take marks of another broker."""
        now_ms = self._clock_ms()
        for row in rows:
            table, _, name = row.name.partition(":")
            at_ms, is_deleted = row.settings.get("at_ms"), row.settings.get("is_deleted")
            if table in self.tables and name and type(at_ms) is int and isinstance(is_deleted, bool):
                self.marks.learn(RowKey(table, name), Mark(at_ms, is_deleted), now_ms)
        self._save()

    def expire(self) -> None:
        """Forget marks that are too old."""
        self.marks.expire(self._clock_ms())
        self._save()

    def deleted_elsewhere(self) -> list[RowKey]:
        """Rows that are here, and that were deleted while this broker did not hear of it."""
        known = [key for key in self.marks.deleted() if key.table in self.tables]
        return [key for key in known if self.tables[key.table].has(key.name)]

    def digests(self) -> dict[str, int]:
        """What each table is now."""
        found = {name: self._names(name).digest for name in self.tables}
        return {**found, MARKS: self.marks.digest}

    def _names(self, name: str) -> _Sorted:
        table = self.tables[name]
        version = table.version, self.marks.version
        known = self._sorted.get(name)
        if known is None or known[0] != version:

            def is_deleted(one: str) -> bool:
                return self.marks.is_deleted(RowKey(name, one))

            known = self._sorted[name] = version, _Sorted(table, is_deleted, name)
        return known[1]

    def _save(self) -> None:
        """Write what is not written yet, once the write under way is over."""
        if self._written == self.marks.version or self._file.is_saving or self._is_closed:
            return
        version = self.marks.version

        def saved(error: HoldMQError | None) -> None:
            if error is not None:
                # The next mark, or the next turn, tries again.
                log.error("what was deleted is not written down", reason=str(error))
                return
            self._written = version
            self._save()

        self._file.save(self.marks.content(), self._file.data_version + 1, saved)

    # Requests

    def _digest(self, request: Request) -> None:
        request.reply(SpreadDigestResponse(self.digests()))

    def _page(self, request: Request) -> None:
        header = request.header(SpreadPageRequest)
        count = max(1, min(header.max_count, PAGE_ROWS))
        if header.table == MARKS:
            request.reply(self._page_of_marks(header.after, count))
            return
        table = self.tables.get(header.table)
        if table is None:
            raise WireError(f"table: one of {', '.join((*self.tables, MARKS))}", Code.MISSING_FIELD)
        names = self._names(header.table).names
        at = bisect_right(names, header.after) if header.after else 0
        shown = names[at : at + count]
        found = [
            SpreadRow(name, settings) for name in shown if (settings := table.settings_of(name)) is not None
        ]
        request.reply(SpreadPageResponse(found, shown[-1] if at + count < len(names) else None))

    def _page_of_marks(self, after: str, count: int) -> SpreadPageResponse:
        table, _, name = after.partition(":")
        found, last = self.marks.page(RowKey(table, name) if after else None, count)
        shown = [
            SpreadRow(f"{key.table}:{key.name}", {"at_ms": mark.at_ms, "is_deleted": mark.is_deleted})
            for key, mark in found
        ]
        return SpreadPageResponse(shown, None if last is None else f"{last.table}:{last.name}")
