"""How a process that keeps a log is set: turns, threads, looks for garbage, memory."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import Final

from holdmq.service.memory import keep_memory

SWITCH_INTERVAL_S: Final = 0.0001
"""How long the event loop waits for a thread that computes, at each of its callbacks. With Python's 5 ms it
stood still for as long as the flusher counted: 10 to 20 ms, twice a second; with 0.5 ms answers beside a cold
read took twice their time at p99, with 0.1 ms 1.7 times, and nothing got slower."""

_YOUNG: Final = 700
_MIDDLE: Final = 10
_NEVER: Final = 1_000_000_000


def work_in_batches() -> None:
    """Have new work not push others off their core (SCHED_BATCH); before threads are made, which inherit it.

    What gives a broker work is mostly in the middle of something: a worker between its batch and its answers.
    Where cores are free nothing changes; on two that are full a broker took 10 % more for the same records.
    """
    with suppress(OSError):  # some containers forbid it, and all works without
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def prepare_interpreter() -> None:
    """Set the interpreter, once, when what lives as long as the process has been made.

    From then on only young objects are looked at for garbage by themselves; `gc.collect` looks at all.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
