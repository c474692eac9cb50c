"""``holdmq retained list | show | drop``: the retained messages of MQTT topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from holdmq.cli.calls import first_of, run_calls
from holdmq.cli.options import ConfigFile, Json, Sets, Yes, configuration, confirm, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.shown import content, say, write_line
from holdmq.cli.times import show_time
from holdmq.config.model import Config

if TYPE_CHECKING:
    from holdmq.client.retained import RetainedAdmin, RetainedView

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Retained messages: what MQTT clients get when they subscribe.",
    epilog="Example: holdmq retained show devices/42/state",
)

Topic = Annotated[str, typer.Argument(help="The MQTT topic.")]


@app.command("list", epilog="Example: holdmq retained list 'devices/+/state' --count 20")
def list_(
    topic_filter: Annotated[str, typer.Argument(metavar="[FILTER]", help="An MQTT topic filter.")] = "#",
    count: Annotated[int, typer.Option("--count", min=1, help="Show at most so many.")] = 1000,
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """List topics with a retained message that match a filter, broker by broker."""
    views = _run(configuration(config, set_), lambda retained: first_of(retained.list(topic_filter), count))
    if as_json:
        print_json([_shown(view) for view in views])
        return
    table = PlainTable("topic", "broker", "QoS", "bytes", "published", "expires", "publisher")
    for topic, broker, _, message in views:
        expires = show_time(message.expires_ms) if message.expires_ms else ""
        table.add_row(
            topic,
            broker,
            str(message.qos),
            str(len(message.payload)),
            show_time(message.published_ms),
            expires,
            message.client_id,
        )
    Console().print(table)


@app.command(epilog="Example: holdmq retained show devices/42/state --json")
def show(topic: Topic, config: ConfigFile = None, set_: Sets = None, as_json: Json = False) -> None:
    """Show a topic's retained message: its payload, or with --json all that is known of it."""
    view = _run(configuration(config, set_), lambda retained: retained.show(topic))
    if view is None:
        say(f"{topic} has no retained message", err=True)
        raise typer.Exit(1)
    if as_json:
        print_json({**_shown(view), **content("payload", view.message.payload)})
    else:
        write_line(view.message.payload)


@app.command(epilog="Example: holdmq retained drop devices/42/state --yes")
def drop(
    topic: Topic, yes: Yes = False, config: ConfigFile = None, set_: Sets = None, as_json: Json = False
) -> None:
    """Take a topic's retained message away; nobody is told."""
    if not yes:
        confirm(f"Take the retained message of {topic} away for good?")
    was_there = _run(configuration(config, set_), lambda retained: retained.drop(topic))
    if as_json:
        print_json({"dropped": topic if was_there else None})
    else:
        say(f"{topic} has none any more" if was_there else f"{topic} had no retained message")


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
