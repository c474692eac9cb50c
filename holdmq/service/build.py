"""Which build of HoldMQ runs: its hot modules compiled to C, or everything from sources."""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
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


def begin_compiled(root: Path) -> str:
    """Begin this process again with the modules that were compiled of the sources in `root`, a checkout.

    Does not return then. Returns why not: nothing is compiled there, or a source is newer than what is.
    """
    compiled = root / "build" / "compiled"
    if "PYTHONSAFEPATH" in os.environ or not compiled.is_dir():
        return "nothing is compiled"
    changed = os.stat(compiled).st_mtime
    for folder in compiled.iterdir():
        for file in (root / folder.name).rglob("*.py"):
            if file.stat().st_mtime > changed:
                return f"{file.relative_to(root)} is newer than what was compiled"
    # Plug-ins that are found by PYTHONPATH are found still.
    path = os.pathsep.join(filter(None, (str(compiled), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
    return os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606
