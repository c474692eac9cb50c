"""The interpreter as a broker sets it (`broker/runtime.py`), for benchmarks of the engine alone."""

from __future__ import annotations

import gc
import sys


def set_as_broker() -> None:
    """Threads give way after 0.1 ms, and only young objects are looked at for garbage."""
    sys.setswitchinterval(0.0001)
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 1_000_000_000)
