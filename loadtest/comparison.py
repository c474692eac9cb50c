"""The same work at several MQTT servers, in turns, and how each does beside the first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from loadtest.bench.harness.command import take_turns
from loadtest.plan import PublishPlan
from loadtest.processes import run as run_plan
from loadtest.relay import Relay


class RoundFigures(NamedTuple):
    """One server's round: messages per second, latencies in ms, and how many messages went wrong."""

    rate: float
    p50_ms: float
    p99_ms: float
    failed: int


def publishing(plan: PublishPlan) -> RoundFigures:
    """Carry out a plan of publishing; latency is from PUBLISH to its acknowledgement."""
    tally = run_plan(plan)
    done = tally.acknowledged if plan.qos else tally.sent
    failed = tally.unanswered + tally.skipped + tally.refusals.total() + tally.failures.total()
    return RoundFigures(
        done / max(tally.publish_s, 1e-9),
        tally.publish_latency.at(50) / 1e3,
        tally.publish_latency.at(99) / 1e3,
        failed,
    )


def delivering(relay: Relay, target: str) -> RoundFigures:
    """Carry out a relay at a server; latency is from publisher to subscriber."""
    found = relay.measure(target)
    return RoundFigures(found.came / found.seconds, found.p50_ms, found.p99_ms, found.expected - found.came)


def compare(rounds: int, measures: Mapping[str, Callable[[], RoundFigures]]) -> list[dict[str, Any]]:
    """Measure servers in turns, once more than `rounds` to warm them; a row of medians for each.

    `times` is the rate as a multiple of the first server's.
    """
    for measure in measures.values():
        measure()
    results = take_turns(rounds, measures)
    first = statistics.median(each.rate for each in next(iter(results.values())))
    return [_row(name, found, first) for name, found in results.items()]


def _row(target: str, found: Sequence[RoundFigures], first: float) -> dict[str, Any]:
    rate = statistics.median(each.rate for each in found)
    return {
        "target": target,
        "rate": round(rate, 1),
        "times": round(rate / first, 3) if first else None,
        "rates": [round(each.rate, 1) for each in found],
        "p50_ms": round(statistics.median(each.p50_ms for each in found), 3),
        "p99_ms": round(statistics.median(each.p99_ms for each in found), 3),
        "failed": sum(each.failed for each in found),
    }


def counted(measure: Callable[[], RoundFigures], told: Callable[[], None]) -> Callable[[], RoundFigures]:
    """Return the measure, which calls `told` each time that it is done."""

    def measured() -> RoundFigures:
        found = measure()
        told()
        return found

    return measured
