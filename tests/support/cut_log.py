"""A closed store whose log is cut, as a power loss or a new leader's word may leave it."""

from __future__ import annotations

from pathlib import Path

from holdmq.files.atomic_file import AtomicFile


def record_starts(store: Path) -> list[int]:
    """Where each record of the log's first segment begins, and where the last one ends."""
    found: list[int] = []
    raw = (store / "commitlog" / f"{0:020}").read_bytes()
    position = 0
    while size := int.from_bytes(raw[position : position + 4], "big"):
        found.append(position)
        position += size
    return [*found, position]


def cut_log(store: Path, position: int) -> None:
    """Let the log, of one segment, end there, below any checkpoint; the next start finds out by itself."""
    (store / "clean").unlink(missing_ok=True)
    for name in ("checkpoint.json", "checkpoint.json.bak"):
        (store / name).unlink(missing_ok=True)
    AtomicFile(store / "checkpoint.json").save({"position": 0, "storeMs": 0, "queues": {}}, 1)
    segment = store / "commitlog" / f"{0:020}"
    size = segment.stat().st_size
    with segment.open("r+b") as file:
        file.truncate(position)
        file.truncate(size)
