"""Delivery of HoldMQ, Mosquitto and NATS in one run: publisher to subscriber, QoS 1.

    python -m loadtest.bench.deliver_peers [--rounds 3] [--seconds 4] [--pairs 100] [--fan-out 1000]

- pairs: so many publishers with `--pair-rate` messages a second each, a subscriber for each: latency.
- fan-out: one publisher, so many subscribers that take all: deliveries per second, of more than is managed.

Mosquitto has set_tcp_nodelay and no persistence, NATS (nats-server with an mqtt block) keeps sessions and
messages in files, HoldMQ writes each message to its log (storage.flush = async). The servers take turns,
round by round, so that a drift of the machine's speed meets all of them. One that is not installed is left
out, and that is said.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from holdmq.errors import HoldMQError
from loadtest.peers import holdmq_stack, if_installed, mosquitto, nats_mqtt
from loadtest.processes import raise_file_limit
from loadtest.relay import Delivered, Relay

PAUSE_S = 0.5
"""Between two measurements: what the last one left behind is written by then."""


def compare(
    relays: dict[str, Relay], rounds: int, workers: int, directory: Path
) -> dict[str, dict[str, list[Delivered]]]:
    """Return, by kind of work and server, what was delivered in every round."""
    results: dict[str, dict[str, list[Delivered]]] = {}
    with ExitStack() as stack:
        targets: dict[str, str] = {}
        targets |= if_installed(stack, "mosquitto", mosquitto, directory)
        targets |= if_installed(stack, "nats", nats_mqtt, directory)
        (directory / "holdmq").mkdir()
        targets["holdmq"] = stack.enter_context(
            holdmq_stack(directory / "holdmq", flush="async", workers=workers)
        )
        for target in targets.values():
            Relay(subscribers=1, seconds=1.0).measure(target)  # topics and routes are there
        for kind, relay in relays.items():
            found = results[kind] = {name: [] for name in targets}
            for _ in range(rounds):
                for name, target in targets.items():
                    found[name].append(relay.measure(target))
                    time.sleep(PAUSE_S)
    return results


def show(results: dict[str, dict[str, list[Delivered]]]) -> str:
    """Return the results as lines: medians of the rounds, and the rate's ratio to the first server."""
    lines = []
    for kind, by_server in results.items():
        first = 0.0
        for name, rounds in by_server.items():
            rate = statistics.median(each.came / each.seconds for each in rounds)
            first = first or rate
            missing = sum(each.expected - each.came for each in rounds)
            lines.append(
                f"{kind:8} {name:10} {rate:>10,.0f}/s x{rate / first:.2f}"
                f"  p50 {statistics.median(each.p50_ms for each in rounds):7.2f}"
                f"  p99 {statistics.median(each.p99_ms for each in rounds):7.2f}"
                f"  max {max(each.max_ms for each in rounds):7.2f} ms"
                + (f"  {missing:,} did not come" if missing else "")
            )
    return "\n".join(lines)


def main() -> int:
    """Run the comparison; exit code 0, or 1 with a sentence when a server cannot be started or fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=100, help="0 = not measured")
    parser.add_argument("--pair-rate", type=float, default=20.0, help="msg/s of each publisher")
    parser.add_argument("--fan-out", type=int, default=1_000, help="subscribers; 0 = not measured")
    parser.add_argument("--fan-out-rate", type=float, default=100.0, help="msg/s")
    parser.add_argument("--size", type=int, default=100, help="payload bytes")
    parser.add_argument("--seconds", type=float, default=4.0, help="of publishing in one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="gateway.workers; 0 = the default")
    a = parser.parse_args()
    shown = {**vars(a), "qos": 1, "cores": os.cpu_count(), "open_files": raise_file_limit()}
    sys.stdout.write("parameters: " + " ".join(f"{k}={v}" for k, v in shown.items()) + "\n")
    relays: dict[str, Relay] = {}
    if a.pairs:
        relays["pairs"] = Relay(a.pairs, a.pairs, True, a.pair_rate, a.seconds, a.size)
    if a.fan_out:
        relays["fan-out"] = Relay(1, a.fan_out, False, a.fan_out_rate, a.seconds, a.size)
    try:
        with tempfile.TemporaryDirectory(prefix="holdmq-deliver-") as directory:
            results = compare(relays, a.rounds, a.workers, Path(directory))
    except HoldMQError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(show(results) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
