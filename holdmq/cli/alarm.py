"""``holdmq alarm list``: what is wrong now, as brokers and registries say, and what was."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdmq.cli.calls import run_calls
from holdmq.cli.options import Asking, CommandGroup
from holdmq.cli.shown import say
from holdmq.cli.times import show_time
from holdmq.errors import HoldMQError
from holdmq.service.process import EXIT_FAILED

app = CommandGroup("Alarms of brokers and registries.", "holdmq alarm list")


@app.add("list", example="holdmq alarm list --over --json")
def list_(
    given: Asking,
    over: Annotated[bool, typer.Option("--over", help="List those that are over, too.")] = False,
) -> None:
    """List the alarms that are raised: backlogs, disks, copies, processes that died."""
    from holdmq.client.admin import Admin

    answers = run_calls(given.configuration(), Admin, lambda admin: admin.alarms())
    found: list[dict[str, Any]] = []
    for teller, view in sorted(answers.items()):
        if isinstance(view, HoldMQError):
            continue
        found += [{"broker": teller, **row._asdict(), "ended_ms": 0} for row in view.alarms]
        if over:
            ended = [{"broker": teller, **row._asdict(), "ended_ms": at_ms} for row, at_ms in view.over]
            found += ended
    found.sort(key=lambda one: (one["ended_ms"] > 0, -one["since_ms"]))
    given.table(
        ("kind", "of", "told by", "since", "over", "text"),
        found,
        lambda one: (
            one["kind"],
            one["name"],
            one["broker"],
            show_time(one["since_ms"]),
            show_time(one["ended_ms"]) if one["ended_ms"] else "",
            one["text"],
        ),
    )
    silent = {teller: view for teller, view in answers.items() if isinstance(view, HoldMQError)}
    for teller, error in silent.items():
        say(f"{teller} does not tell of its alarms: {error}", err=True)
    if silent:
        raise typer.Exit(EXIT_FAILED)
