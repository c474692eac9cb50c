"""``holdmq topic list | create``."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdmq.cli.options import ConfigFile, Json, Sets, configuration, print_json
from holdmq.config import Config
from holdmq.errors import TransportError

if TYPE_CHECKING:
    from holdmq.client.route import RouteTable
    from holdmq.wire.headers import TopicRow, TopicStats

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Topics: what there is, and new ones.",
    epilog="Example: holdmq topic list",
)


@app.command("list", epilog="Example: holdmq topic list --system")
def list_(
    system: Annotated[bool, typer.Option("--system", help="Show system topics too.")] = False,
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """List topics with their queues and counts, a line per topic and broker."""
    rows = asyncio.run(_list(configuration(config, set_), system))
    if as_json:
        print_json(rows)
        return
    table = Table("topic", "broker", "queues", "kind", "stored", "in", "out")
    for row in rows:
        counts = (str(row[name]) for name in ("messages_stored", "messages_in", "messages_out"))
        table.add_row(row["topic"], row["broker"], str(row["write_queues"]), row["kind"], *counts)
    Console().print(table)


@app.command(epilog="Example: holdmq topic create devices --queues 8")
def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Name: letters, digits, _ and -.")],
    queues: Annotated[
        int, typer.Option(min=0, max=1024, help="Queues on every broker; 0 = broker.topic_queues_default.")
    ] = 0,
    key_levels: Annotated[
        int,
        typer.Option("--key-levels", min=1, max=127, help="Levels of a tag that filters select quickly by."),
    ] = 1,
    config: ConfigFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Create a topic on every live broker; creating it again with the same settings succeeds."""
    rows = asyncio.run(_create(configuration(config, set_), name, queues, key_levels))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        typer.echo(f"{row['topic']} is on {row['broker']} with {row['write_queues']} queues")


async def _list(config: Config, system: bool) -> list[dict[str, Any]]:
    from holdmq.wire.codes import RequestCode
    from holdmq.wire.header import rows
    from holdmq.wire.headers import TopicListRequest, TopicListResponse, TopicRow, TopicStats

    found = []
    routes = routes_of(config)
    try:
        for broker in await live_brokers(routes):
            answer = await routes.link(broker).client.call(RequestCode.TOPIC_LIST, TopicListRequest(system))
            header = answer.header(TopicListResponse)
            topics, stats = rows(TopicRow, header.topics), rows(TopicStats, header.stats)
            found += [_row(broker, topic, counts) for topic, counts in zip(topics, stats, strict=True)]
    finally:
        await routes.close()
    return sorted(found, key=lambda row: (row["topic"], row["broker"]))


async def _create(config: Config, name: str, queues: int, key_levels: int) -> list[dict[str, Any]]:
    from holdmq.wire.codes import RequestCode
    from holdmq.wire.header import rows
    from holdmq.wire.headers import TopicCreateRequest, TopicCreateResponse, TopicRow

    request = TopicCreateRequest(name, queues=queues, key_levels=key_levels)
    found = []
    routes = routes_of(config)
    try:
        for broker in await live_brokers(routes):
            answer = await routes.link(broker).client.call(RequestCode.TOPIC_CREATE, request)
            created = rows(TopicRow, answer.header(TopicCreateResponse).topics)
            found += [_row(broker, topic, None) for topic in created]
    finally:
        await routes.close()
    return found


def routes_of(config: Config) -> RouteTable:
    """Return a route table for one command; the caller closes it."""
    from holdmq.client.route import RouteTable
    from holdmq.rpc.security import Security

    return RouteTable(config.registries(), f"holdmq-cli-{os.getpid()}", security=Security.of(config))


async def live_brokers(routes: RouteTable) -> list[str]:
    """Return the names of the live brokers, at least one. Raises TransportError."""
    await routes.refresh()
    names = sorted(routes.brokers())
    if not names:
        raise TransportError("no broker is registered; start one (holdmq broker), then try again")
    return names


def _row(broker: str, topic: TopicRow, counts: TopicStats | None) -> dict[str, Any]:
    return {"broker": broker, **topic._asdict(), **(counts._asdict() if counts is not None else {})}
