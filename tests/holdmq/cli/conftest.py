from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def holdmq() -> Run:
    """Run the command line in a process of its own, to its end."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "holdmq.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env={**os.environ, "COLUMNS": "200", **environ},
        )

    return run
