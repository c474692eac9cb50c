"""A program that stores and says so, killed by SIGKILL at a moment that no slow machine brings too early."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import islice

# A store that was killed may have something to log when it is opened; stdout is for what the program says.
_LOGS_TO_STDERR = """
import structlog, sys
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
"""


def said_until_killed(program: str, arguments: list[str], lines_min: int, seconds: float) -> list[str]:
    """Run a Python program, kill it so long after it said `lines_min` lines, and return all whole lines."""
    child = subprocess.Popen(
        [sys.executable, "-c", _LOGS_TO_STDERR + program, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        first = "".join(islice(child.stdout, lines_min))
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        # Not `communicate`, which does not know what was read ahead: a line would begin in its midst.
        whole = (first + child.stdout.read()).rpartition("\n")[0]
    assert child.wait(60) == -signal.SIGKILL
    return whole.split("\n")
