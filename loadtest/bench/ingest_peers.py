"""Ingest of HoldMQ, Mosquitto and NATS in one run: messages acknowledged per second, QoS 1.

    python -m loadtest.bench.ingest_peers [--windows 1 10] [--rounds 3] [--seconds 4]

Mosquitto (with set_tcp_nodelay, its better setting here, and without persistence) and NATS (nats-server with
an mqtt block; left out when it is not installed) against registry, broker and gateway, once with
storage.flush = async and once with sync. The targets take turns, round by round, so that a drift of the
machine's speed meets all of them; medians and ratios to Mosquitto are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from holdmq.errors import HoldMQError
from loadtest.lockstep import Lockstep
from loadtest.peers import holdmq_stack, if_installed, mosquitto, nats_mqtt

PAUSE_S = 0.5
"""Between two measurements: what the last one left behind is written by then."""

WARM_S = 1.0


def compare(
    windows: list[int], rounds: int, plan: Lockstep, workers: int, directory: Path
) -> dict[int, dict[str, list[float]]]:
    """Return, by window and target, the rates of every round."""
    results: dict[int, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        targets: dict[str, str] = {}
        (directory / "mosquitto").mkdir()
        targets["mosquitto"] = stack.enter_context(mosquitto(directory / "mosquitto"))
        targets |= if_installed(stack, "nats", nats_mqtt, directory)
        for flush in ("async", "sync"):
            place = directory / flush
            place.mkdir()
            targets[f"holdmq {flush}"] = stack.enter_context(
                holdmq_stack(place, flush=flush, workers=workers)
            )
        for target in targets.values():
            # Topics are created, routes found, caches filled.
            Lockstep(plan.connections, 1, plan.payload_bytes, WARM_S).measure(target)
        for window in windows:
            rates = results[window] = {name: [] for name in targets}
            step = Lockstep(plan.connections, window, plan.payload_bytes, plan.seconds)
            for _ in range(rounds):
                for name, target in targets.items():
                    rates[name].append(step.measure(target))
                    time.sleep(PAUSE_S)
    return results


def show(results: dict[int, dict[str, list[float]]]) -> str:
    """Return the results as lines: median, least, most, ratio to the first target of the window."""
    lines = []
    for window, rates in results.items():
        first = statistics.median(next(iter(rates.values())))
        for name, found in rates.items():
            median = statistics.median(found)
            lines.append(
                f"window {window:>3}  {name:14} median {median:>10,.0f} msg/s"
                f"  (min {min(found):,.0f} max {max(found):,.0f})  x{median / first:.2f}"
            )
    return "\n".join(lines)


def main() -> int:
    """Run the comparison; exit code 0, or 1 with a sentence when a server cannot be started or fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 10], help="messages in flight")
    parser.add_argument("--size", type=int, default=100, help="payload bytes")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="gateway.workers; 0 = the default")
    parser.add_argument("--json", action="store_true", help="print the rates of every round as JSON")
    a = parser.parse_args()
    plan = Lockstep(a.connections, 1, a.size, a.seconds)
    shown = {**vars(a), "qos": 1, "cores": os.cpu_count()}
    sys.stdout.write("parameters: " + " ".join(f"{k}={v}" for k, v in shown.items()) + "\n")
    try:
        with tempfile.TemporaryDirectory(prefix="holdmq-ingest-") as directory:
            results = compare(a.windows, a.rounds, plan, a.workers, Path(directory))
    except HoldMQError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write((json.dumps(results) if a.json else show(results)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
