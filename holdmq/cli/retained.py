"""``holdmq retained list | show | drop``: the retained messages of MQTT topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from holdmq.cli.calls import first_of, run_calls
from holdmq.cli.options import Asking, CommandGroup, Yes, confirm, print_json
from holdmq.cli.shown import content, say, write_line
from holdmq.cli.times import show_time
from holdmq.config.model import Config

if TYPE_CHECKING:
    from holdmq.client.retained import RetainedAdmin, RetainedView

T = TypeVar("T")

app = CommandGroup(
    "Retained messages: what MQTT clients get when they subscribe.", "holdmq retained show devices/42/state"
)

Topic = Annotated[str, typer.Argument(help="The MQTT topic.")]


@app.add("list", example="holdmq retained list 'devices/+/state' --count 20")
def list_(
    given: Asking,
    topic_filter: Annotated[str, typer.Argument(metavar="[FILTER]", help="An MQTT topic filter.")] = "#",
    count: Annotated[int, typer.Option("--count", min=1, help="Show at most so many.")] = 1000,
) -> None:
    """List topics with a retained message that match a filter, broker by broker."""
    views = _run(given.configuration(), lambda retained: first_of(retained.list(topic_filter), count))
    given.table(
        ("topic", "broker", "QoS", "bytes", "published", "expires", "publisher"),
        [_shown(view) for view in views],
        lambda row: (
            *(row[name] for name in ("topic", "broker", "qos", "payload_bytes")),
            show_time(row["published_ms"]),
            show_time(row["expires_ms"]) if row["expires_ms"] else "",
            row["client_id"],
        ),
    )


@app.add("show", example="holdmq retained show devices/42/state --json")
def show(given: Asking, topic: Topic) -> None:
    """Show a topic's retained message: its payload, or with --json all that is known of it."""
    view = _run(given.configuration(), lambda retained: retained.show(topic))
    if view is None:
        say(f"{topic} has no retained message", err=True)
        raise typer.Exit(1)
    if given.as_json:
        print_json({**_shown(view), **content("payload", view.message.payload)})
    else:
        write_line(view.message.payload)


@app.add("drop", example="holdmq retained drop devices/42/state --yes")
def drop(given: Asking, topic: Topic, yes: Yes = False) -> None:
    """Take a topic's retained message away; nobody is told."""
    if not yes:
        confirm(f"Take the retained message of {topic} away for good?")
    was_there = _run(given.configuration(), lambda retained: retained.drop(topic))
    given.tell(
        {"dropped": topic if was_there else None},
        f"{topic} has none any more" if was_there else f"{topic} had no retained message",
    )


def _run(config: Config, work: Callable[[RetainedAdmin], Awaitable[T]]) -> T:
    from holdmq.client.retained import RetainedAdmin

    return run_calls(config, RetainedAdmin, work)


def _shown(view: RetainedView) -> dict[str, Any]:
    message = view.message
    return {
        "topic": view.topic,
        "broker": view.broker,
        "version": view.version,
        "qos": message.qos,
        "payload_bytes": len(message.payload),
        "client_id": message.client_id,
        "published_ms": message.published_ms,
        "expires_ms": message.expires_ms or None,
    }
