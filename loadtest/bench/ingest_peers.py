"""Ingest of HoldMQ, Mosquitto and NATS in one run: messages acknowledged per second, QoS 1.

    python -m loadtest.bench.ingest_peers [--windows 1 10] [--rounds 3] [--seconds 4]

Mosquitto (with set_tcp_nodelay, its better setting here, and without persistence) and NATS (nats-server with
an mqtt block; left out when it is not installed) against registry, broker and gateway, once with
storage.flush = async, once with sync, and once with the key-value engine over a Valkey that flushes its
append-only file every second. The targets take turns, round by round, so that a drift of the
machine's speed meets all of them; medians and ratios to Mosquitto are printed.
"""

from __future__ import annotations

import json
import statistics
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loadtest.bench.harness.command import BenchCommand, Options, say, show_rates, take_turns
from loadtest.lockstep import Lockstep
from loadtest.peers import holdmq_services, if_installed, key_value_engine, mosquitto, nats_mqtt

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
            own = (f"storage.flush={flush}", f"gateway.workers={workers}")
            targets[f"holdmq {flush}"] = stack.enter_context(holdmq_services(place, *own)).address
        place = directory / "kv"
        place.mkdir()
        settings = (*stack.enter_context(key_value_engine(place)), f"gateway.workers={workers}")
        targets["holdmq kv"] = stack.enter_context(holdmq_services(place, *settings)).address
        for target in targets.values():
            # Topics are created, routes found, caches filled.
            Lockstep(plan.connections, 1, plan.payload_bytes, WARM_S).measure(target)
        for window in windows:
            step = Lockstep(plan.connections, window, plan.payload_bytes, plan.seconds)
            measures = {name: partial(step.measure, target) for name, target in targets.items()}
            results[window] = take_turns(rounds, measures)
    return results


def show(results: dict[int, dict[str, list[float]]]) -> str:
    """Return the results as lines: median, least, most, ratio to the first target of the window."""
    lines = []
    for window, rates in results.items():
        first = statistics.median(next(iter(rates.values())))
        for name, found in rates.items():
            ratio = statistics.median(found) / first
            lines.append(f"window {window:>3}  {name:14} median {show_rates(found)}  x{ratio:.2f}")
    return "\n".join(lines)


def measure(options: Options, home: Path) -> None:
    """Run the comparison and print its lines."""
    plan = Lockstep(options.connections, 1, options.size, options.seconds)
    results = compare(options.windows, options.rounds, plan, options.workers, home)
    say(json.dumps(results) if options.json else show(results))


def main() -> int:
    """Run the comparison; exit code 0, or 1 with a sentence when a server cannot be started or fails."""
    return BenchCommand(
        __doc__,
        connections=200,
        windows=([1, 10], "messages in flight"),
        size=(100, "payload bytes"),
        seconds=(4.0, "of one measurement"),
        rounds=3,
        workers=(0, "gateway.workers; 0 = the default"),
        json=(False, "print the rates of every round as JSON"),
    ).run(measure, qos=1)


if __name__ == "__main__":
    sys.exit(main())
