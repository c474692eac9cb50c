"""``holdmq replica list | switch | promote``: the copies of a broker, and which one leads."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer

from holdmq.cli.options import CommandGroup, Given, print_json
from holdmq.cli.plain_table import PlainTable
from holdmq.cli.shown import say
from holdmq.errors import ConfigError, UsageError
from holdmq.service.process import EXIT_FAILED

if TYPE_CHECKING:
    from holdmq.client.replicas import ShardReplicas, ShardView
    from holdmq.config.model import Config

app = CommandGroup(
    "The copies of a replicated broker: what each has, which one leads, and who is to.", "holdmq replica list"
)


@app.add("list", example="holdmq replica list --config broker.toml")
def list_(given: Given) -> None:
    """Ask every replica what it has and does. Exit code 1 when none leads, or one does not answer.

    The epoch is that of the replica's log: a log of a higher one is the newer one, whatever its end.
    """
    config = _replicated(given.configuration())
    view = asyncio.run(_shard(config).view())
    if given.as_json:
        print_json({"shard": view.shard, "ok": view.is_well, "replicas": _fields(view)})
    else:
        _print(view)
    if not view.is_well:
        raise typer.Exit(EXIT_FAILED)


@app.add("switch", example="holdmq replica switch --to b")
def switch(
    given: Given,
    to: Annotated[str, typer.Option("--to", help="Replica that is to lead; unset = who has most.")] = "",
) -> None:
    """Hand the lead to another replica in sync. Clients see a pause of a second at most."""
    config = _replicated(given.configuration())
    leader = asyncio.run(_shard(config).switch(to))
    if given.as_json:
        print_json({"shard": config.broker.name, "leader": leader})
    else:
        say(f"{leader} leads {config.broker.name}")


@app.add("promote", example="holdmq replica promote c --accept-loss")
def promote(
    given: Given,
    replica: Annotated[str, typer.Argument(help="Replica that is to lead with what it has.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up what others have and this one lacks.")
    ] = False,
) -> None:
    """Make a replica lead that may lack acknowledged messages, when all that have them are gone for good."""
    config = _replicated(given.configuration())
    addresses = config.replication.addresses()
    if replica not in addresses:
        raise UsageError(f"replication.replicas has no {replica!r}, but {', '.join(addresses)}")
    view = asyncio.run(_shard(config).view())
    if view.leader is not None:
        raise UsageError(f"{view.leader.replica} leads {view.shard}: use holdmq replica switch")
    if not accept_loss:
        _print(view)
        raise UsageError(
            f"whatever lies behind the end of {replica} is lost; a replica that has more begins anew, so "
            "move its data directory away before it is started again; say --accept-loss if that is meant"
        )
    end = asyncio.run(_shard(config).promote(replica))
    if given.as_json:
        print_json({"shard": config.broker.name, "leader": replica, "end": end})
    else:
        say(f"{replica} campaigns for {config.broker.name} with a log of {end} bytes")


def _replicated(config: Config) -> Config:
    if not config.replication.replicas:
        raise ConfigError(
            "replication.replicas is empty, for a broker with one copy: name the configuration of a replica"
        )
    return config


def _shard(config: Config) -> ShardReplicas:
    from holdmq.client.replicas import ShardReplicas
    from holdmq.rpc.security import Security

    name = f"holdmq-cli-{os.getpid()}"
    return ShardReplicas(
        config.broker.name, config.replication.addresses(), name, "client", Security.of(config)
    )


def _fields(view: ShardView) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for one in view.replicas:
        status = one.status
        row: dict[str, object] = {"replica": one.replica, "address": one.address}
        if status is None:
            row |= {"role": "unreachable", "reason": one.reason}
        else:
            row |= {
                "role": status.role,
                "serves": one.serves,
                "epoch": status.epoch,
                "log_epoch": one.log_epoch,
                "leader": status.leader,
                "whole": status.is_whole,
                "first": status.first,
                "end": status.end,
                "confirmed": status.confirmed,
            }
        row |= {
            "in_sync": one.in_sync,
            "behind_ms": one.behind_ms,
            "behind_bytes": one.behind_bytes,
            "lease_ms": one.lease_ms,
        }
        found.append(row)
    return found


def _print(view: ShardView) -> None:
    from rich.console import Console

    table = PlainTable(
        "replica", "role", "in sync", "whole", "epoch", "end", "confirmed", "behind", "bytes", "lease"
    )
    for one, row in zip(view.replicas, _fields(view), strict=True):
        table.add_row(
            one.replica,
            str(row["role"]),
            _word(one.in_sync),
            _word(row.get("whole")),
            str(row.get("log_epoch", "")),
            str(row.get("end", "")),
            str(row.get("confirmed", "")),
            "" if one.behind_ms is None else f"{one.behind_ms / 1e3:.1f} s",
            "" if one.behind_bytes is None else str(one.behind_bytes),
            "" if one.lease_ms is None else f"{one.lease_ms / 1e3:.1f} s",
        )
    Console().print(table)
    for one in view.replicas:
        if one.status is None:
            say(f"{one.replica} does not answer: {one.reason}")
        elif one.status.is_serving and not one.serves:
            say(
                f"{one.replica} hands nothing out: its lease of the lead has run out; look after the "
                "coordinator"
            )


def _word(value: object) -> str:
    return "" if value is None else "yes" if value else "no"
