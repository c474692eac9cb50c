"""What a process uses, as the kernel counts it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of CPU, user and system, that a process has used, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def cpu_of_tree_s(pid: int) -> float:
    """Seconds of CPU of a process and of all that it began, and of the ended ones that were waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = sum(map(int, fields[11:15])) / _TICKS_PER_S
    for child in children_of(pid):
        # What has ended meanwhile is its parent's at the next look.
        with suppress(FileNotFoundError, ProcessLookupError):
            used += cpu_of_tree_s(child)
    return used


class TreeCpu:
    """CPU of a process and of all below it, also of those whose parent does not keep what they used.

    Spark's Python workers are such: what an ended one used is what it had used at the last look.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[tuple[int, int], float] = {}

    def look(self) -> float:
        """Seconds of CPU until now. Look again before what begins meanwhile can have ended."""
        for pid in tree_of(self._pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                # A pid is used again; with the time of its begin it is one process.
                self._seen[pid, int(fields[19])] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        return sum(self._seen.values())


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM, in bytes; 0 when it has ended."""
    return _rollup_bytes(pid, "Rss:")


def proportional_bytes(pid: int) -> int:
    """As `resident_bytes`, but of pages that it shares with others its share alone."""
    return _rollup_bytes(pid, "Pss:")


def _rollup_bytes(pid: int, name: str) -> int:
    # A process that has ended has no memory; the kernel says so in two ways.
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def waited_s(pid: int) -> float:
    """How long a process's main thread was ready to run while others had the cores."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def children_of(pid: int) -> list[int]:
    """The processes that a process has begun."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile; its children are its process's other threads' then.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def tree_of(pid: int) -> list[int]:
    """A process and all that it, or one of those, has begun."""
    found = [pid]
    for child in children_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += tree_of(child)
    return found
