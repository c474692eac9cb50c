"""How the interpreter is set where a log is kept: its turns among threads, and its looks for garbage."""

from __future__ import annotations

import gc
import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0001
"""How long the event loop waits for a thread that computes, at each of its callbacks. With Python's 5 ms it
stood still for as long as the flusher counted: 10 to 20 ms, twice a second; with 0.5 ms answers beside a cold
read took twice their time at p99, with 0.1 ms 1.7 times, and nothing got slower."""

_YOUNG: Final = 700
_MIDDLE: Final = 10
_NEVER: Final = 1_000_000_000


def prepare_interpreter() -> None:
    """Set the interpreter, once, when what lives as long as the process has been made.

    From then on only young objects are looked at for garbage by themselves; `gc.collect` looks at all.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
