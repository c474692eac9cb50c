"""``holdmq trace``: the packets of one MQTT client, as they come."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer

from holdmq.cli.control import Admin, ask
from holdmq.cli.options import Asking, ClientId, CommandGroup, print_json
from holdmq.cli.shown import say
from holdmq.cli.times import show_time


def register(app: CommandGroup) -> None:
    """Add the command `trace` to `app`."""
    app.add("trace", example="holdmq trace meter-42 --topic 'meters/#' --seconds 60")(trace)


def trace(
    given: Asking,
    client_id: ClientId,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="FILTER", help="Only PUBLISH on these topics.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=600, help="How long.")] = 30.0,
    admin: Admin = "",
) -> None:
    """Show what a client sends and is sent, whichever worker of this machine's gateway it is connected to."""
    # Shells start what runs in the background with SIGINT ignored, and Python leaves it so.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        for row in ask(
            given.configuration(),
            admin,
            "GET",
            "/trace",
            client=client_id,
            topic=topic,
            seconds=seconds,
        ):
            if given.as_json:
                print_json(row)
            else:
                say(line(row))
    except KeyboardInterrupt:
        pass


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    row = dict(row)
    at = show_time(row.pop("at_ms")) if "at_ms" in row else ""
    worker = row.pop("worker", "")
    direction = {"in": "→", "out": "←"}.get(row.pop("direction", ""), "·")
    what = row.pop("packet", None) or row.pop("event", "")
    rest = " ".join(f"{name}={value}" for name, value in row.items())
    return f"{at} {worker} {direction} {what} {rest}".strip()
