"""What every test stands on: no configuration leaks in, and what takes longest begins first."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

import pytest

LONGEST_FIRST: Final = (
    "integration/test_stats.py",
    "integration/test_security.py",
    "integration/test_groups.py",
    "integration/test_retry.py",
    "integration/test_sdk.py",
    "broker/test_offsets_processes.py",
    "integration/test_guides_of_services.py",
    "storage/log/test_power_loss.py",
    "storage/log/test_crashes.py",
    "integration/test_tables.py",
    "integration/test_guides.py",
    "integration/test_gateway.py",
    "broker/test_shared_machine.py",
    "faults/test_broker_killed.py",
    "packaging/test_distribution.py",
    "faults",
    "integration",
    "holdmq/cli",
    "storage",
)
"""Modules and directories below this one, as `--dist loadfile` hands them out; then come the others.

Only an order: short modules at the end fill what the long ones leave of the processes' time.
"""

_M_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD_BYTES: Final = 256 << 10


def pytest_configure() -> None:
    # Each broker in this process reserves tables of some MiB that it hardly touches. Once one has given its
    # own back, glibc serves the next from its heap and clears all of it: 40 ms of CPU for each of hundreds.
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(root).as_posix()
        return next(
            (i for i, first in enumerate(LONGEST_FIRST) if name == first or name.startswith(f"{first}/")),
            len(LONGEST_FIRST),
        )

    items.sort(key=place)


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("HOLDMQ_")]:
        monkeypatch.delenv(variable)
