"""What a load test found, as JSON and as lines for a terminal."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import holdmq
from holdmq.errors import StartupError
from loadtest.fleet import Tally
from loadtest.plan import ConnectPlan, PublishPlan, parameters


def heading(work: str, shown: dict[str, Any], **machine: int) -> dict[str, Any]:
    """Return what every report begins with: the command, when and where it ran, and its parameters."""
    return {
        "tool": f"holdmq loadtest {work}",
        "version": holdmq.__version__,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), **machine},
        "parameters": shown,
    }


def make(
    plan: ConnectPlan | PublishPlan, tally: Tally, processes: int, memory: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the report: parameters, connections, for a PublishPlan messages, `memory` if it was measured.

    Latencies are µs.
    """
    work = "publish" if isinstance(plan, PublishPlan) else "connect"
    report: dict[str, Any] = {
        **heading(work, parameters(plan), processes=processes),
        "connections": {
            "wanted": plan.fleet.devices,
            "connected": tally.connected,
            "resumed": tally.resumed,
            "lost": tally.lost,
            "failures": dict(tally.failures.most_common()),
            "seconds": round(tally.connect_s, 3),
            "rate": round(tally.connected / tally.connect_s, 1) if tally.connect_s else 0.0,
            "per_second": _by_second(tally.connected_by_second),
            "latency_us": tally.connect_latency.summary(),
            "latency_curve_us": tally.connect_latency.curve(),
        },
    }
    if memory is not None:
        report["memory"] = memory
    if isinstance(plan, PublishPlan):
        done = tally.acknowledged if plan.qos else tally.sent
        report["messages"] = {
            "sent": tally.sent,
            "acknowledged": tally.acknowledged,
            "unanswered": tally.unanswered,
            "skipped": tally.skipped,
            "refusals": dict(tally.refusals.most_common()),
            "seconds": round(tally.publish_s, 3),
            "rate": round(done / tally.publish_s, 1) if tally.publish_s else 0.0,
            "per_second": _by_second(tally.done_by_second),
            "latency_us": tally.publish_latency.summary(),
            "latency_curve_us": tally.publish_latency.curve(),
        }
    return report


def _by_second(counts: dict[int, int]) -> list[int]:
    return [counts.get(s, 0) for s in range(max(counts, default=-1) + 1)]


def write_json(report: dict[str, Any], path: Path) -> None:
    """Write the report to `path`; StartupError when it cannot be written."""
    try:
        path.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise StartupError(f"the report cannot be written to {path}: {error.strerror}") from error


def is_clean(report: dict[str, Any]) -> bool:
    """Return whether everything that was wanted was done: nothing failed, was refused or left open."""
    connections, messages = report["connections"], report.get("messages", {})
    return connections["connected"] == connections["wanted"] and not (
        connections["failures"] or any(messages.get(name) for name in ("unanswered", "skipped", "refusals"))
    )


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report as tables."""
    connections, messages = report["connections"], report.get("messages")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("connected", f"{connections['connected']:,} of {connections['wanted']:,}")
    table.add_row("connect rate", f"{connections['rate']:,.0f} /s over {connections['seconds']:.2f} s")
    table.add_row("connect latency", _latency(connections["latency_us"]))
    memory = report.get("memory")
    if memory is not None:
        each = memory["bytes_per_connection"]
        table.add_row("memory", f"{each:,} bytes for each connection, in {memory['workers']} workers")
    for reason, count in connections["failures"].items():
        table.add_row("[red]failed[/]", f"{count:,} × {reason}")
    if messages is not None:
        table.add_row("sent", f"{messages['sent']:,}, acknowledged {messages['acknowledged']:,}")
        table.add_row(
            "throughput", f"[bold]{messages['rate']:,.0f} msg/s[/] over {messages['seconds']:.2f} s"
        )
        table.add_row("publish latency", _latency(messages["latency_us"]))
        for name in ("unanswered", "skipped"):
            if messages[name]:
                table.add_row(f"[red]{name}[/]", f"{messages[name]:,}")
        for reason, count in messages["refusals"].items():
            table.add_row("[red]refused[/]", f"{count:,} × {reason}")
    console.print(table)


def _latency(summary: dict[str, float]) -> str:
    if not summary["count"]:
        return "–"
    names = ("p50", "p90", "p99", "p99.9", "max")
    return "  ".join(f"{name} {summary[name] / 1000:,.2f}" for name in names) + "  ms"


def show_deliveries(report: dict[str, Any], console: Console) -> None:
    """Print what `holdmq loadtest deliver` found."""
    found = report["deliveries"]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("delivered", f"{found['came']:,} of {found['expected']:,}")
    table.add_row("throughput", f"[bold]{found['rate']:,.0f} deliveries/s[/] over {found['seconds']:.2f} s")
    table.add_row("latency", _milliseconds(found))
    console.print(table)


def show_queue(report: dict[str, Any], console: Console) -> None:
    """Print what `holdmq loadtest queue` found."""
    found = report["queue"]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("produced", f"{found['produced']:,}, {found['produce_rate']:,.0f} msg/s")
    table.add_row("consumed", f"{found['consumed']:,}, [bold]{found['consume_rate']:,.0f} msg/s[/]")
    table.add_row("delivered again", f"{found['repeated']:,}")
    table.add_row("latency", _milliseconds(found))
    console.print(table)


def show_comparison(report: dict[str, Any], console: Console) -> None:
    """Print what `holdmq loadtest compare` found, the medians of the rounds."""
    table = Table("server", "msg/s", "× first", "p50 ms", "p99 ms", "failed")
    for row in report["servers"]:
        times = "–" if row["times"] is None else f"{row['times']:.2f}"
        latencies = (f"{row[name]:,.2f}" for name in ("p50_ms", "p99_ms"))
        table.add_row(row["target"], f"{row['rate']:,.0f}", times, *latencies, f"{row['failed']:,}")
    console.print(table)


def _milliseconds(found: dict[str, Any]) -> str:
    return "  ".join(f"{name} {found[f'{name}_ms']:,.2f}" for name in ("p50", "p99", "max")) + "  ms"
