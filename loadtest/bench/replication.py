"""What copies cost: ingest of one copy and of several on this machine, in one run, with the CPU per message.

    python -m loadtest.bench.replication [--windows 10] [--rounds 3] [--seconds 4] [--replicas 3]

A registry, a gateway and one broker with one copy against the same with `--replicas` copies and an etcd of
one member (`min_in_sync` 2), under storage.flush = async and sync. All of them share this machine's cores, so
that copies take from the leader what they need themselves; the targets take turns, round by round. Printed
are the rate, its ratio to one copy, and microseconds of CPU for each message, of broker or all replicas, and
of everything that runs.
"""

from __future__ import annotations

import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from loadtest.bench.harness.command import BenchCommand, Options, say
from loadtest.lockstep import Lockstep
from loadtest.peers import holdmq_replicas, holdmq_services
from loadtest.usage import cpu_of_tree_s

WARM_S = 1.0


class CostTarget(NamedTuple):
    """An installation: where it listens, the processes of its broker, and those of everything."""

    address: str
    brokers: tuple[int, ...]
    everything: tuple[int, ...]


class CostRound(NamedTuple):
    """One measurement: messages per second, and microseconds of CPU for each."""

    rate: float
    broker_us: float
    all_us: float


def run_round(target: CostTarget, step: Lockstep) -> CostRound:
    """Measure a target once."""
    brokers, everything = _used(target.brokers), _used(target.everything)
    rate = step.measure(target.address)
    messages = max(1.0, rate * step.seconds)
    broker_us = (_used(target.brokers) - brokers) / messages * 1e6
    return CostRound(rate, broker_us, (_used(target.everything) - everything) / messages * 1e6)


def _used(pids: tuple[int, ...]) -> float:
    return sum(map(cpu_of_tree_s, pids))


def measure(options: Options, home: Path) -> None:
    """Run the comparison and print its lines."""
    found: dict[str, list[CostRound]] = {}
    with ExitStack() as stack:
        targets: dict[str, CostTarget] = {}
        for flush in ("async", "sync"):
            settings = (f"storage.flush={flush}", "gateway.workers=1")
            place = home / f"one-{flush}"
            place.mkdir()
            one = stack.enter_context(holdmq_services(place, *settings))
            pids = (one.broker_pid, one.gateway_pid)
            targets[f"1 copy, {flush}"] = CostTarget(one.address, (one.broker_pid,), pids)
            place = home / f"many-{flush}"
            place.mkdir()
            many = stack.enter_context(holdmq_replicas(place, options.replicas, *settings))
            targets[f"{options.replicas} copies, {flush}"] = CostTarget(
                many.address, many.replica_pids, (*many.replica_pids, many.gateway_pid)
            )
        for target in targets.values():
            Lockstep(options.connections, 1, options.size, WARM_S).measure(target.address)
        for window in options.windows:
            step = Lockstep(options.connections, window, options.size, options.seconds)
            for _ in range(options.rounds):
                for name, target in targets.items():
                    found.setdefault(f"window {window:>3}  {name}", []).append(run_round(target, step))
    say(json.dumps(found) if options.json else show(found))


def show(found: dict[str, list[CostRound]]) -> str:
    """Return a line for each target: medians, and the ratio to one copy of the same flush."""
    lines, single = [], 1.0
    for name, rounds in found.items():
        rate = statistics.median(each.rate for each in rounds)
        if "1 copy" in name:
            single = rate
        lines.append(
            f"{name:32} {rate:>9,.0f}/s  x{rate / single:.2f}  CPU per message "
            f"{statistics.median(each.broker_us for each in rounds):5.1f} us of brokers, "
            f"{statistics.median(each.all_us for each in rounds):5.1f} us of all"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the comparison; exit code 0, or 1 with a sentence when a server cannot be started or fails."""
    return BenchCommand(
        __doc__,
        connections=200,
        windows=([10], "messages in flight"),
        size=(100, "payload bytes"),
        seconds=(4.0, "of one measurement"),
        rounds=3,
        replicas=(3, "copies of the broker"),
        json=(False, "print every round as JSON"),
    ).run(measure, qos=1)


if __name__ == "__main__":
    sys.exit(main())
