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

import statistics
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loadtest.bench.harness.command import BenchCommand, Options, say, take_turns
from loadtest.peers import holdmq_services, if_installed, mosquitto, nats_mqtt
from loadtest.processes import raise_file_limit
from loadtest.relay import Delivered, Relay


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
        settings = ("storage.flush=async", f"gateway.workers={workers}")
        services = stack.enter_context(holdmq_services(directory / "holdmq", *settings))
        targets["holdmq"] = services.address
        for target in targets.values():
            Relay(subscribers=1, seconds=1.0).measure(target)  # topics and routes are there
        for kind, relay in relays.items():
            measures = {name: partial(relay.measure, target) for name, target in targets.items()}
            results[kind] = take_turns(rounds, measures)
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


def measure(options: Options, home: Path) -> None:
    """Run the comparison and print its lines."""
    relays: dict[str, Relay] = {}
    if pairs := options.pairs:
        relays["pairs"] = Relay(pairs, pairs, True, options.pair_rate, options.seconds, options.size)
    if options.fan_out:
        rate = options.fan_out_rate
        relays["fan-out"] = Relay(1, options.fan_out, False, rate, options.seconds, options.size)
    say(show(compare(relays, options.rounds, options.workers, home)))


def main() -> int:
    """Run the comparison; exit code 0, or 1 with a sentence when a server cannot be started or fails."""
    return BenchCommand(
        __doc__,
        pairs=(100, "0 = not measured"),
        pair_rate=(20.0, "msg/s of each publisher"),
        fan_out=(1_000, "subscribers; 0 = not measured"),
        fan_out_rate=(100.0, "msg/s"),
        size=(100, "payload bytes"),
        seconds=(4.0, "of publishing in one measurement"),
        rounds=3,
        workers=(0, "gateway.workers; 0 = the default"),
    ).run(measure, qos=1, open_files=raise_file_limit())


if __name__ == "__main__":
    sys.exit(main())
