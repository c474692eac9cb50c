"""Many seeds of the simulation: `python -m replica_runs FIRST END [FAULT ...]`, on all cores.

Prints a line for each violation, and how to replay it. Leaves with 1 if there was one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import Pool

from replica_faults import run_world
from replica_history import Violation

Outcome = tuple[int, bool, str, int, int, int]


def _one(job: tuple[int, bool, Sequence[str]]) -> Outcome:
    seed, is_sync, only = job
    try:
        run = run_world(seed, is_sync, only)
    except Violation as violation:
        return seed, is_sync, f"{violation} ({'; '.join(violation.__notes__)})", 0, 0, 0
    history = run.history
    return seed, is_sync, "", history.acks, history.serves, history.forgiven


def _jobs(first: int, end: int, only: Sequence[str]) -> Iterator[tuple[int, bool, Sequence[str]]]:
    for seed in range(first, end):
        yield seed, False, only
        yield seed, True, only


def main(arguments: Sequence[str]) -> int:
    """Run seeds FIRST to END in both modes."""
    first, end, only = int(arguments[0]), int(arguments[1]), arguments[2:]
    began = time.monotonic()
    violations = acks = serves = forgiven = 0
    with Pool(os.cpu_count()) as pool:
        for seed, is_sync, why, of_acks, of_serves, of_forgiven in pool.imap_unordered(
            _one, _jobs(first, end, only), chunksize=8
        ):
            acks, serves, forgiven = acks + of_acks, serves + of_serves, forgiven + of_forgiven
            if why:
                violations += 1
                print(f"seed {seed} {'sync' if is_sync else 'async'}: {why}", flush=True)
    print(
        f"seeds {first} to {end - 1}, both modes: {violations} violations; {acks} acknowledged, "
        f"{serves} times a leader opened, {forgiven} promotions by an operator, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
