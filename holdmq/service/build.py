"""Which build of HoldMQ runs: its hot modules compiled to C, or everything from sources."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

COMPILED: Final = "compiled"
SOURCES: Final = "sources"
_HOT: Final = "holdmq.record.codec"
"""One of the modules that are compiled; all of them are, or none."""


def running_build() -> str:
    """`COMPILED` or `SOURCES`, as this process imports HoldMQ's modules."""
    found = find_spec(_HOT)
    assert found is not None
    return COMPILED if (found.origin or "").endswith(tuple(EXTENSION_SUFFIXES)) else SOURCES
