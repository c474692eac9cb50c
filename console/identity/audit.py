"""What was changed, by whom, when and from where: lines of JSON, the newest file and the one before it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import BaseModel, ValidationError

FILE: Final = "audit.jsonl"
FILE_MAX_BYTES: Final = 8 << 20
"""Some 30,000 changes; then it is put aside, and what was aside is gone."""
BLOCK_BYTES: Final = 1 << 16

log = structlog.get_logger("holdmq.console")


class AuditRow(BaseModel):
    """A change: `account` made it, from `address`; `what` says which, `status` how it was answered."""

    time_ms: int
    account: str
    address: str
    method: str
    path: str
    what: str
    status: int


class AuditLog:
    """Writes rows on a thread of its own; what cannot be written is in the process's log, with the reason."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._before = directory / f"{FILE}.1"
        self._thread = ThreadPoolExecutor(1, "console-audit")

    async def add(self, row: AuditRow) -> None:
        """Write a row; returns when the file has it."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, row)
        except OSError as error:
            log.error(
                "the audit log cannot be written",
                file=str(self._path),
                reason=error.strerror,
                row=row.model_dump(),
            )

    async def page(
        self, text: str, since_ms: int, until_ms: int | None, limit: int, after: int
    ) -> tuple[list[AuditRow], int | None]:
        """Return rows that contain `text`, newest first, passing over `after` of them; and how to go on."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._page, text.lower(), since_ms, until_ms, limit, after
        )

    def release(self) -> None:
        """Let the thread go once what was given is written."""
        self._thread.shutdown()

    def _write(self, row: AuditRow) -> None:
        line = json.dumps(row.model_dump(), separators=(",", ":")).encode() + b"\n"
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, line)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size >= FILE_MAX_BYTES:
            self._path.replace(self._before)

    def _page(
        self, text: str, since_ms: int, until_ms: int | None, limit: int, after: int
    ) -> tuple[list[AuditRow], int | None]:
        found: list[AuditRow] = []
        passed = 0
        for path in (self._path, self._before):
            for line in _lines_backwards(path):
                if text and text not in line.decode(errors="replace").lower():
                    continue
                row = _row(line)
                if row is None or row.time_ms < since_ms or (until_ms is not None and row.time_ms > until_ms):
                    continue
                passed += 1
                if passed <= after:
                    continue
                if len(found) == limit:
                    return found, after + limit
                found.append(row)
        return found, None


def _row(line: bytes) -> AuditRow | None:
    """Return a line's row; None for one that a crash cut."""
    try:
        content: Any = json.loads(line)
        return AuditRow.model_validate(content)
    except (ValueError, ValidationError):
        return None


def _lines_backwards(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        at = file.seek(0, os.SEEK_END)
        rest = b""
        while at > 0:
            size = min(BLOCK_BYTES, at)
            at -= size
            file.seek(at)
            first, *lines = (file.read(size) + rest).split(b"\n")
            rest = first
            yield from (line for line in reversed(lines) if line)
        if rest:
            yield rest
