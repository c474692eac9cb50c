"""The audit log: newest first, in parts, over both files, and past a line that a crash cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.identity import audit
from console.identity.audit import AuditLog, AuditRow


def row(number: int) -> AuditRow:
    return AuditRow(
        time_ms=number,
        account="ann",
        address="::1",
        method="POST",
        path=f"/{number}",
        what="done",
        status=200,
    )


async def test_changes_are_listed_newest_first_over_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "FILE_MAX_BYTES", 500)
    log = AuditLog(tmp_path)
    for number in range(8):
        await log.add(row(number))
    with (tmp_path / audit.FILE).open("ab") as file:
        file.write(b'{"time_ms": 1')
    assert (tmp_path / f"{audit.FILE}.1").exists()
    first, following = await log.page("", 0, None, 3, 0)
    assert [one.time_ms for one in first] == [7, 6, 5]
    assert following == 3
    rest, last = await log.page("", 0, None, 100, 3)
    assert [one.time_ms for one in rest] == list(range(4, rest[-1].time_ms - 1, -1))
    assert last is None
    found, _ = await log.page("/6", 0, None, 100, 0)
    assert [one.time_ms for one in found] == [6]
    between, _ = await log.page("", 6, 6, 100, 0)
    assert [one.time_ms for one in between] == [6]
    log.release()
