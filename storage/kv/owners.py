"""Names of processes that own shards, by which another process of the same machine sees whether one lives."""

from __future__ import annotations

import os
import secrets
from functools import cache
from pathlib import Path


@cache
def this_process() -> str:
    """Names this process, so that another one on this machine can see whether it still lives."""
    return f"{_boot_id()}/{os.getpid()}/{_start_ticks(os.getpid())}/{secrets.token_hex(4)}"


def is_dead_here(owner: str) -> bool:
    """Whether an owner was a process of this machine and boot that is gone."""
    boot_id, _, rest = owner.partition("/")
    pid, _, rest = rest.partition("/")
    if boot_id != _boot_id() or not pid.isdigit():
        return False
    return _start_ticks(int(pid)) != rest.partition("/")[0]


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + _namespace()


def _namespace() -> str:
    """Process ids mean something only within one namespace: in containers of one machine they are not
    alike.
    """
    return os.readlink("/proc/self/ns/pid").partition(":")[2]


def _start_ticks(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    except OSError:
        return "gone"
