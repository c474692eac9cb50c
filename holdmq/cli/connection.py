"""``holdmq connection list | busiest``: what speaks to the brokers, and how much."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.options import Asking, CommandGroup, GivenTenant
from holdmq.cli.shown import say
from holdmq.cli.times import show_time
from holdmq.config.model import Config
from holdmq.errors import HoldMQError, UsageError
from holdmq.service.process import EXIT_FAILED
from holdmq.wire.connection_kinds import KINDS

if TYPE_CHECKING:
    from holdmq.client.admin import Admin

T = TypeVar("T")

app = CommandGroup(
    "Connections to the brokers: producers, consumers, gateways, Spark.", "holdmq connection list"
)


@app.add("list", example="holdmq connection list --kind producer --topic orders")
def list_(
    given: GivenTenant,
    kind: Annotated[str, typer.Option("--kind", help=f"Only these: {', '.join(KINDS)}.")] = "",
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="Only those that send to a topic or read it.")
    ] = "",
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Only members of a group.")] = "",
) -> None:
    """List what is connected to each broker: what it sends to, what it reads, as whom, since when."""
    if kind and kind not in KINDS:
        raise UsageError(f"--kind {kind!r}: one of {', '.join(KINDS)} is possible")
    answers = _run(given.configuration(), lambda admin: admin.connections())
    found = {b: listed for b, listed in answers.items() if not isinstance(listed, HoldMQError)}
    rows = [_row(broker, row) for broker, listed in found.items() for row in listed]
    rows = [
        row
        for row in rows
        if (not kind or kind in row["kinds"])
        and (not topic or topic in row["produces"] or topic in row["reads"])
        and (not group or group in row["groups"])
    ]
    rows.sort(key=lambda row: (row["client_id"], row["broker"], row["address"]))
    given.table(
        ("client", "kinds", "broker", "address", "access key", "sends to", "groups", "reads", "since"),
        rows,
        lambda row: (
            row["client_id"],
            ", ".join(row["kinds"]),
            *(row[name] for name in ("broker", "address", "principal")),
            *(", ".join(row[name]) for name in ("produces", "groups", "reads")),
            show_time(row["connected_ms"]),
        ),
    )
    _say_silent(answers)


@app.add("busiest", example="holdmq connection busiest --json")
def busiest(
    given: Asking,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many of each.")] = 20,
) -> None:
    """Show the clients and the access keys that sent and took most in the last minute."""
    from holdmq.client import statistics

    answers = _run(
        given.configuration(), lambda admin: admin.statistics([], [], sources=True, rows_max=count)
    )
    views = [view for view in answers.values() if isinstance(view, statistics.StatisticsView)]
    clients = statistics.traffic(views, lambda view: view.clients)[:count]
    users = statistics.traffic(views, lambda view: view.users)[:count]
    rows: list[dict[str, Any]] = [
        {
            "kind": kind,
            "name": one.name,
            "second": one.second._asdict(),
            "minute": one.minute._asdict(),
            "hour": one.hour._asdict(),
            "day": one.day._asdict(),
        }
        for kind, found in (("client", clients), ("access key", users))
        for one in found
    ]
    given.table(
        ("kind", "name", "in/s", "B/s in", "out/s", "B/s out", "replay/s", "in/s 1 d", "out/s 1 d"),
        rows,
        lambda row: (
            row["kind"],
            row["name"],
            f"{row['minute']['messages_in']:.1f}",
            f"{row['minute']['bytes_in']:.0f}",
            f"{row['minute']['messages_out']:.1f}",
            f"{row['minute']['bytes_out']:.0f}",
            f"{row['minute']['messages_replayed']:.1f}",
            f"{row['day']['messages_in']:.1f}",
            f"{row['day']['messages_out']:.1f}",
        ),
    )
    _say_silent(answers)


def _run(config: Config, work: Callable[[Admin], Awaitable[T]]) -> T:
    from holdmq.client.admin import Admin

    return run_calls(config, Admin, work, tenant=config.client.tenant)


def _row(broker: str, row: Any) -> dict[str, Any]:
    return {
        "broker": broker,
        **{name: getattr(row, name) for name in ("client_id", "role", "kinds", "address", "principal")},
        **{name: getattr(row, name) for name in ("language", "software", "connected_ms", "produces")},
        "groups": sorted({subscription[0] for subscription in row.subscriptions}),
        "reads": sorted({*(subscription[2] for subscription in row.subscriptions), *row.reads}),
    }


def _say_silent(answers: Mapping[str, object]) -> None:
    """Name the brokers that did not answer, and fail if there are any."""
    silent = {broker: error for broker, error in answers.items() if isinstance(error, HoldMQError)}
    for broker, error in silent.items():
        say(f"{broker} does not tell who is connected: {error}", err=True)
    if silent:
        raise typer.Exit(EXIT_FAILED)
