"""How much memory this process may use, and how much of it is used. Linux; every function blocks briefly."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

FREE_KEPT_BYTES: Final = 32 << 20
"""What is free at a heap's end and stays the process's: two of the largest batches, or many usual ones."""
MAPPED_FROM_BYTES: Final = 16 << 20
"""Blocks from this size on are the kernel's again when they are freed: no frame is larger."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_CGROUP: Final = Path("/sys/fs/cgroup")
_V1: Final = Path("/sys/fs/cgroup/memory")
_STATM: Final = Path("/proc/self/statm")


def memory_limit(configured: int = 0, root: Path = _CGROUP, v1: Path = _V1) -> int:
    """The limit in bytes: the configured one, else the least of the cgroup's and the machine's."""
    if configured > 0:
        return configured
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = (_number(root / "memory.max"), _number(v1 / "memory.limit_in_bytes"))
    return min([machine, *(limit for limit in found if limit > 0)])


def memory_used(statm: Path = _STATM) -> int:
    """The bytes of this process that lie in memory."""
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _number(path: Path) -> int:
    """What a cgroup file says; 0 = it says "max", or is not there."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def give_back_memory() -> None:
    """Give what the allocator keeps free back to the kernel; some milliseconds for a large heap."""
    trim = _trim()
    if trim is not None:
        trim(0)


def keep_memory() -> None:
    """Have the allocator keep what is freed for what is needed next, up to FREE_KEPT_BYTES per heap.

    As it comes, it gives the end of a heap back once that is twice its largest block, and asks for it again
    for the next batch: a quarter of a broker's CPU was page faults.
    """
    set_option: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, FREE_KEPT_BYTES)
        set_option(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


@functools.cache
def _trim() -> Callable[[int], object] | None:
    """glibc's malloc_trim; others have nothing to give back. Looked for once: a library object is a cycle."""
    found: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
